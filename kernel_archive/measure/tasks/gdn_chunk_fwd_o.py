"""Gated DeltaNet, chunk outputs: the carried state's part plus the causal part inside the chunk."""

from kernel_archive.measure.tasks import gdn
from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = gdn.REFERENCE_O
OUTPUTS = ("o",)
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    """``(q, k [B,T,H,K], v_new [B,T,H,V], h [B,T/64,H,K,V], g [B,T,H])``, float32; h and v_new from the recurrence."""
    q, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    w, u = gdn.run(gdn.REFERENCE_WU, (k, v, beta, a, g))
    h, v_new = gdn.run(gdn.REFERENCE_H, (k, w, u, g))
    return q, k, v_new, h, g


def work(case: Case) -> Work:
    """The carried product in full, the causal ones by half."""
    b, t, h, k, v = (case[n] for n in ("B", "T", "H", "K", "V"))
    rows = b * t * h
    return Work(
        bytes_read=4 * rows * (2 * k + v + 1) + 4 * b * (t // gdn.CHUNK) * h * k * v,
        bytes_written=4 * rows * v,
        flops=2 * rows * k * v + rows * gdn.CHUNK * (k + v),
    )
