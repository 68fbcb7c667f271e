"""Transpose of every matrix of a batch, added to another."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """a transposed, plus b."""
    a, b = data
    return a.transpose(1, 2) + b
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 3, "rows": 65, "cols": 48},)
SMALL_CASE = {"batch": 2, "rows": 16, "cols": 24}


def make_input(case: Case, draw: Draw) -> Data:
    """``(a [batch, rows, cols], b [batch, cols, rows])``, bfloat16. Structured: matrices and rows of their own magnitude."""
    n, r, c = case["batch"], case["rows"], case["cols"]
    a = draw.randn(n, r, c, dtype=draw.torch.bfloat16)
    b = draw.randn(n, c, r, dtype=draw.torch.bfloat16)
    if draw.variant == "structured":
        a *= (draw.arange(n) % 6 - 3.0).exp2()[:, None, None].bfloat16()
        a[:, ::5] = 0
        b *= draw.linspace(0.1, 3.0, c)[:, None].bfloat16()
    return a, b


def work(case: Case) -> Work:
    n = case["batch"] * case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=2 * n, flops=n)
