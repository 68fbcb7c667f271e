"""Gated DeltaNet, chunk outputs: the carried state's part plus the causal part inside the chunk."""

from kernel_measure.tasks import gdn
from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("o",)
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    q, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    w, u = gdn.run("gdn_recompute_w_u", (k, v, beta, a, g))
    h, v_new = gdn.run("gdn_chunk_fwd_h", (k, w, u, g))
    return q, k, v_new, h, g
