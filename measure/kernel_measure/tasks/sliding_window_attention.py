"""Causal attention over a window and a few first keys."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 1, "heads": 2, "time": 320, "dim": 64, "window": 96, "sinks": 4},)
SMALL_CASE = {"batch": 1, "heads": 2, "time": 64, "dim": 32, "window": 16, "sinks": 4}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: heads of their own sharpness, loud first keys.
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (draw.randn(b, h, t, d) for _ in range(3))
    if draw.variant == "structured":
        q *= draw.linspace(0.25, 3.0, h)[:, None, None]
        k[:, :, : case["sinks"]] *= 2
        v *= draw.linspace(0.25, 2.0, t)[:, None]
    cfg = {"window": case["window"], "sinks": case["sinks"]}
    return *(x.bfloat16() for x in (q, k, v)), cfg
