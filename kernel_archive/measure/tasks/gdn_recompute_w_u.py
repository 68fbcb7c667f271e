"""Gated DeltaNet, WY transform: ``u = A (beta v)``, ``w = A (beta exp(g) k)`` inside every chunk."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks import gdn
from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = gdn.REFERENCE_WU
OUTPUTS: Final = ("w", "u")
CORRECTNESS_CASES: Final = gdn.CORRECTNESS_CASES
SMALL_CASE: Final = gdn.SMALL_CASE


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(k [B,T,H,K], v [B,T,H,V], beta [B,T,H], A [B,T,H,64], g [B,T,H])``, float32."""
    _, k, v, beta, a, g = gdn.chunk_inputs(case, gen, variant, device)
    return k, v, beta, a, g


def work(case: dict[str, Any]) -> Work:
    """A is lower triangular: half of the products count."""
    b, t, h, k, v = (case[n] for n in ("B", "T", "H", "K", "V"))
    rows = b * t * h
    return Work(
        bytes_read=4 * rows * (k + v + gdn.CHUNK // 2 + 2),
        bytes_written=4 * rows * (k + v),
        flops=rows * gdn.CHUNK * (k + v),
    )
