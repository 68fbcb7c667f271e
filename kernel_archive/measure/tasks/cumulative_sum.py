"""Inclusive prefix sum of every row."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """Inclusive sum along the rows."""
    (x,) = data
    return torch.cumsum(x, dim=-1)
'''
OUTPUTS: Final = ("sums",)
CORRECTNESS_CASES: Final = ({"rows": 5, "cols": 5000},)
SMALL_CASE: Final = {"rows": 3, "cols": 700}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f32 [rows, cols],)``. Structured: rows of their own offset, blocks that cancel, a few large values."""
    import torch

    rows, cols = case["rows"], case["cols"]
    x = torch.randn((rows, cols), generator=gen, device=device)
    if variant == "structured":
        x += torch.linspace(-0.5, 0.5, rows, device=device)[:, None]
        x *= torch.where(torch.arange(cols, device=device) // 1000 % 2 == 0, 1.0, -0.25)
        x[:, :: max(1, cols // 7)] *= 100
    return (x,)


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=4 * n, flops=n)


TOLERANCE_NOTE: Final = "rtol 1e-4 + 1e-3 of the root of the row's sum of squares"


def tolerances(data: Any) -> tuple[tuple[float, Any], ...]:
    """A sum of thousands of values of either sign has an error that goes with the root of their sum of squares."""
    (x,) = data
    return ((1e-4, 1e-3 * x.square().sum(dim=-1).sqrt()),)
