"""Inclusive prefix sum of every row."""

from kernel_archive.measure.tasks.base import Bounds, Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Inclusive sum along the rows."""
    (x,) = data
    return torch.cumsum(x, dim=-1)
'''
OUTPUTS = ("sums",)
CORRECTNESS_CASES = ({"rows": 5, "cols": 5000},)
SMALL_CASE = {"rows": 3, "cols": 700}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x f32 [rows, cols],)``. Structured: rows of their own offset, blocks that cancel, a few large values."""
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x += draw.linspace(-0.5, 0.5, rows)[:, None]
        x *= draw.torch.where(draw.arange(cols) // 1000 % 2 == 0, 1.0, -0.25)
        x[:, :: max(1, cols // 7)] *= 100
    return (x,)


def work(case: Case) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=4 * n, flops=n)


TOLERANCE_NOTE = "rtol 1e-4 + 1e-3 of the root of the row's sum of squares"


def tolerances(data: Data) -> Bounds:
    """A sum of thousands of values of either sign has an error that goes with the root of their sum of squares."""
    (x,) = data
    return ((1e-4, 1e-3 * x.square().sum(dim=-1).sqrt()),)
