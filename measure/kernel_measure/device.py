"""What the worker measures on: a CUDA device through torch, torch's CPU, or the NumPy stand-in.

All three answer the same calls, so that protocol and guards are one piece of code and are tested
without a GPU. Every function that a candidate could replace (timers, events, comparisons) is taken
when a device is made, before a candidate is imported.
"""

from __future__ import annotations

import abc
import math
import platform
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kernel_archive.errors import UsageError
from kernel_measure.tasks.base import Task

DEVICES = ("cuda", "cpu", "standin")
_clock = time.perf_counter_ns


class TimedCall(msgspec.Struct, kw_only=True):
    """One timed call."""

    time_ns: float  # by the device's own timer (CUDA events), ns
    host_ns: float  # by the host's clock, from before the call to the device being idle, ns
    #: From the end of the timed region to the whole device being idle, ns: work elsewhere shows
    #: here.
    tail_ns: float
    output: Any  # what the program returned


class Device(abc.ABC):
    """What devices with arrays of one type have in common; a whole one is an ``AnyDevice``."""

    #: Whether its timer is the host's clock.
    timer_is_host = True

    def __init__(self, name: str, array: type, copy: Callable[[Any], Any], numbers: Any) -> None:
        self.name, self._array, self._copy = name, array, copy
        self._isclose, self._isnan = numbers.isclose, numbers.isnan

    def clone(self, tree: Any) -> Any:
        """Copy a tree of arrays with all its arrays."""
        if isinstance(tree, self._array):
            return self._copy(tree)
        if isinstance(tree, tuple):
            return tuple(self.clone(t) for t in tree)
        if isinstance(tree, dict):
            return {k: self.clone(v) for k, v in tree.items()}
        return tree

    def leaves(self, tree: Any) -> list[Any]:
        """List the arrays of a tree."""
        if isinstance(tree, self._array):
            return [tree]
        if isinstance(tree, dict):
            tree = tuple(tree.values())
        return [leaf for t in tree for leaf in self.leaves(t)] if isinstance(tree, tuple) else []

    def snapshot(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy outputs, ordered behind the program's own work only."""
        return tuple(self._copy(o) for o in outputs)

    def is_plain(self, value: Any) -> bool:
        """Tell whether it is an array and no subclass, which could compute later."""
        return type(value) is self._array

    def call(self, function: Callable[[Any], Any], data: Any) -> TimedCall:
        """Time one call, from an idle device to an idle device."""
        start = _clock()
        output = function(data)
        time_ns = float(_clock() - start)
        return TimedCall(time_ns=time_ns, host_ns=time_ns, tail_ns=0.0, output=output)

    def difference(self, got: Any, expected: Any, rtol: float, atol: Any) -> str | None:
        """Say in words what is outside the tolerance; ``None`` when nothing is."""
        bad, worst, nan = 0, 0.0, 0
        size, plain = math.prod(expected.shape), isinstance(atol, int | float)
        step = max(1, (len(expected) << 28) // max(1, size))
        for i in range(0, len(expected), step):
            g, e = got[i : i + step], expected[i : i + step]
            by_row = atol if plain else atol[i : i + step].reshape(-1, *[1] * (e.ndim - 1))
            near = self._near(g, e, rtol, by_row)
            if not bool(near.all()):
                bad, nan = bad + int((~near).sum()), nan + int(self._isnan(g).sum())
                worst = max(worst, self._largest(g, e))
        outside = f"{bad} of {size} elements outside rtol={rtol} atol={atol if plain else 'by row'}"
        return f"{outside}, largest difference {worst:.4e}, {nan} NaN" if bad else None

    def spot_check_fails(self, got: Any, expected: Any, rtol: float, atol: Any, seed: int) -> Any:
        """Tell whether elements taken at random are outside the tolerance: a boolean array."""
        size = math.prod(expected.shape)
        at = self._places(size, seed, expected)
        if not isinstance(atol, int | float):
            atol = atol[at // (size // len(expected))]
        return ~self._near(got.reshape(-1)[at], expected.reshape(-1)[at], rtol, atol).all()

    def _near(self, got: Any, expected: Any, rtol: float, atol: Any) -> Any:
        """Tell, element by element, whether ``|got - expected| <= atol + rtol |expected|``."""
        return self._isclose(got, expected, rtol=rtol, atol=atol)

    @abc.abstractmethod
    def _largest(self, got: Any, expected: Any) -> float:
        """Return the largest difference that is a number."""

    @abc.abstractmethod
    def _places(self, size: int, seed: int, like: Any) -> Any:
        """Take places at random among ``size`` elements."""


def check_device(name: str, task: Task) -> None:
    """Refuse a device that can't run a task.

    Raises:
        UsageError: unknown name, or a task of another framework.
    """
    if name not in DEVICES:
        raise UsageError(f"unknown device {name!r}; choose one of: {', '.join(DEVICES)}")
    if (name == "standin") != (task.framework == "numpy"):
        fits = "standin" if task.framework == "numpy" else "cuda (or cpu, for small cases)"
        raise UsageError(f"this task runs on --device {fits}, not on {name}")


class StandIn(Device):
    """NumPy on the host: the same protocol without a GPU."""

    def __init__(self) -> None:
        import numpy as np

        super().__init__("standin", np.ndarray, np.ndarray.copy, np)
        self._np, self._equal = np, np.array_equal

    def synchronize(self) -> None:
        """Wait for nothing: a call has ended when it returns."""

    def enter_candidate(self) -> None:
        """Set no switch: NumPy has none of precision."""

    def leave_candidate(self) -> None:
        """Set no switch."""

    def reset(self) -> None:
        """Forget nothing."""

    def seed(self, seed: int) -> None:
        """Seed NumPy's global generator (a candidate may use it)."""
        self._np.random.seed(seed % 2**32)

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Leave freed memory full of NaN."""
        del flush
        poison = [self._np.full(e.shape, self._np.nan) for e in expected]
        del poison

    def signature(self, value: Any) -> tuple[str, tuple[int, ...], str]:
        """Return type, shape and dtype."""
        return "ndarray", tuple(value.shape), str(value.dtype)

    def storage(self, value: Any) -> int:
        """Return the address of the memory that it lies in."""
        while isinstance(value.base, self._array):
            value = value.base
        return int(value.__array_interface__["data"][0])

    def equal(self, a: Any, b: Any) -> bool:
        """Tell whether two arrays are equal in all values; NaN equals NaN."""
        return bool(self._equal(a, b, equal_nan=True))

    def _largest(self, got: Any, expected: Any) -> float:
        return float(self._np.nanmax(abs(got - expected)))

    def _places(self, size: int, seed: int, like: Any) -> Any:
        del like
        return self._np.random.default_rng(seed).integers(0, size, 256)

    def watched(self) -> dict[str, Any]:
        """Return whose functions a program must leave alone: NumPy and Python's clocks."""
        return {"numpy": self._np, "time": time}

    def facts(self) -> dict[str, Any]:
        """Return what is recorded of the device."""
        software = {"python": platform.python_version(), "numpy": self._np.__version__}
        properties = {"name": "standin", "compute_capability": None}
        return {"device_properties": properties, "software": software}
