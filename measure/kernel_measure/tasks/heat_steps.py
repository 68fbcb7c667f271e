"""Eight explicit steps of the heat equation."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("x",)
CORRECTNESS_CASES = ({"height": 70, "width": 133, "steps": 8},)
SMALL_CASE = {"height": 17, "width": 20, "steps": 3}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: a hot corner, stripes, a cold border.
    h, w = case["height"], case["width"]
    x = draw.randn(h, w)
    if draw.variant == "structured":
        x += draw.torch.where(draw.arange(w) // 3 % 2 == 0, 2.0, -2.0)
        x[: h // 4, : w // 4] += 20
        x[0], x[-1], x[:, 0], x[:, -1] = -5.0, -5.0, -5.0, -5.0
    return x, {"steps": case["steps"], "rate": 0.2}
