"""Gradients of a layer normalisation."""

from kernel_measure.tasks.base import Bounds, Case, Data, Draw

OUTPUTS = ("dx", "dweight", "dbias")
CORRECTNESS_CASES = ({"rows": 70, "cols": 1024},)
SMALL_CASE = {"rows": 24, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows of ``dy`` over nine octaves, columns that carry most of it, rows of zeros.
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


def tolerances(data: Data) -> Bounds:
    """Sums over thousands of rows cancel."""
    x, dy, _, mean, rstd = data
    g = dy.float()
    size = (g * ((x.float() - mean[:, None]) * rstd[:, None])).square().sum(dim=0).sqrt()
    return (2e-2, 1e-2), (1e-3, 1e-3 * size), (1e-3, 1e-3 * g.square().sum(dim=0).sqrt())
