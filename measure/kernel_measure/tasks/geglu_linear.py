"""Linear layer with a GEGLU epilogue."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"rows": 96, "inner": 512, "cols": 384},)
SMALL_CASE = {"rows": 16, "inner": 64, "cols": 48}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows and output columns of their own magnitude.
    m, k, n = case["rows"], case["inner"], case["cols"]
    x = draw.randn(m, k)
    weight = draw.randn(2 * n, k) / k**0.5
    if draw.variant == "structured":
        x *= (draw.arange(m) % 5 - 3.0).exp2()[:, None]
        weight *= draw.linspace(0.25, 1.0, 2 * n)[:, None]
        x[:, : k // 2] *= 0.5
    return x.bfloat16(), weight.bfloat16()
