"""Gradient of a 3 x 3 max pooling with stride 2."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("dx",)
CORRECTNESS_CASES = ({"batch": 2, "channels": 3, "height": 14, "width": 22},)
SMALL_CASE = {"batch": 1, "channels": 2, "height": 8, "width": 8}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: few distinct values, so that windows have ties; channels of their own magnitude.
    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    dy = draw.randn(b, c, h // 2, w // 2)
    if draw.variant == "structured":
        x = (x * 2).round() / 2
        dy *= draw.linspace(0.1, 4.0, c)[:, None, None]
    return x, dy
