"""Gated DeltaNet, state recurrence over chunks."""

from kernel_measure.tasks import gdn
from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("h", "v_new")
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    _, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    w, u = gdn.run("gdn_recompute_w_u", (k, v, beta, a, g))
    return k, w, u, g
