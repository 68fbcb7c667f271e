"""Causal depthwise convolution of width 4 with SiLU."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """Each channel with its own four taps over the present and the three steps before; then SiLU."""
    x, weight, bias = data
    y = F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=x.shape[1])
    return F.silu(y)
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 2, "channels": 48, "time": 130},)
SMALL_CASE = {"batch": 1, "channels": 8, "time": 64}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x bf16 [batch, channels, time], weight bf16 [channels, 4], bias bf16 [channels])``.

    Structured: channels of their own magnitude, a jump in the middle of the time.
    """
    b, d, t = case["batch"], case["channels"], case["time"]
    x = draw.randn(b, d, t)
    weight = draw.randn(d, 4) * 0.5
    bias = draw.randn(d)
    if draw.variant == "structured":
        x *= (draw.arange(d) % 7 - 3.0).exp2()[:, None]
        x[..., t // 2 :] += 2
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()


def work(case: Case) -> Work:
    n = case["batch"] * case["channels"] * case["time"]
    return Work(bytes_read=2 * n, bytes_written=2 * n, flops=8 * n)
