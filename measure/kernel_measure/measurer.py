"""The driver: keeps a confined worker, measures with it, replaces it."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict, deque
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive.errors import KernelArchiveError
from kernel_measure.process import LostRequest, WorkerProcess
from kernel_measure.settings import Settings, WorkerConfig
from kernel_measure.timing import Result
from kernel_measure.verdict import Measurement, case_key, measurement_of
from kernel_measure.worker import Reply

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


#: The usual time of a reference is known after this many measurements of a case, and is the median
#: of at most so many, the last ones.
_MIN_USUAL_TIMES: Final = 5
_MAX_USUAL_TIMES: Final = 201


class MeasurerError(KernelArchiveError):
    """Raised when no worker can be started."""


class ReferenceBand:
    """The usual time of the reference per case of one task on one device.

    Until the usual time of a case is known, nothing is outside its band.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._seen: defaultdict[str, deque[float]] = defaultdict(
            partial(deque, maxlen=_MAX_USUAL_TIMES)
        )

    def observe(self, times_ns: dict[str, float]) -> list[str]:
        """Remember the reference times of a measurement, ns; return the cases whose was unusual.

        That is, off the median of those before by more than the factor.
        """
        outside = []
        for case, time_ns in times_ns.items():
            seen = self._seen[case]
            usual = statistics.median(seen) if len(seen) >= _MIN_USUAL_TIMES else time_ns
            if not usual / self.factor <= time_ns <= usual * self.factor:
                outside.append(case)
            seen.append(time_ns)
        return outside


class Measurer(ExitStack):
    """Measures programs on one device.

    ``cache`` is the root of the compiler caches, one folder per program; a temporary one when not
    given. ``more`` are further fields of ``WorkerConfig``: the GPU, whether programs are trusted,
    and the processors.
    """

    def __init__(
        self, device: str, settings: Settings, *, cache: Path | None = None, **more: Any
    ) -> None:
        super().__init__()
        self.device, self.settings = device, settings
        self.config = WorkerConfig(mode="time", task="", device=device, settings=settings, **more)
        self.cache = cache or Path(
            self.enter_context(tempfile.TemporaryDirectory(prefix="kernel-archive-")), "cache"
        )
        self.callback(self.end)
        self._worker: WorkerProcess | None = None
        self._bands: dict[str, ReferenceBand] = {}
        self.sandbox: dict[str, str] = {}
        self.facts: dict[str, Any] = {}

    def _ready(self, task: str) -> WorkerProcess:
        """Return the worker once it is ready for programs of a task; start one where needed."""
        if task != self.config.task:
            self.end()
            self.config = msgspec.structs.replace(self.config, task=task)
        for _ in range(2):
            if self._worker is None:
                self._worker = WorkerProcess(self.config, self.cache)
            first_reply = self._worker.ready(START_TIMEOUT_S)
            if first_reply is not None:
                self.sandbox, self.facts = first_reply.sandbox, first_reply.facts
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
        """Measure one program, again while its reference's time is unusual.

        Raises:
            MeasurerError: no worker can be started.
        """
        band = self._bands.setdefault(task, ReferenceBand(self.settings.reference_band))
        best, wall, attempts = None, 0.0, 0
        while attempts <= self.settings.remeasure:
            m = self._evaluate_confirmed(task, code)
            m.off_band = band.observe({case_key(c.shape): c.reference.median for c in m.cases})
            wall, attempts = wall + m.wall_s, attempts + 1
            failed = m.outcome != "success"
            if best is None or failed or len(m.off_band) < len(best.off_band):
                best = m
            if failed or not m.off_band:
                break
        assert best is not None  # noqa: S101 - it was measured once at least
        best.wall_s, best.attempts = wall, attempts
        return best

    def _evaluate_confirmed(self, task: str, code: str) -> Measurement:
        """Evaluate a program; what may be our fault again, in a worker that served no others."""
        m = self._evaluate(task, code)
        could_be_ours = m.outcome in {"runtime_error", "infrastructure_failure"}
        if could_be_ours and m.error_name not in _BEFORE_LAUNCH and not m.fresh_worker:
            self.end()
            again = self._evaluate(task, code)
            again.wall_s += m.wall_s
            return again
        return m

    def _evaluate(self, task: str, code: str) -> Measurement:
        """Have the worker evaluate a program; end it when it has served enough of them."""
        worker = self._ready(task)
        fresh = worker.served == 0
        answer = worker.ask(code, self.settings.timeout_s)
        if isinstance(answer, LostRequest):
            m = self._of_loss(worker, answer)
        else:
            m = self._of_reply(worker, answer)
        m.fresh_worker = fresh
        if worker.served >= self.settings.candidates_per_worker:
            self.end()
        return m

    def _of_loss(self, worker: WorkerProcess, lost: LostRequest) -> Measurement:
        """Make a measurement of a request without an answer, and end the worker."""
        m = Measurement(task=self.config.task, outcome="runtime_error", salt=worker.salt)
        died = lost.why == "died"  # what it printed last may say why
        m.error = f"{lost.text}: {worker.last_line()}" if died else lost.text
        m.error_name = _LOSSES[lost.why]
        m.wall_s = self.settings.timeout_s if lost.why == "timeout" else 0.0
        self.end()
        return m

    def _of_reply(self, worker: WorkerProcess, reply: Reply) -> Measurement:
        """Make a measurement of an answer; end a worker that can serve no more or is at fault."""
        task, wall_s, fault = self.config.task, reply.wall_s, reply.error
        if reply.ends_worker:
            self.end()
        if not fault:
            try:
                return measurement_of(task, msgspec.convert(reply.result, Result), wall_s=wall_s)
            except ValueError as error:
                fault = f"unreadable result: {error}"
        self.end()
        m = Measurement(task=task, outcome="infrastructure_failure", salt=worker.salt)
        m.error, m.error_name, m.wall_s = fault, "HarnessError", wall_s
        return m
