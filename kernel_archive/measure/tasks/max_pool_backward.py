"""Gradient of a 3 x 3 max pooling with stride 2."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Each window (3 x 3, stride 2, padding 1) gives its gradient to its largest value, the first of equal ones by row."""
    x, dy = data
    _, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    dx = torch.zeros_like(x).flatten(2)
    dx.scatter_add_(2, at.flatten(2), dy.flatten(2))
    return dx.view_as(x)
'''
OUTPUTS: Final = ("dx",)
CORRECTNESS_CASES: Final = ({"batch": 2, "channels": 3, "height": 14, "width": 22},)
SMALL_CASE: Final = {"batch": 1, "channels": 2, "height": 8, "width": 8}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f32 [batch, channels, height, width], dy f32 [batch, channels, height / 2, width / 2])``.

    Structured: few distinct values, so that windows have ties; channels of their own magnitude.
    """
    import torch

    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = torch.randn((b, c, h, w), generator=gen, device=device)
    dy = torch.randn((b, c, h // 2, w // 2), generator=gen, device=device)
    if variant == "structured":
        x = (x * 2).round() / 2
        dy *= torch.linspace(0.1, 4.0, c, device=device)[:, None, None]
    return x, dy


def work(case: dict[str, Any]) -> Work:
    n = case["batch"] * case["channels"] * case["height"] * case["width"]
    return Work(bytes_read=5 * n, bytes_written=4 * n, flops=n)
