"""Transpose of every matrix of a batch, added to another."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 3, "rows": 65, "cols": 48},)
SMALL_CASE = {"batch": 2, "rows": 16, "cols": 24}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: matrices and rows of their own magnitude.
    n, r, c = case["batch"], case["rows"], case["cols"]
    a = draw.randn(n, r, c, dtype=draw.torch.bfloat16)
    b = draw.randn(n, c, r, dtype=draw.torch.bfloat16)
    if draw.variant == "structured":
        a *= (draw.arange(n) % 6 - 3.0).exp2()[:, None, None].bfloat16()
        a[:, ::5] = 0
        b *= draw.linspace(0.1, 3.0, c)[:, None].bfloat16()
    return a, b
