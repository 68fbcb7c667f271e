"""Gated DeltaNet, state recurrence over chunks: the state before every chunk, and the corrected values."""

from kernel_archive.measure.tasks import gdn
from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = gdn.REFERENCE_H
OUTPUTS = ("h", "v_new")
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    """``(k [B,T,H,K], w [B,T,H,K], u [B,T,H,V], g [B,T,H])``, float32; w and u come from the WY transform."""
    _, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    w, u = gdn.run(gdn.REFERENCE_WU, (k, v, beta, a, g))
    return k, w, u, g


def work(case: Case) -> Work:
    """Two products of K x V per step; the last chunk's update feeds nothing."""
    b, t, h, k, v = (case[n] for n in ("B", "T", "H", "K", "V"))
    rows = b * t * h
    return Work(
        bytes_read=4 * rows * (2 * k + v + 1) - 4 * b * gdn.CHUNK * h * (k + 1),
        bytes_written=4 * rows * v + 4 * b * (t // gdn.CHUNK) * h * k * v,
        flops=4 * (rows - b * gdn.CHUNK * h) * k * v,
    )
