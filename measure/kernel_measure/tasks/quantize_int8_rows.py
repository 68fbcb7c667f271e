"""Rows quantised to 8-bit integers by their largest magnitude."""

from kernel_measure.tasks.base import Bounds, Case, Data, Draw

OUTPUTS = ("q", "scale")
CORRECTNESS_CASES = ({"rows": 29, "cols": 1024},)
SMALL_CASE = {"rows": 9, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows over twenty octaves, rows of zeros, the largest value at any place.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        at = (draw.arange(rows) * 7919 % cols)[:, None]
        x.scatter_(1, at, -8.0)
        scale = (draw.arange(rows) % 20 - 10.0).exp2()
        scale[draw.arange(rows) % 23 == 7] = 0.0
        x *= scale[:, None]
    return (x.bfloat16(),)


def tolerances(data: Data) -> Bounds:
    """A quotient next to a half may round either way."""
    del data
    return (0.0, 1.0), (1e-5, 0.0)
