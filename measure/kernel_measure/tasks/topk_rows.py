"""The largest 64 values of every row, in order."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("values",)
CORRECTNESS_CASES = ({"rows": 17, "cols": 4096},)
SMALL_CASE = {"rows": 4, "cols": 512}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: many equal values, rows that fall or rise, negative rows.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        slope = draw.linspace(-4.0, 4.0, rows)[:, None] * draw.linspace(-1.0, 1.0, cols)
        x = ((x + slope) * 4).round() / 4
        x[rows // 2 :] -= 100
    return (x,)
