"""SwiGLU activation."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """silu(gate) * up."""
    gate, up = data
    return F.silu(gate) * up
'''
OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = ({"rows": 37, "cols": 2816},)
SMALL_CASE: Final = {"rows": 8, "cols": 256}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(gate, up)``, bfloat16 [rows, cols]. Structured: rows over eight octaves, either sign dominating by halves."""
    import torch

    rows, cols = case["rows"], case["cols"]
    gate = torch.randn((rows, cols), generator=gen, device=device, dtype=torch.bfloat16)
    up = torch.randn((rows, cols), generator=gen, device=device, dtype=torch.bfloat16)
    if variant == "structured":
        scale = torch.exp2(torch.arange(rows, device=device) % 8 - 4.0)[:, None]
        half = torch.where(torch.arange(cols, device=device) < cols // 2, 3.0, -3.0)
        gate = (gate * scale + half).to(torch.bfloat16)
        up = (up * scale.flip(0)).to(torch.bfloat16)
    return gate, up


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=2 * n, flops=5 * n)
