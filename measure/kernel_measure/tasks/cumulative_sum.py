"""Inclusive prefix sum of every row."""

from kernel_measure.tasks.base import Bounds, Case, Data, Draw

OUTPUTS = ("sums",)
CORRECTNESS_CASES = ({"rows": 5, "cols": 5000},)
SMALL_CASE = {"rows": 3, "cols": 700}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows of their own offset, blocks that cancel, a few large values.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x += draw.linspace(-0.5, 0.5, rows)[:, None]
        x *= draw.torch.where(draw.arange(cols) // 1000 % 2 == 0, 1.0, -0.25)
        x[:, :: max(1, cols // 7)] *= 100
    return (x,)


def tolerances(data: Data) -> Bounds:
    """Scale atol with the root of the summed squares: errors of either sign grow so."""
    (x,) = data
    return ((1e-4, 1e-3 * x.square().sum(dim=-1).sqrt()),)
