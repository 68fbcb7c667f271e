"""Guards against false speedups.

- ``outputs``: wrong number, type, shape, dtype or device; a subclass of tensor
- ``aliasing``: an output that lies in an input, or in an output of an earlier call
- ``mutation``: an input that was changed (the next program would read it)
- ``stream``: an output that is not there yet for work behind it; a device still busy afterwards
- ``patched``: a function of torch, its timers, Python's clocks or builtins replaced
- ``clock``: device timer and host clock that do not agree
- ``limit``: a time below what memory bandwidth and arithmetic rate of the GPU allow

Cached or constant outputs, skipped work on repeated shapes and reduced precision are caught by
checking: inputs are new in every call, of two distributions, and every timed call's output is
sampled (``evaluate.py``).
"""

from __future__ import annotations

import builtins
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from kernel_archive.gpus import gpu_facts
from kernel_archive.problems import Work
from kernel_measure.device import TimedCall
from kernel_measure.tasks.base import Task
from kernel_measure.torch_device import AnyDevice

#: Room for launch latency and the cost of synchronising, ns.
CLOCK_SLACK_NS = 60_000.0
#: The device may be busy elsewhere for this share of the timed region before it counts as hidden
#: work.
TAIL_SHARE = 0.10
TAIL_SLACK_NS = 25_000.0
#: Measured times this far above the physical limit are believed; a little below 1 for the timer's
#: resolution.
LIMIT_TOLERANCE = 0.95
#: CUDA events resolve about half a microsecond; below it nothing is refused.
LIMIT_FLOOR_NS = 1_000.0


#: What a program can do wrong.
FailureKind = Literal["compile_failed", "runtime_error", "incorrect"]


class CandidateFailure(Exception):  # noqa: N818 - a verdict, not a fault of ours
    """Raised inside an evaluation when the program failed a case."""

    def __init__(self, kind: FailureKind, name: str, error: str) -> None:
        super().__init__(error)
        self.kind, self.name, self.error = kind, name, error


class Refusal(CandidateFailure):
    """Raised when a guard refuses a program."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__("incorrect", guard, f"guard {guard}: {reason}")


class Integrity:
    """The identity of functions that a program must leave alone."""

    def __init__(self, device: AnyDevice) -> None:
        self._device = device
        self._before = self._take()

    def _take(self) -> dict[str, Any]:
        """Return functions and types by dotted name (descriptors as stored, not as bound)."""
        owners = {**self._device.watched(), "builtins": builtins}
        return {
            f"{name}.{key}": v
            for name, owner in owners.items()
            for key, v in vars(owner).items()
            if callable(v)
        }

    def check(self) -> None:
        """Refuse (``patched``) when one is another object now; new names are fine: imports."""
        now = self._take()
        changed = sorted(k for k, v in self._before.items() if k in now and now[k] is not v)
        changed += sorted(k for k in self._before if k not in now)
        if changed:
            raise Refusal("patched", f"replaced {', '.join(changed[:5])}")


def check_form(
    task: Task, device: AnyDevice, result: Any, expected: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the outputs of a program as a tuple, once their form was checked.

    Raises:
        Refusal: guard ``outputs``: number, type, shape, dtype or device is another.
    """
    names = task.outputs
    outputs = (result,) if len(names) == 1 else result
    if not isinstance(outputs, tuple | list) or len(outputs) != len(names):
        got = len(outputs) if isinstance(outputs, tuple | list) else type(outputs).__name__
        raise Refusal("outputs", f"expected {len(names)} ({', '.join(names)}), got {got}")
    for name, value, want in zip(names, outputs, expected, strict=True):
        if not device.is_plain(value):
            raise Refusal("outputs", f"{name} is a {type(value).__name__}, not a plain tensor")
        form, wanted = device.signature(value), device.signature(want)
        if form != wanted:
            raise Refusal("outputs", f"{name} is {form} instead of {wanted}")
    return tuple(outputs)


