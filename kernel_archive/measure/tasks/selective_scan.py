"""Selective state space recurrence."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = C_t h_t + D u_t, for every channel; h starts at zero."""
    u, dt, A, B, C, D = data
    step = dt.float()
    decay = torch.exp(step[..., None] * A)
    drive = (step * u.float())[..., None] * B.float()[:, :, None]
    h = torch.zeros(u.shape[0], u.shape[2], A.shape[1], device=u.device)
    y = torch.empty(u.shape, device=u.device)
    for t in range(u.shape[1]):
        h = decay[:, t] * h + drive[:, t]
        y[:, t] = (h * C[:, t, None].float()).sum(-1)
    return (y + D * u.float()).to(u.dtype)
'''
OUTPUTS: Final = ("y",)
CORRECTNESS_CASES: Final = ({"batch": 2, "time": 40, "channels": 64},)
SMALL_CASE: Final = {"batch": 1, "time": 12, "channels": 16}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(u, dt bf16 [batch, time, channels], A f32 [channels, 16], B, C bf16 [batch, time, 16], D f32 [channels])``; dt > 0 > A.

    Structured: channels that forget at once beside ones that hardly do, inputs that fade.
    """
    import torch

    b, t, d = case["batch"], case["time"], case["channels"]
    u = torch.randn((b, t, d), generator=gen, device=device)
    dt = torch.nn.functional.softplus(torch.randn((b, t, d), generator=gen, device=device) - 2)
    rates = -torch.arange(1.0, 17.0, device=device).repeat(d, 1)
    into, out_of = (torch.randn((b, t, 16), generator=gen, device=device) for _ in range(2))
    skip = torch.randn((d,), generator=gen, device=device)
    if variant == "structured":
        rates *= torch.logspace(-3, 1, d, device=device)[:, None]
        u *= torch.linspace(1.0, 0.05, t, device=device)[:, None]
    return (
        u.to(torch.bfloat16),
        dt.to(torch.bfloat16),
        rates,
        (into / 4).to(torch.bfloat16),
        (out_of / 4).to(torch.bfloat16),
        skip,
    )


def work(case: dict[str, Any]) -> Work:
    b, t, d = case["batch"], case["time"], case["channels"]
    return Work(bytes_read=4 * b * t * (d + 16), bytes_written=2 * b * t * d, flops=6 * b * t * d * 16)
