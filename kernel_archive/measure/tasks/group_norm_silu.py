"""Group normalisation with SiLU."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Normalise over every group of channels and all places, scale and shift, then SiLU; computed in float32."""
    x, weight, bias, cfg = data
    return F.silu(F.group_norm(x.float(), cfg["groups"], weight, bias, eps=1e-5)).to(x.dtype)
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = (
    {"batch": 2, "channels": 64, "height": 12, "width": 12, "groups": 8, "layout": "first"},
    {"batch": 2, "channels": 64, "height": 12, "width": 12, "groups": 8, "layout": "last"},
)
SMALL_CASE: Final = {"batch": 1, "channels": 16, "height": 6, "width": 6, "groups": 4, "layout": "first"}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x bf16 [batch, channels, height, width], weight, bias f32 [channels], {"groups"})``; layout ``last`` strides as channels last.

    Structured: channels of their own offset and magnitude, images of their own contrast.
    """
    import torch

    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = torch.randn((b, c, h, w), generator=gen, device=device)
    weight = 1 + 0.2 * torch.randn((c,), generator=gen, device=device)
    bias = 0.2 * torch.randn((c,), generator=gen, device=device)
    if variant == "structured":
        x = (
            x * torch.linspace(0.2, 3.0, c, device=device)[:, None, None]
            + torch.linspace(-3.0, 3.0, c, device=device)[:, None, None]
        )
        x *= torch.exp2(torch.arange(b, device=device) % 5 - 2.0)[:, None, None, None]
    x = x.to(torch.bfloat16)
    if case["layout"] == "last":
        x = x.to(memory_format=torch.channels_last)
    return x, weight, bias, {"groups": case["groups"]}


def work(case: dict[str, Any]) -> Work:
    n = case["batch"] * case["channels"] * case["height"] * case["width"]
    return Work(bytes_read=2 * n, bytes_written=2 * n, flops=8 * n)
