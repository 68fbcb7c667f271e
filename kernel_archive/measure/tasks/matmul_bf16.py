"""Matrix product in bfloat16."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """a @ b."""
    a, b = data
    return a @ b
'''
OUTPUTS: Final = ("c",)
CORRECTNESS_CASES: Final = ({"m": 128, "n": 256, "k": 192},)
SMALL_CASE: Final = {"m": 32, "n": 48, "k": 64}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(a [m, k], b [k, n])``, bfloat16. Structured: rows of a and columns of b over several octaves, the inner halves unlike."""
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    a = torch.randn((m, k), generator=gen, device=device)
    b = torch.randn((k, n), generator=gen, device=device) / k**0.5
    if variant == "structured":
        a *= torch.exp2(torch.arange(m, device=device) % 4 - 3.0)[:, None]
        b *= torch.linspace(0.125, 1.0, n, device=device)
        b[: k // 2] *= 0.25
    return a.to(torch.bfloat16), b.to(torch.bfloat16)


def work(case: dict[str, Any]) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    return Work(bytes_read=2 * (m * k + k * n), bytes_written=2 * m * n, flops=2 * m * n * k)
