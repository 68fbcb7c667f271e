"""Causal depthwise convolution of width 4 with SiLU."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 2, "channels": 48, "time": 130},)
SMALL_CASE = {"batch": 1, "channels": 8, "time": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: channels of their own magnitude, a jump in the middle of the time.
    b, d, t = case["batch"], case["channels"], case["time"]
    x = draw.randn(b, d, t)
    weight = draw.randn(d, 4) * 0.5
    bias = draw.randn(d)
    if draw.variant == "structured":
        x *= (draw.arange(d) % 7 - 3.0).exp2()[:, None]
        x[..., t // 2 :] += 2
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()
