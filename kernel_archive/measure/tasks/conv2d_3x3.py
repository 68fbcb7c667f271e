"""3 x 3 convolution in bfloat16."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """Convolution with padding 1, stride 1."""
    x, weight = data
    return F.conv2d(x, weight, padding=1)
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 2, "in": 32, "out": 64, "height": 20, "width": 28},)
SMALL_CASE = {"batch": 1, "in": 16, "out": 16, "height": 8, "width": 8}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x [batch, in, height, width], weight [out, in, 3, 3])``, bfloat16, contiguous. Structured: channels of their own magnitude, bright borders."""
    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    weight = draw.randn(o, c, 3, 3) / (9 * c) ** 0.5
    if draw.variant == "structured":
        x *= draw.linspace(0.1, 2.0, c)[:, None, None]
        x[..., 0, :] *= 3
        x[..., -1] *= 3
        weight *= draw.linspace(0.5, 1.5, 9).reshape(3, 3)
    return x.bfloat16(), weight.bfloat16()


def work(case: Case) -> Work:
    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    return Work(
        bytes_read=2 * (b * c * h * w + 9 * o * c), bytes_written=2 * b * o * h * w, flops=8 * b * o * h * w * c
    )
