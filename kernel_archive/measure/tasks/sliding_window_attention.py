"""Causal attention over a window and a few first keys."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """Query i sees key j when j <= i and (i - j < window or j < sinks); scale 1 / sqrt(dim)."""
    q, k, v, cfg = data
    i = torch.arange(q.shape[2], device=q.device)
    distance = i[:, None] - i[None, :]
    seen = (distance >= 0) & ((distance < cfg["window"]) | (i[None, :] < cfg["sinks"]))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 1, "heads": 2, "time": 320, "dim": 64, "window": 96, "sinks": 4},)
SMALL_CASE = {"batch": 1, "heads": 2, "time": 64, "dim": 32, "window": 16, "sinks": 4}


def make_input(case: Case, draw: Draw) -> Data:
    """``(q, k, v, {"window", "sinks"})``, bfloat16 [batch, heads, time, dim]. Structured: heads of their own sharpness, loud first keys."""
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (draw.randn(b, h, t, d) for _ in range(3))
    if draw.variant == "structured":
        q *= draw.linspace(0.25, 3.0, h)[:, None, None]
        k[:, :, : case["sinks"]] *= 2
        v *= draw.linspace(0.25, 2.0, t)[:, None]
    cfg = {"window": case["window"], "sinks": case["sinks"]}
    return *(x.bfloat16() for x in (q, k, v)), cfg


def work(case: Case) -> Work:
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    pairs = t * min(t, case["window"]) - min(t, case["window"]) ** 2 // 2
    return Work(bytes_read=6 * b * h * t * d, bytes_written=2 * b * h * t * d, flops=4 * b * h * pairs * d)
