"""RMS normalisation of a residual sum, both results kept."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """Add the residual, then divide by the root of the mean square; both results are returned."""
    x, residual, weight = data
    h = x.float() + residual.float()
    scale = torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + 1e-6)
    return (h * scale * weight.float()).to(x.dtype), h.to(x.dtype)
'''
OUTPUTS: Final = ("normalised", "summed")
CORRECTNESS_CASES: Final = ({"rows": 33, "cols": 2048},)
SMALL_CASE: Final = {"rows": 16, "cols": 256}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x, residual, weight)``, bfloat16 [rows, cols], [rows, cols], [cols].

    Structured: rows of magnitudes over twelve octaves, some of them zero, and a few columns 50 times the rest.
    """
    import torch

    rows, cols = case["rows"], case["cols"]
    x = torch.randn((rows, cols), generator=gen, device=device)
    residual = torch.randn((rows, cols), generator=gen, device=device)
    weight = 1 + 0.2 * torch.randn((cols,), generator=gen, device=device)
    if variant == "structured":
        scale = torch.exp2(torch.arange(rows, device=device) % 13 - 6.0)
        scale[torch.arange(rows, device=device) % 17 == 3] = 0.0
        x, residual = x * scale[:, None], residual * scale[:, None]
        x[:, :: max(1, cols // 8)] *= 50
    return tuple(t.to(torch.bfloat16) for t in (x, residual, weight))


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=4 * n, bytes_written=4 * n, flops=6 * n)
