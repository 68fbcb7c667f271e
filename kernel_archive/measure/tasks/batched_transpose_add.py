"""Transpose of every matrix of a batch, added to another."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """a transposed, plus b."""
    a, b = data
    return a.transpose(1, 2) + b
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"batch": 3, "rows": 65, "cols": 48},)
SMALL_CASE: Final = {"batch": 2, "rows": 16, "cols": 24}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(a [batch, rows, cols], b [batch, cols, rows])``, bfloat16. Structured: matrices and rows of their own magnitude."""
    import torch

    n, r, c = case["batch"], case["rows"], case["cols"]
    a = torch.randn((n, r, c), generator=gen, device=device, dtype=torch.bfloat16)
    b = torch.randn((n, c, r), generator=gen, device=device, dtype=torch.bfloat16)
    if variant == "structured":
        a *= torch.exp2(torch.arange(n, device=device) % 6 - 3.0)[:, None, None].to(torch.bfloat16)
        a[:, ::5] = 0
        b *= torch.linspace(0.1, 3.0, c, device=device)[:, None].to(torch.bfloat16)
    return a, b


def work(case: dict[str, Any]) -> Work:
    n = case["batch"] * case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=2 * n, flops=n)
