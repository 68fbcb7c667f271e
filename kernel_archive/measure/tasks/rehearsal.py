"""A small task in NumPy: rehearses plans, searches and guards on a machine without GPU and without torch.

Its measurements are real times of a stand-in device; they are never archived as GPU measurements.
"""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import numpy as np


def reference(data):
    """Row softmax and its normaliser."""
    (x,) = data
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z
'''
FRAMEWORK: Final = "numpy"
OUTPUTS: Final = ("softmax", "normaliser")
BENCHMARK_CASES: Final = ({"rows": 64, "cols": 256}, {"rows": 128, "cols": 512})
CORRECTNESS_CASES: Final = ({"rows": 8, "cols": 64},)
SMALL_CASE: Final = {"rows": 8, "cols": 64}
RTOL: Final = 1e-6
ATOL: Final = 1e-9
STRESS: Final = True


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f64 [rows, cols],)``; structured: every row has its slope, odd and even columns differ.

    Stress: magnitudes at which an exponential overflows unless the row's maximum is taken off first.
    """
    del device
    import numpy as np

    x = gen.standard_normal((case["rows"], case["cols"]))
    if variant == "structured":
        x += np.linspace(-3, 3, case["rows"])[:, None] * np.linspace(-0.5, 0.5, case["cols"])
        x[:, ::2] += 1.5
    if variant == "stress":
        x *= 500
    return (x,)


def work(case: dict[str, Any]) -> Work:
    """One read, one write."""
    n = case["rows"] * case["cols"]
    return Work(bytes_read=8 * n, bytes_written=8 * n, flops=4 * n)
