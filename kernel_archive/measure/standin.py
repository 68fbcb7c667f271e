"""The stand-in device: NumPy on the host, for rehearsals and tests without a GPU and without torch."""

from __future__ import annotations

import time
from typing import Any

from kernel_archive.measure.device import Device, difference_text


class StandIn(Device):
    """NumPy on the host: the same protocol without a GPU. Its times are of this machine and are never archived."""

    def __init__(self) -> None:
        import numpy as np

        super().__init__("standin", np.ndarray, np.ndarray.copy)
        self._np = np
        self._isclose, self._equal = np.isclose, np.array_equal

    def seed(self, seed: int) -> None:
        """Seed NumPy's global generator (a candidate may use it)."""
        self._np.random.seed(seed % 2**32)

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Leave freed memory full of NaN, so that an unwritten output can't hold an earlier result."""
        del flush
        poison = [self._np.full(e.shape, self._np.nan) for e in expected]
        del poison

    def signature(self, value: Any) -> tuple[str, tuple[int, ...], str]:
        """Type, shape and dtype, as text."""
        return "ndarray", tuple(value.shape), str(value.dtype)

    def storage(self, value: Any) -> int:
        """The address of the memory that it lies in."""
        base = value
        while isinstance(base.base, self._array):
            base = base.base
        return int(base.__array_interface__["data"][0])

    def equal(self, a: Any, b: Any) -> bool:
        """Bitwise equality, NaN equal to NaN."""
        return bool(self._equal(a, b, equal_nan=True))

    def difference(self, got: Any, expected: Any, rtol: float, atol: Any) -> str | None:
        """What is outside the tolerance, in words; ``None`` when nothing is."""
        by_row = atol if isinstance(atol, int | float) else atol.reshape(-1, *[1] * (expected.ndim - 1))
        near = self._isclose(got, expected, rtol=rtol, atol=by_row)
        bad = int((~near).sum())
        if not bad:
            return None
        worst = float(self._np.nanmax(abs(got - expected)))
        return difference_text(bad, got.size, rtol, atol, worst, int(self._np.isnan(got).sum()))

    def sample_wrong(self, got: Any, expected: Any, rtol: float, atol: Any, seed: int) -> Any:
        """Whether a sample of elements is outside the tolerance."""
        at = self._np.random.default_rng(seed).integers(0, expected.size, 256)
        if not isinstance(atol, int | float):
            atol = atol[at // (expected.size // len(expected))]
        return not self._isclose(got.reshape(-1)[at], expected.reshape(-1)[at], rtol=rtol, atol=atol).all()

    def watched(self) -> dict[str, Any]:
        """NumPy and Python's clocks."""
        return {"numpy": self._np, "time": time}

    def facts(self) -> dict[str, Any]:
        """What is recorded of the device."""
        import platform

        return {
            "device_properties": {"name": "standin", "compute_capability": None},
            "software": {"python": platform.python_version(), "numpy": self._np.__version__},
        }
