"""Causal attention over a window and a few first keys."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Query i sees key j when j <= i and (i - j < window or j < sinks); scale 1 / sqrt(dim)."""
    q, k, v, cfg = data
    i = torch.arange(q.shape[2], device=q.device)
    distance = i[:, None] - i[None, :]
    seen = (distance >= 0) & ((distance < cfg["window"]) | (i[None, :] < cfg["sinks"]))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"batch": 1, "heads": 2, "time": 320, "dim": 64, "window": 96, "sinks": 4},)
SMALL_CASE: Final = {"batch": 1, "heads": 2, "time": 64, "dim": 32, "window": 16, "sinks": 4}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(q, k, v, {"window", "sinks"})``, bfloat16 [batch, heads, time, dim]. Structured: heads of their own sharpness, loud first keys."""
    import torch

    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (torch.randn((b, h, t, d), generator=gen, device=device) for _ in range(3))
    if variant == "structured":
        q *= torch.linspace(0.25, 3.0, h, device=device)[:, None, None]
        k[:, :, : case["sinks"]] *= 2
        v *= torch.linspace(0.25, 2.0, t, device=device)[:, None]
    cfg = {"window": case["window"], "sinks": case["sinks"]}
    return *(x.to(torch.bfloat16) for x in (q, k, v)), cfg


def work(case: dict[str, Any]) -> Work:
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    pairs = t * min(t, case["window"]) - min(t, case["window"]) ** 2 // 2
    return Work(bytes_read=6 * b * h * t * d, bytes_written=2 * b * h * t * d, flops=4 * b * h * pairs * d)
