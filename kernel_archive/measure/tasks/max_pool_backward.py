"""Gradient of a 3 x 3 max pooling with stride 2."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """Each window (3 x 3, stride 2, padding 1) gives its gradient to its largest value, the first of equal ones by row."""
    x, dy = data
    _, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    dx = torch.zeros_like(x).flatten(2)
    dx.scatter_add_(2, at.flatten(2), dy.flatten(2))
    return dx.view_as(x)
'''
OUTPUTS = ("dx",)
CORRECTNESS_CASES = ({"batch": 2, "channels": 3, "height": 14, "width": 22},)
SMALL_CASE = {"batch": 1, "channels": 2, "height": 8, "width": 8}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x f32 [batch, channels, height, width], dy f32 [batch, channels, height / 2, width / 2])``.

    Structured: few distinct values, so that windows have ties; channels of their own magnitude.
    """
    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    dy = draw.randn(b, c, h // 2, w // 2)
    if draw.variant == "structured":
        x = (x * 2).round() / 2
        dy *= draw.linspace(0.1, 4.0, c)[:, None, None]
    return x, dy


def work(case: Case) -> Work:
    n = case["batch"] * case["channels"] * case["height"] * case["width"]
    return Work(bytes_read=5 * n, bytes_written=4 * n, flops=n)
