"""Matrix product in bfloat16."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("c",)
CORRECTNESS_CASES = ({"m": 128, "n": 256, "k": 192},)
SMALL_CASE = {"m": 32, "n": 48, "k": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows of a and columns of b over several octaves, the inner halves unlike.
    m, n, k = case["m"], case["n"], case["k"]
    a = draw.randn(m, k)
    b = draw.randn(k, n) / k**0.5
    if draw.variant == "structured":
        a *= (draw.arange(m) % 4 - 3.0).exp2()[:, None]
        b *= draw.linspace(0.125, 1.0, n)
        b[: k // 2] *= 0.25
    return a.bfloat16(), b.bfloat16()
