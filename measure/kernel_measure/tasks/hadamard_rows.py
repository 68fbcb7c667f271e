"""Walsh-Hadamard transform of every row."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("y",)
CORRECTNESS_CASES = ({"rows": 21, "cols": 1024},)
SMALL_CASE = {"rows": 6, "cols": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows over several octaves, sparse rows, constant rows.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x[::3, : cols // 2] = 0
        x[1::7] = 1
        x *= (draw.arange(rows) % 5 - 3.0).exp2()[:, None]
    return (x.bfloat16(),)
