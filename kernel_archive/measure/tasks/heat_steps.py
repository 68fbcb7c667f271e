"""Eight explicit steps of the heat equation."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Steps of x += rate * (sum of the four neighbours - 4 x) inside; the border keeps its values."""
    x, cfg = data
    for _ in range(cfg["steps"]):
        y = x.clone()
        neighbours = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        y[1:-1, 1:-1] = x[1:-1, 1:-1] + cfg["rate"] * (neighbours - 4 * x[1:-1, 1:-1])
        x = y
    return x
'''
OUTPUTS = ("x",)
CORRECTNESS_CASES = ({"height": 70, "width": 133, "steps": 8},)
SMALL_CASE = {"height": 17, "width": 20, "steps": 3}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x f32 [height, width], {"steps", "rate"})``. Structured: a hot corner, stripes, a cold border."""
    h, w = case["height"], case["width"]
    x = draw.randn(h, w)
    if draw.variant == "structured":
        x += draw.torch.where(draw.arange(w) // 3 % 2 == 0, 2.0, -2.0)
        x[: h // 4, : w // 4] += 20
        x[0], x[-1], x[:, 0], x[:, -1] = -5.0, -5.0, -5.0, -5.0
    return x, {"steps": case["steps"], "rate": 0.2}


def work(case: Case) -> Work:
    n = case["height"] * case["width"]
    return Work(bytes_read=4 * n, bytes_written=4 * n, flops=6 * n * case["steps"])
