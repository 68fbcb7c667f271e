"""Causal attention, forward."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Causal softmax attention, scale 1 / sqrt(dim)."""
    q, k, v = data
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = (
    {"batch": 1, "heads": 3, "time": 192, "dim": 64},
    {"batch": 2, "heads": 2, "time": 128, "dim": 128},
)
SMALL_CASE: Final = {"batch": 1, "heads": 2, "time": 64, "dim": 64}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(q, k, v)``, bfloat16 [batch, heads, time, dim]. Structured: heads of their own sharpness, values that grow with time."""
    import torch

    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (torch.randn((b, h, t, d), generator=gen, device=device) for _ in range(3))
    if variant == "structured":
        q *= torch.linspace(0.25, 3.0, h, device=device)[:, None, None]
        v *= torch.linspace(0.25, 2.0, t, device=device)[:, None]
        k[..., : d // 2] *= 0.5
    return tuple(x.to(torch.bfloat16) for x in (q, k, v))


def work(case: dict[str, Any]) -> Work:
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    return Work(bytes_read=6 * b * h * t * d, bytes_written=2 * b * h * t * d, flops=2 * b * h * t * t * d)
