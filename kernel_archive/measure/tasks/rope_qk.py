"""Rotary embedding of queries and keys."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Rotate pairs of features by the angle of their position.

    Layout "half" pairs feature i with i + dim / 2, layout "interleaved" pairs 2 i with 2 i + 1.
    """
    q, k, cos, sin, cfg = data
    c, s = cos[None, :, None, :], sin[None, :, None, :]

    def rotate(x):
        if cfg["layout"] == "half":
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat((a * c - b * s, a * s + b * c), dim=-1).to(x.dtype)
        a, b = x.float()[..., 0::2], x.float()[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2).to(x.dtype)

    return rotate(q), rotate(k)
'''
OUTPUTS = ("q", "k")
CORRECTNESS_CASES = (
    {"batch": 2, "time": 40, "heads": 4, "kv_heads": 2, "dim": 128, "layout": "half"},
    {"batch": 2, "time": 40, "heads": 4, "kv_heads": 2, "dim": 128, "layout": "interleaved"},
)
SMALL_CASE = {"batch": 1, "time": 16, "heads": 2, "kv_heads": 1, "dim": 32, "layout": "half"}


def make_input(case: Case, draw: Draw) -> Data:
    """``(q bf16 [batch, time, heads, dim], k bf16 [batch, time, kv_heads, dim], cos, sin f32 [time, dim / 2], {"layout"})``.

    Structured: positions that begin at 100,000, heads of their own magnitude.
    """
    b, t, h, kv, d = case["batch"], case["time"], case["heads"], case["kv_heads"], case["dim"]
    q = draw.randn(b, t, h, d)
    k = draw.randn(b, t, kv, d)
    first = 0.0
    if draw.variant == "structured":
        first = 100_000.0
        q *= draw.linspace(0.1, 4.0, h)[:, None]
        k *= draw.linspace(4.0, 0.1, d)
    inverse = 10_000.0 ** (-draw.arange(0, d, 2) / d)
    angle = (draw.arange(t) + first)[:, None] * inverse
    return q.bfloat16(), k.bfloat16(), angle.cos(), angle.sin(), {"layout": case["layout"]}


def work(case: Case) -> Work:
    n = case["batch"] * case["time"] * (case["heads"] + case["kv_heads"]) * case["dim"]
    return Work(bytes_read=2 * n + 4 * case["time"] * case["dim"], bytes_written=2 * n, flops=3 * n)
