"""Gradients of a layer normalisation."""

from kernel_archive.measure.tasks.base import Bounds, Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Gradients with respect to the input, the weight and the bias."""
    x, dy, weight, mean, rstd = data
    xhat = (x.float() - mean[:, None]) * rstd[:, None]
    g = dy.float()
    wdy = g * weight
    c1 = (xhat * wdy).mean(dim=-1, keepdim=True)
    c2 = wdy.mean(dim=-1, keepdim=True)
    dx = ((wdy - xhat * c1 - c2) * rstd[:, None]).to(x.dtype)
    return dx, (g * xhat).sum(dim=0), g.sum(dim=0)
'''
OUTPUTS = ("dx", "dweight", "dbias")
CORRECTNESS_CASES = ({"rows": 70, "cols": 1024},)
SMALL_CASE = {"rows": 24, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x, dy, weight, mean, rstd)``: bfloat16 [rows, cols] twice, float32 [cols], float32 [rows] twice.

    Structured: rows of ``dy`` over nine octaves, columns that carry most of it, rows of zeros.
    """
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols) * 2 + 0.5
    dy = draw.randn(rows, cols)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 9 - 6.0).exp2()
        scale[draw.arange(rows) % 19 == 5] = 0.0
        dy = dy * scale[:, None]
        dy[:, :: max(1, cols // 8)] *= 16
    x, dy = x.bfloat16(), dy.bfloat16()
    weight = 1 + 0.2 * draw.randn(cols)
    wide = x.float()
    rstd = (wide.var(dim=-1, unbiased=False) + 1e-5).rsqrt()
    return x, dy, weight, wide.mean(dim=-1), rstd


def work(case: Case) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n + 8 * case["rows"], bytes_written=2 * n + 8 * case["cols"], flops=12 * n)


TOLERANCE_NOTE = (
    "dx: atol 1e-2 + rtol 2e-2; dweight, dbias: rtol 1e-3 + 1e-3 of the root of the column's sum of squares"
)


def tolerances(data: Data) -> Bounds:
    """Sums over thousands of rows cancel: their error goes with the root of the sum of squares, not with the sum."""
    x, dy, _, mean, rstd = data
    g = dy.float()
    size = (g * ((x.float() - mean[:, None]) * rstd[:, None])).square().sum(dim=0).sqrt()
    return (2e-2, 1e-2), (1e-3, 1e-3 * size), (1e-3, 1e-3 * g.square().sum(dim=0).sqrt())
