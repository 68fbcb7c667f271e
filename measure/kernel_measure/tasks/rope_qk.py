"""Rotary embedding of queries and keys."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("q", "k")
CORRECTNESS_CASES = (
    {"batch": 2, "time": 40, "heads": 4, "kv_heads": 2, "dim": 128, "layout": "half"},
    {"batch": 2, "time": 40, "heads": 4, "kv_heads": 2, "dim": 128, "layout": "interleaved"},
)
SMALL_CASE = {"batch": 1, "time": 16, "heads": 2, "kv_heads": 1, "dim": 32, "layout": "half"}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: positions that begin at 100,000, heads of their own magnitude.
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
