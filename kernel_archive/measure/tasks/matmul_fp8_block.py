"""Matrix product of 8-bit floats with block scales."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """(a * a_scale) @ (b * b_scale).T in bfloat16: a has a scale for every 128 of a row, b for every 128 x 128 block."""
    a, a_scale, b, b_scale = data
    wide_a = a.float() * a_scale.repeat_interleave(128, dim=1)
    wide_b = b.float() * b_scale.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    return wide_a.to(torch.bfloat16) @ wide_b.to(torch.bfloat16).T
'''
OUTPUTS = ("c",)
CORRECTNESS_CASES = ({"m": 64, "n": 256, "k": 384},)
SMALL_CASE = {"m": 32, "n": 128, "k": 128}


def make_input(case: Case, draw: Draw) -> Data:
    """``(a e4m3 [m, k], a_scale f32 [m, k / 128], b e4m3 [n, k], b_scale f32 [n / 128, k / 128])``.

    Structured: scales over eight octaves.
    """
    m, n, k = case["m"], case["n"], case["k"]
    a = draw.randn(m, k).to(draw.torch.float8_e4m3fn)
    b = draw.randn(n, k).to(draw.torch.float8_e4m3fn)
    a_scale = 0.5 + draw.rand(m, k // 128)
    b_scale = (0.5 + draw.rand(n // 128, k // 128)) / k**0.5
    if draw.variant == "structured":
        a_scale *= (draw.arange(m) % 8 - 6.0).exp2()[:, None]
        b_scale *= draw.linspace(0.1, 1.0, k // 128)
    return a, a_scale, b, b_scale


def work(case: Case) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    scales = m * (k // 128) + (n // 128) * (k // 128)
    return Work(
        bytes_read=m * k + n * k + 4 * scales, bytes_written=2 * m * n, flops=m * n * k
    )  # fp8 units: twice bf16
