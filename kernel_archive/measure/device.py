"""What the worker measures on: a CUDA device through torch, torch's CPU, or the NumPy stand-in.

All three answer the same calls, so that protocol and guards are one piece of code and are tested without a GPU. Every
function that a candidate could replace (timers, events, comparisons) is taken when this module is imported, before a
candidate is.
"""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kernel_archive.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_archive.measure.tasks.base import Task

__all__ = ["DEVICES", "Device", "Sample", "difference_text", "exclusive", "open_device"]

DEVICES = ("cuda", "cpu", "standin")


class Sample(msgspec.Struct, kw_only=True):
    """One timed call.

    Attributes:
        time_ns: by the device's own timer (CUDA events), ns.
        host_ns: by the host's clock, from before the call to the device being idle, ns.
        tail_ns: from the end of the timed region to the whole device being idle, ns: work elsewhere shows here.
        output: what the program returned.
    """

    time_ns: float
    host_ns: float
    tail_ns: float
    output: Any


class Device(Protocol):
    """What the protocol needs of a device."""

    name: str
    timer_is_host: bool

    def seed(self, seed: int) -> None:
        """Seed the generators that a program may use."""
        ...

    def clone(self, tree: Any) -> Any:
        """A deep copy of a tree of arrays."""
        ...

    def leaves(self, tree: Any) -> list[Any]:
        """All arrays of a tree."""
        ...

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Poison freed memory of the outputs' sizes; flush the cache."""
        ...

    def call(self, function: Callable[[Any], Any], data: Any) -> Sample:
        """One timed call, from an idle device to an idle device."""
        ...

    def snapshot(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copies of outputs, ordered behind the program's own work only."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def is_plain(self, value: Any) -> bool:
        """Whether it is an array and no subclass, which could compute later."""
        ...

    def signature(self, value: Any) -> tuple[str, tuple[int, ...], str]:
        """Place, shape and dtype, as text."""
        ...

    def storage(self, value: Any) -> int:
        """The address of the memory that it lies in."""
        ...

    def equal(self, a: Any, b: Any) -> bool:
        """Bitwise equality, NaN equal to NaN."""
        ...

    def difference(self, got: Any, expected: Any, rtol: float, atol: Any) -> str | None:
        """What is outside the tolerance, in words; None when nothing is. An array ``atol`` is per index of dimension 0."""
        ...

    def sample_wrong(self, got: Any, expected: Any, rtol: float, atol: Any, seed: int) -> Any:
        """Whether a sample of elements is outside the tolerance; may stay on the device."""
        ...

    def any_true(self, flags: list[Any]) -> bool:
        """Whether one of the samples was wrong."""
        ...

    def enter_candidate(self) -> None:
        """Give the program the precision switches that it set itself."""
        ...

    def leave_candidate(self) -> None:
        """Remember the program's switches and set ours."""
        ...

    def reset(self) -> None:
        """Forget a program's switches."""
        ...

    def watched(self) -> dict[str, Any]:
        """Functions that a program has no business to replace."""
        ...

    def facts(self) -> dict[str, Any]:
        """What is recorded of device and software."""
        ...


def difference_text(bad: int, total: int, rtol: float, atol: Any, worst: float, nan: int) -> str:
    """The sentence about elements outside the tolerance."""
    bound = atol if isinstance(atol, int | float) else "by row"
    return f"{bad} of {total} elements outside rtol={rtol} atol={bound}, largest difference {worst:.4e}, {nan} NaN"


def open_device(name: str, task: Task) -> Device:
    """The device of that name, when the task can run there.

    Raises:
        UsageError: unknown name, no such device here, or a task of another framework.
        MissingExtraError: torch is needed and missing.
    """
    if name not in DEVICES:
        raise UsageError(f"unknown device {name!r}; choose one of: {', '.join(DEVICES)}")
    if (name == "standin") != (task.framework == "numpy"):
        raise UsageError(f"the task {task.name} is written for {task.framework}: the device {name} can't run it")
    if name == "standin":
        from kernel_archive.measure.standin import StandIn

        return StandIn()
    from kernel_archive.measure.torch_device import TorchDevice

    return TorchDevice(name)


@contextlib.contextmanager
def exclusive(lock: int) -> Iterator[None]:
    """Hold the device: setting up a worker must not disturb what another one times.

    The kernel serves those who wait in turn. A lock that is polled for (filelock's) would starve a worker that starts
    beside one that measures without a pause.

    Args:
        lock: descriptor of a file that nobody reaches by name, so that no program can hold it; opened by the holder.
    """
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
