"""3 x 3 convolution in bfloat16."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Convolution with padding 1, stride 1."""
    x, weight = data
    return F.conv2d(x, weight, padding=1)
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"batch": 2, "in": 32, "out": 64, "height": 20, "width": 28},)
SMALL_CASE: Final = {"batch": 1, "in": 16, "out": 16, "height": 8, "width": 8}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x [batch, in, height, width], weight [out, in, 3, 3])``, bfloat16, contiguous. Structured: channels of their own magnitude, bright borders."""
    import torch

    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    x = torch.randn((b, c, h, w), generator=gen, device=device)
    weight = torch.randn((o, c, 3, 3), generator=gen, device=device) / (9 * c) ** 0.5
    if variant == "structured":
        x *= torch.linspace(0.1, 2.0, c, device=device)[:, None, None]
        x[..., 0, :] *= 3
        x[..., -1] *= 3
        weight *= torch.linspace(0.5, 1.5, 9, device=device).reshape(3, 3)
    return x.to(torch.bfloat16), weight.to(torch.bfloat16)


def work(case: dict[str, Any]) -> Work:
    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    return Work(
        bytes_read=2 * (b * c * h * w + 9 * o * c), bytes_written=2 * b * o * h * w, flops=8 * b * o * h * w * c
    )
