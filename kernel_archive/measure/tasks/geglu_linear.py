"""Linear layer with a GEGLU epilogue."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Project to two halves; the first, through GELU, gates the second."""
    x, weight = data
    a, b = F.linear(x, weight).chunk(2, dim=-1)
    return F.gelu(a) * b
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"rows": 96, "inner": 512, "cols": 384},)
SMALL_CASE: Final = {"rows": 16, "inner": 64, "cols": 48}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x [rows, inner], weight [2 cols, inner])``, bfloat16. Structured: rows and output columns of their own magnitude."""
    import torch

    m, k, n = case["rows"], case["inner"], case["cols"]
    x = torch.randn((m, k), generator=gen, device=device)
    weight = torch.randn((2 * n, k), generator=gen, device=device) / k**0.5
    if variant == "structured":
        x *= torch.exp2(torch.arange(m, device=device) % 5 - 3.0)[:, None]
        weight *= torch.linspace(0.25, 1.0, 2 * n, device=device)[:, None]
        x[:, : k // 2] *= 0.5
    return x.to(torch.bfloat16), weight.to(torch.bfloat16)


def work(case: dict[str, Any]) -> Work:
    m, k, n = case["rows"], case["inner"], case["cols"]
    return Work(bytes_read=2 * (m * k + 2 * n * k), bytes_written=2 * m * n, flops=4 * m * n * k)
