"""Causal depthwise convolution of width 4 with SiLU."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Each channel with its own four taps over the present and the three steps before; then SiLU."""
    x, weight, bias = data
    y = F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=x.shape[1])
    return F.silu(y)
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"batch": 2, "channels": 48, "time": 130},)
SMALL_CASE: Final = {"batch": 1, "channels": 8, "time": 64}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x bf16 [batch, channels, time], weight bf16 [channels, 4], bias bf16 [channels])``.

    Structured: channels of their own magnitude, a jump in the middle of the time.
    """
    import torch

    b, d, t = case["batch"], case["channels"], case["time"]
    x = torch.randn((b, d, t), generator=gen, device=device)
    weight = torch.randn((d, 4), generator=gen, device=device) * 0.5
    bias = torch.randn((d,), generator=gen, device=device)
    if variant == "structured":
        x *= torch.exp2(torch.arange(d, device=device) % 7 - 3.0)[:, None]
        x[..., t // 2 :] += 2
    return x.to(torch.bfloat16), weight.to(torch.bfloat16), bias.to(torch.bfloat16)


def work(case: dict[str, Any]) -> Work:
    n = case["batch"] * case["channels"] * case["time"]
    return Work(bytes_read=2 * n, bytes_written=2 * n, flops=8 * n)