def check_aliasing(
    task: Task, device: AnyDevice, data: Any, outputs: tuple[Any, ...], earlier: Sequence[int] = ()
) -> None:
    """Refuse (``aliasing``) outputs in memory of the inputs, or in ``earlier`` storages."""
    allowed = {device.storage(data[i]) for i in task.written_inputs}
    inputs = {device.storage(leaf) for leaf in device.leaves(data)} - allowed
    for name, value in zip(task.outputs, outputs, strict=True):
        storage = device.storage(value)
        if storage in inputs:
            raise Refusal("aliasing", f"{name} lies in the memory of an input")
        if storage in earlier:
            raise Refusal("aliasing", f"{name} lies in the memory of an earlier call's output")


def check_mutation(task: Task, device: AnyDevice, before: Any, after: Any) -> None:
    """Refuse (``mutation``) a program that changed an input that it may only read."""
    skip = {id(after[i]) for i in task.written_inputs}
    for i, (a, b) in enumerate(zip(device.leaves(before), device.leaves(after), strict=True)):
        if id(b) not in skip and not device.equal(a, b):
            raise Refusal("mutation", f"input {i} was changed")


def check_clock(
    device: AnyDevice, candidate: Sequence[TimedCall], reference: Sequence[TimedCall]
) -> None:
    """Refuse (``clock``, ``stream``) when the device's timer and the host's clock disagree.

    What the host needs beyond the timed region is compared with what it needs for the reference,
    measured in turn.
    """
    median = statistics.median
    time = median(s.time_ns for s in candidate)
    tail = median(s.tail_ns for s in candidate) - median(s.tail_ns for s in reference)
    if tail > TAIL_SLACK_NS + TAIL_SHARE * time:
        raise Refusal("stream", f"the device works for {tail / 1e3:.0f} us after the timed region")
    if device.timer_is_host:
        return
    gap = median(s.host_ns - s.time_ns for s in candidate)
    usual = median(s.host_ns - s.time_ns for s in reference)
    if gap - usual > CLOCK_SLACK_NS + 0.25 * time or gap < -CLOCK_SLACK_NS:
        clock = (time + gap) / 1e3
        raise Refusal("clock", f"timer says {time / 1e3:.1f} us, the host's clock {clock:.1f} us")


def limit_ns(work: Work, gpu: str) -> tuple[float, str] | None:
    """Estimate the least time that a case can take on a GPU, ns, and say what sets it.

    Inputs are read from device memory (the L2 is flushed); of the outputs, what fits into the L2
    may still be there when the timer stops. Arithmetic counts at twice the dense bf16 rate, more
    than any program here can reach.
    """
    facts = gpu_facts(gpu)
    if facts.memory_bandwidth_gb_s is None or facts.bf16_tflops is None:
        return None
    stays = (facts.l2_cache_mb or 0.0) * 2**20
    moved = work.bytes_read + max(0.0, work.bytes_written - stays)
    by_memory = moved / facts.memory_bandwidth_gb_s  # bytes / (GB/s) = ns
    by_rate = work.flops / (2.0 * facts.bf16_tflops * 1e3)  # FLOP / (FLOP/ns)
    return (by_memory, "memory bandwidth") if by_memory >= by_rate else (by_rate, "arithmetic rate")


def check_limit(work: Work | None, gpu: str, time_ns: float) -> float | None:
    """Return a time over the limit, ``None`` where no limit is known; refuse (``limit``) below."""
    found = limit_ns(work, gpu) if work else None
    if found is None or found[0] <= 0:
        return None
    least, bound = found
    if time_ns < LIMIT_TOLERANCE * least and least > LIMIT_FLOOR_NS:
        possible = f"{least / 1e3:.2f} us that {bound} allows on {gpu}"
        raise Refusal("limit", f"{time_ns / 1e3:.2f} us is below the {possible}")
    return time_ns / least
