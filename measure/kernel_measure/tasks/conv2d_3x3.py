"""3 x 3 convolution in bfloat16."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 2, "in": 32, "out": 64, "height": 20, "width": 28},)
SMALL_CASE = {"batch": 1, "in": 16, "out": 16, "height": 8, "width": 8}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: channels of their own magnitude, bright borders.
    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    weight = draw.randn(o, c, 3, 3) / (9 * c) ** 0.5
    if draw.variant == "structured":
        x *= draw.linspace(0.1, 2.0, c)[:, None, None]
        x[..., 0, :] *= 3
        x[..., -1] *= 3
        weight *= draw.linspace(0.5, 1.5, 9).reshape(3, 3)
    return x.bfloat16(), weight.bfloat16()
