"""Counts of byte values."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("counts",)
CORRECTNESS_CASES = ({"n": 100003, "skew": False}, {"n": 65536, "skew": True})
SMALL_CASE = {"n": 5000, "skew": False}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: long runs of one value, values that never occur.
    n = case["n"]
    u = draw.rand(n)
    if case["skew"]:
        u = u**6
    if draw.variant == "structured":
        u = draw.torch.where(draw.arange(n) // 4096 % 3 == 0, 0.3, u * 0.8)
    return ((u * 256).clamp(max=255).to(draw.torch.uint8),)
