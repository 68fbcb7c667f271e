"""Causal attention, forward."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = (
    {"batch": 1, "heads": 3, "time": 192, "dim": 64},
    {"batch": 2, "heads": 2, "time": 128, "dim": 128},
)
SMALL_CASE = {"batch": 1, "heads": 2, "time": 64, "dim": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: heads of their own sharpness, values that grow with time.
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (draw.randn(b, h, t, d) for _ in range(3))
    if draw.variant == "structured":
        q *= draw.linspace(0.25, 3.0, h)[:, None, None]
        v *= draw.linspace(0.25, 2.0, t)[:, None]
        k[..., : d // 2] *= 0.5
    return tuple(x.bfloat16() for x in (q, k, v))
