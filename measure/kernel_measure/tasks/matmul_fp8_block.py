"""Matrix product of 8-bit floats with block scales."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("c",)
CORRECTNESS_CASES = ({"m": 64, "n": 256, "k": 384},)
SMALL_CASE = {"m": 32, "n": 128, "k": 128}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: scales over eight octaves.
    m, n, k = case["m"], case["n"], case["k"]
    a = draw.randn(m, k).to(draw.torch.float8_e4m3fn)
    b = draw.randn(n, k).to(draw.torch.float8_e4m3fn)
    a_scale = 0.5 + draw.rand(m, k // 128)
    b_scale = (0.5 + draw.rand(n // 128, k // 128)) / k**0.5
    if draw.variant == "structured":
        a_scale *= (draw.arange(m) % 8 - 6.0).exp2()[:, None]
        b_scale *= draw.linspace(0.1, 1.0, k // 128)
    return a, a_scale, b, b_scale
