"""The driver: keeps a confined worker, measures with it, replaces it."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict, deque
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kernel_archive.errors import KernelArchiveError
from kernel_measure.process import LostRequest, WorkerProcess
from kernel_measure.settings import Config, Settings
from kernel_measure.timing import Result
from kernel_measure.verdict import Measurement, case_key, measurement_of

#: Imports of torch, inputs of the largest task and their references.
START_TIMEOUT_S = 300.0
#: Failures that Triton states before anything is launched: the worker is as it was, and a fresh one
#: would say the same.
_BEFORE_LAUNCH = {"OutOfResources"}
#: The name of a failure by the way in which a worker was lost.
_LOSSES = {
    "timeout": "Timeout",
    "died": "WorkerDied",
    "memory": "MemoryLimit",
    "garbage": "ForgedReply",
}


#: Measurements of a case that make the usual time of its reference.
SETTLE = 5


class MeasurerError(KernelArchiveError):
    """Raised when no worker can be started."""


class ReferenceBand:
    """The usual time of the reference per case of one task on one device.

    Until ``SETTLE`` measurements of a case are known, nothing is outside the band.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._seen: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=201))

    def check(self, times: dict[str, float]) -> list[str]:
        """The cases whose reference time, ns, is off the usual one by more than the factor.

        All are remembered; the median of the last 201 of a case is usual.
        """
        outside = []
        for case, time in times.items():
            seen = self._seen[case]
            usual = statistics.median(seen) if len(seen) >= SETTLE else time
            if not usual / self.factor <= time <= usual * self.factor:
                outside.append(case)
            seen.append(time)
        return outside


class Measurer(ExitStack):
    """Measures programs on one device.

    ``cache`` is the root of the compiler caches, one folder per program; a temporary one when not
    given. ``more`` are further fields of the workers' ``Config``: the GPU, whether programs are
    trusted, and the processors.
    """

    def __init__(
        self, device: str, settings: Settings, *, cache: Path | None = None, **more: Any
    ) -> None:
        super().__init__()
        self.device, self.settings = device, settings
        self.config = Config(mode="time", task="", device=device, settings=settings, **more)
        self.cache = cache or Path(
            self.enter_context(tempfile.TemporaryDirectory(prefix="kernel-archive-")), "cache"
        )
        self.callback(self.end)
        self._worker: WorkerProcess | None = None
        self._bands: dict[str, ReferenceBand] = {}
        self.confined: dict[str, str] = {}
        self.facts: dict[str, Any] = {}

    def _ready(self, task: str) -> WorkerProcess:
        """The worker, ready for programs of a task."""
        if task != self.config.task:
            self.end()
            self.config = msgspec.structs.replace(self.config, task=task)
        for _ in range(2):
            if self._worker is None:
                self._worker = WorkerProcess(self.config, self.cache)
            hello = self._worker.ready(START_TIMEOUT_S)
            if hello is not None:
                self.confined, self.facts = hello.confined, hello.facts
                return self._worker
            last_line = self._worker.last_line()
            self.end()
        raise MeasurerError(f"no worker for {task} on {self.device} comes up: {last_line}")

    def end(self) -> None:
        """End the worker, if there is one; the next program gets a fresh one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def measure(self, task: str, code: str) -> Measurement:
        """The verdict of one program.

        Raises:
            MeasurerError: no worker can be started.
        """
        band = self._bands.setdefault(task, ReferenceBand(self.settings.reference_band))
        best, wall, attempts = None, 0.0, 0
        while attempts <= self.settings.remeasure:
            m = self._once(task, code)
            m.off_band = band.check({case_key(c.shape): c.reference.median for c in m.cases})
            wall, attempts = wall + m.wall_s, attempts + 1
            failed = m.outcome != "success"
            if best is None or failed or len(m.off_band) < len(best.off_band):
                best = m
            if failed or not m.off_band:
                break
        assert best is not None  # noqa: S101 - it was measured once at least
        best.wall_s, best.attempts = wall, attempts
        return best

    def _once(self, task: str, code: str) -> Measurement:
        """One evaluation; a loss in a worker that served others is confirmed in a fresh one."""
        m = self._ask(task, code)
        could_be_ours = m.outcome in {"runtime_error", "infrastructure_failure"}
        if could_be_ours and m.error_name not in _BEFORE_LAUNCH and not m.fresh_worker:
            self.end()
            again = self._ask(task, code)
            again.wall_s += m.wall_s
            return again
        return m

    def _ask(self, task: str, code: str) -> Measurement:
        """What the worker says of a program."""
        worker = self._ready(task)
        fresh = worker.served == 0
        m = self._answer(worker, task, code)
        m.fresh_worker = fresh
        if worker.served >= self.settings.candidates_per_worker:
            self.end()
        return m

    def _answer(self, worker: WorkerProcess, task: str, code: str) -> Measurement:
        answer = worker.ask(code, self.settings.timeout_s)
        failed = Measurement(task=task, outcome="infrastructure_failure", salt=worker.salt)
        if isinstance(answer, LostRequest):
            failed.outcome, failed.error_name = "runtime_error", _LOSSES[answer.why]
            died = answer.why == "died"  # what it printed last may say why
            failed.error = f"{answer.text}: {worker.last_line()}" if died else answer.text
            failed.wall_s = self.settings.timeout_s if answer.why == "timeout" else 0.0
            self.end()
            return failed
        failed.error, failed.error_name, failed.wall_s = answer.error, "HarnessError", answer.wall_s
        if not answer.error:
            try:
                result = msgspec.convert(answer.result, Result)
                m = measurement_of(task, result, wall_s=answer.wall_s)
            except ValueError as error:
                failed.error = f"unreadable result: {error}"
        if failed.error or answer.sticky:
            self.end()
        return failed if failed.error else m
