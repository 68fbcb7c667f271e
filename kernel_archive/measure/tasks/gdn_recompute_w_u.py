"""Gated DeltaNet, WY transform: ``u = A (beta v)``, ``w = A (beta exp(g) k)`` inside every chunk."""

from kernel_archive.measure.tasks import gdn
from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = gdn.REFERENCE_WU
OUTPUTS = ("w", "u")
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    """``(k [B,T,H,K], v [B,T,H,V], beta [B,T,H], A [B,T,H,64], g [B,T,H])``, float32."""
    _, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    return k, v, beta, a, g


def work(case: Case) -> Work:
    """A is lower triangular: half of the products count."""
    b, t, h, k, v = (case[n] for n in ("B", "T", "H", "K", "V"))
    rows = b * t * h
    return Work(
        bytes_read=4 * rows * (k + v + gdn.CHUNK // 2 + 2),
        bytes_written=4 * rows * (k + v),
        flops=rows * gdn.CHUNK * (k + v),
    )
