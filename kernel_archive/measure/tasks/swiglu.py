"""SwiGLU activation."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """silu(gate) * up."""
    gate, up = data
    return F.silu(gate) * up
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"rows": 37, "cols": 2816},)
SMALL_CASE = {"rows": 8, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    """``(gate, up)``, bfloat16 [rows, cols]. Structured: rows over eight octaves, either sign dominating by halves."""
    rows, cols = case["rows"], case["cols"]
    gate = draw.randn(rows, cols, dtype=draw.torch.bfloat16)
    up = draw.randn(rows, cols, dtype=draw.torch.bfloat16)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 8 - 4.0).exp2()[:, None]
        half = draw.torch.where(draw.arange(cols) < cols // 2, 3.0, -3.0)
        gate = (gate * scale + half).bfloat16()
        up = (up * scale.flip(0)).bfloat16()
    return gate, up


def work(case: Case) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=2 * n, flops=5 * n)
