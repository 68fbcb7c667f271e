"""The stand-in device: NumPy on the host, for rehearsals and tests without a GPU and without torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kernel_archive.measure.device import Sample, difference_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StandIn"]

_clock = time.perf_counter_ns


class StandIn:
    """NumPy on the host: the same protocol without a GPU. Its times are of this machine and are never archived."""

    timer_is_host = True

    def __init__(self) -> None:
        import numpy as np

        self.name = "standin"
        self._np = np
        self._allclose, self._equal, self._shares = np.isclose, np.array_equal, np.shares_memory
        self._array = np.ndarray

    def seed(self, seed: int) -> None:
        """Seed NumPy's global generator (a candidate may use it)."""
        self._np.random.seed(seed % 2**32)

    def clone(self, tree: Any) -> Any:
        """A deep copy of a tree of arrays."""
        if isinstance(tree, self._array):
            return tree.copy()
        if isinstance(tree, tuple):
            return tuple(self.clone(t) for t in tree)
        return tree

    def leaves(self, tree: Any) -> list[Any]:
        """All arrays of a tree."""
        if isinstance(tree, self._array):
            return [tree]
        return [leaf for t in tree for leaf in self.leaves(t)] if isinstance(tree, tuple) else []

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Leave freed memory full of NaN, so that an unwritten output can't hold an earlier result."""
        del flush
        poison = [self._np.full(e.shape, self._np.nan) for e in expected]
        del poison

    def call(self, function: Callable[[Any], Any], data: Any) -> Sample:
        """One timed call."""
        start = _clock()
        output = function(data)
        end = _clock()
        return Sample(time_ns=float(end - start), host_ns=float(end - start), tail_ns=0.0, output=output)

    def snapshot(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copies of the outputs as they are now."""
        return tuple(o.copy() for o in outputs)

    def synchronize(self) -> None:
        """Nothing is pending here."""

    def is_plain(self, value: Any) -> bool:
        """Whether it is an array and no subclass (which could compute later)."""
        return type(value) is self._array

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
        near = self._allclose(got, expected, rtol=rtol, atol=by_row)
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
        return not self._allclose(got.reshape(-1)[at], expected.reshape(-1)[at], rtol=rtol, atol=atol).all()

    def any_true(self, flags: list[Any]) -> bool:
        """Whether one of the samples was wrong."""
        return any(flags)

    def enter_candidate(self) -> None:
        """Nothing to switch here."""

    def leave_candidate(self) -> None:
        """Nothing to switch here."""

    def reset(self) -> None:
        """Nothing to switch here."""

    def watched(self) -> dict[str, Any]:
        """Functions that a candidate has no business to replace."""
        from kernel_archive.measure.guards import callables_of

        return {**callables_of(self._np, "numpy"), **callables_of(time, "time")}

    def facts(self) -> dict[str, Any]:
        """What is recorded of the device."""
        import platform

        return {
            "device_properties": {"name": "standin", "compute_capability": None},
            "software": {"python": platform.python_version(), "numpy": self._np.__version__},
        }
