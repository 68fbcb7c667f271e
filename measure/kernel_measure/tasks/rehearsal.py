"""A small task in NumPy.

Its measurements are real times of a stand-in device; they are never archived as GPU measurements.
"""

from kernel_measure.tasks.base import Case, Data, Draw

REFERENCE = '''import numpy as np


def reference(data):
    """Row softmax and its normaliser."""
    (x,) = data
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z
'''
FRAMEWORK = "numpy"
OUTPUTS = ("softmax", "normaliser")
BENCHMARK_CASES = ({"rows": 64, "cols": 256}, {"rows": 128, "cols": 512})
CORRECTNESS_CASES = ({"rows": 8, "cols": 64},)
SMALL_CASE = {"rows": 8, "cols": 64}
RTOL = 1e-6
ATOL = 1e-9
STRESS = True


def make_input(case: Case, draw: Draw) -> Data:
    """``(x f64 [rows, cols],)``.

    Stress: magnitudes at which an exponential overflows unless the row's maximum is taken off
    first.
    """
    import numpy as np

    x = draw.numpy.standard_normal((case["rows"], case["cols"]))
    if draw.variant == "structured":
        x += np.linspace(-3, 3, case["rows"])[:, None] * np.linspace(-0.5, 0.5, case["cols"])
        x[:, ::2] += 1.5
    if draw.variant == "stress":
        x *= 500
    return (x,)
