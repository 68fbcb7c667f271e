"""Softened gravity of many bodies."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("acceleration",)
CORRECTNESS_CASES = ({"n": 1000},)
SMALL_CASE = {"n": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: two clusters, one of them heavy, and far bodies.
    n = case["n"]
    position = draw.randn(n, 3)
    mass = (0.5 + draw.rand(n)) / n
    if draw.variant == "structured":
        position[: n // 2] = position[: n // 2] * 0.5 + 2
        mass[: n // 2] *= 2
        position[::97] *= 10
    return position, mass
