"""The largest 64 values of every row, in order."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """The 64 largest values of each row from the largest on; equal values stand as often as they occur."""
    (x,) = data
    return torch.topk(x, 64, dim=-1).values
'''
OUTPUTS: Final = ("values",)
CORRECTNESS_CASES: Final = ({"rows": 17, "cols": 4096},)
SMALL_CASE: Final = {"rows": 4, "cols": 512}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f32 [rows, cols],)``. Structured: many equal values, rows that fall or rise, negative rows."""
    import torch

    rows, cols = case["rows"], case["cols"]
    x = torch.randn((rows, cols), generator=gen, device=device)
    if variant == "structured":
        slope = torch.linspace(-4.0, 4.0, rows, device=device)[:, None] * torch.linspace(-1.0, 1.0, cols, device=device)
        x = ((x + slope) * 4).round() / 4
        x[rows // 2 :] -= 100
    return (x,)


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=4 * 64 * case["rows"], flops=n)
