"""Group normalisation with SiLU."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = (
    {"batch": 2, "channels": 64, "height": 12, "width": 12, "groups": 8, "layout": "first"},
    {"batch": 2, "channels": 64, "height": 12, "width": 12, "groups": 8, "layout": "last"},
)
SMALL_CASE = {"batch": 1, "channels": 16, "height": 6, "width": 6, "groups": 4, "layout": "first"}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: channels of their own offset and magnitude, images of their own contrast.
    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    weight = 1 + 0.2 * draw.randn(c)
    bias = 0.2 * draw.randn(c)
    if draw.variant == "structured":
        x = (
            x * draw.linspace(0.2, 3.0, c)[:, None, None]
            + draw.linspace(-3.0, 3.0, c)[:, None, None]
        )
        x *= (draw.arange(b) % 5 - 2.0).exp2()[:, None, None, None]
    x = x.bfloat16()
    if case["layout"] == "last":
        x = x.to(memory_format=draw.torch.channels_last)
    return x, weight, bias, {"groups": case["groups"]}
