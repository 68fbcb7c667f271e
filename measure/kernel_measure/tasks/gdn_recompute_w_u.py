"""Gated DeltaNet, WY transform."""

from kernel_measure.tasks import gdn
from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("w", "u")
CORRECTNESS_CASES = gdn.CORRECTNESS_CASES
SMALL_CASE = gdn.SMALL_CASE


def make_input(case: Case, draw: Draw) -> Data:
    _, k, v, beta, a, g = gdn.chunk_inputs(case, draw)
    return k, v, beta, a, g
