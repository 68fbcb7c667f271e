"""Matrix product of 8-bit floats with block scales."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """(a * a_scale) @ (b * b_scale).T in bfloat16: a has a scale for every 128 of a row, b for every 128 x 128 block."""
    a, a_scale, b, b_scale = data
    wide_a = a.float() * a_scale.repeat_interleave(128, dim=1)
    wide_b = b.float() * b_scale.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    return wide_a.to(torch.bfloat16) @ wide_b.to(torch.bfloat16).T
'''
OUTPUTS: Final = ("c",)
CORRECTNESS_CASES: Final = ({"m": 64, "n": 256, "k": 384},)
SMALL_CASE: Final = {"m": 32, "n": 128, "k": 128}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(a e4m3 [m, k], a_scale f32 [m, k / 128], b e4m3 [n, k], b_scale f32 [n / 128, k / 128])``.

    Structured: scales over eight octaves.
    """
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    a = torch.randn((m, k), generator=gen, device=device).to(torch.float8_e4m3fn)
    b = torch.randn((n, k), generator=gen, device=device).to(torch.float8_e4m3fn)
    a_scale = 0.5 + torch.rand((m, k // 128), generator=gen, device=device)
    b_scale = (0.5 + torch.rand((n // 128, k // 128), generator=gen, device=device)) / k**0.5
    if variant == "structured":
        a_scale *= torch.exp2(torch.arange(m, device=device) % 8 - 6.0)[:, None]
        b_scale *= torch.linspace(0.1, 1.0, k // 128, device=device)
    return a, a_scale, b, b_scale


def work(case: dict[str, Any]) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    scales = m * (k // 128) + (n // 128) * (k // 128)
    return Work(
        bytes_read=m * k + n * k + 4 * scales, bytes_written=2 * m * n, flops=m * n * k
    )  # fp8 units: twice bf16
