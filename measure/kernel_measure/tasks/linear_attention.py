"""Linear attention with a decay for every head."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 1, "heads": 3, "time": 256},)
SMALL_CASE = {"batch": 1, "heads": 2, "time": 128}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: heads from 0.5 to 0.9999, values that grow with time.
    b, h, t = case["batch"], case["heads"], case["time"]
    q, k, v = (draw.randn(b, h, t, 64) / 4 for _ in range(3))
    decay = draw.linspace(0.9, 0.999, h)
    if draw.variant == "structured":
        decay = 1 - draw.logspace(-0.301, -4, h)
        v *= draw.linspace(0.1, 2.0, t)[:, None]
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), decay
