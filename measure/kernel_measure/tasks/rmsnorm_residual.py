"""RMS normalisation of a residual sum, both results kept."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("normalised", "summed")
CORRECTNESS_CASES = ({"rows": 33, "cols": 2048},)
SMALL_CASE = {"rows": 16, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows of magnitudes over twelve octaves, some of them zero, and a few columns 50
    # times the rest.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    residual = draw.randn(rows, cols)
    weight = 1 + 0.2 * draw.randn(cols)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 13 - 6.0).exp2()
        scale[draw.arange(rows) % 17 == 3] = 0.0
        x, residual = x * scale[:, None], residual * scale[:, None]
        x[:, :: max(1, cols // 8)] *= 50
    return tuple(t.bfloat16() for t in (x, residual, weight))
