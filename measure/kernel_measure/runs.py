"""A run directory."""

from __future__ import annotations

import abc
from collections import Counter
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from kernel_archive.errors import DataError
from kernel_archive.ids import program_id
from kernel_archive.readers.events import Attempt, Feedback, LoggedEvaluation, TimingLine
from kernel_measure.logs import append_line, now, read_given, read_lines, unresumable
from kernel_measure.settings import Settings
from kernel_measure.tasks import get_task
from kernel_measure.verdict import Measurement, logged_evaluation

#: Fields of ``run.json`` that stay as they are.
_FIXED: Final = (
    "task", "method", "reference_source", "measurement", "search",
    "benchmark_cases", "correctness_cases", "tolerance",
)  # fmt: skip


def run_document(directory: Path, task: str, settings: Settings, **more: Any) -> dict[str, Any]:
    """Return what ``run.json`` says before a call measures anything, with what earlier calls left.

    A search may be given another number of steps: no choice depends on how many there are.

    Raises:
        DataError: the run was recorded under other settings, or nothing says under which.
    """
    facts = get_task(task)
    document = {
        **more,
        "task": facts.name,
        "measurement": msgspec.json.decode(msgspec.json.encode(settings.describe())),
        "checks": facts.describe_checks(),
        "reference_source": facts.reference,
        "benchmark_cases": list(facts.benchmark_cases),
        "correctness_cases": list(facts.correctness_cases),
        "tolerance": {"rtol": facts.rtol, "atol": facts.atol},
    }
    earlier = _earlier(directory)
    for name in _FIXED if earlier else ():
        # A chain's ``search`` comes from its log and is not in this document yet. What is in it
        # must be the same in the earlier one.
        if name in document and _compared(earlier, name) != _compared(document, name):
            field = _first_difference(name, _compared(earlier, name), _compared(document, name))
            how = "under other" if name in earlier else "without saying under which"
            raise DataError.of(
                code="another-plan",
                file=str(directory / "run.json"),
                field=field,
                fix="Record into another directory",
                message=f"the run was recorded {how} settings and can't be continued",
            )
    return {**earlier, **document, "start": earlier.get("start", now())}


def _earlier(directory: Path) -> dict[str, Any]:
    """Read the ``run.json`` of an earlier call; empty before the first."""
    path = directory / "run.json"
    if path.exists():
        return read_given(path, dict[str, Any], code="bad-json", fix="Move the run away")
    if any(directory.glob("*.jsonl")):
        raise DataError.of(
            code="no-run-json",
            message="there are measurements, and no run.json says how they were made",
            file=str(directory),
            fix="Move the folder away",
        )
    return {}


def _compared(document: dict[str, Any], name: str) -> Any:
    """Return a field of a ``run.json``, a search's without its number of steps."""
    value = document.get(name)
    if name == "search" and isinstance(value, dict):
        return {n: number for n, number in value.items() if n != "total_budget_steps"}
    return value


def _first_difference(name: str, earlier: Any, new: Any) -> str:
    """Name the field, or the first of its numbers, that differs."""
    if not (isinstance(earlier, dict) and isinstance(new, dict)):
        return name
    missing = object()
    differing = [k for k in {**new, **earlier} if earlier.get(k, missing) != new.get(k, missing)]
    return f"{name}.{differing[0]}"


class Job(msgspec.Struct, frozen=True):
    """One program that waits for its measurement."""

    request_id: str
    code: str


def feedback_of(logged: LoggedEvaluation | None) -> Feedback:
    """Return the feedback of a logged evaluation.

    Raises:
        ValueError: there is none, or a success lacks its speedup or something else has one.
    """
    feedback = logged.observation.feedback if logged is not None else None
    if feedback is None:
        raise ValueError("an evaluation without feedback")
    if (feedback.kind == "success") != (feedback.aggregated_speedup is not None):
        raise ValueError("a success has a speedup, and nothing else has one")
    return feedback


class RunLog(abc.ABC):
    """A log of a run, and ``timing.jsonl`` beside it; what is there is replayed.

    ``counts`` says how often each outcome was measured, ``n_waiting`` how many programs it waits
    for, ``end`` when the last measurement came to its end.

    Raises:
        DataError: a log there was damaged, or holds what was not recorded here.
    """

    def __init__(self, path: Path, kind: Any) -> None:
        self._path, self._timing = path, path.with_name("timing.jsonl")
        self._has_folder = path.exists()
        self.counts: Counter[str] = Counter()
        self.n_waiting = 0
        timing = read_lines(self._timing, TimingLine)
        self.gpu_seconds: float = sum(row.wall_s or 0.0 for row in timing)
        self.end: str | None = timing[-1].completed_at if timing else None
        for number, row in enumerate(read_lines(path, kind), 1):
            try:
                self._apply(row)
            except (ValueError, LookupError) as error:
                text = f"does not follow from the lines before it: {error}"
                raise unresumable(path, number, text) from error

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Tell whether there is nothing left to measure or to wait for."""

    @abc.abstractmethod
    def next_jobs(self) -> list[Job]:
        """Go on as far as possible without a measurement; return the programs to measure now."""

    @abc.abstractmethod
    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of a job that waits."""

    def facts(self) -> dict[str, Any]:
        """Return what is known of the run once it was read, for ``run.json``."""
        return {}

    def _refuse(self, line: int, what: str) -> NoReturn:
        """Raise the error of a directory that holds another run."""
        raise DataError.of(
            code="another-search",
            file=str(self._path),
            line=line,
            message=f"the directory holds {what}",
            fix="Record into another directory, or move this one away",
        )

    def _append(self, path: Path, row: Any) -> None:
        if not self._has_folder:  # once: a run that somebody moves away is not begun anew
            path.parent.mkdir(parents=True, exist_ok=True)
            self._has_folder = True
        append_line(path, row)

    def _write_and_apply(self, row: Any) -> None:
        self._append(self._path, row)
        self._apply(row)

    @abc.abstractmethod
    def _apply(self, row: Any) -> None:
        """Take in a line that was written."""

    def _count(self, logged: LoggedEvaluation | None) -> None:
        self.counts[feedback_of(logged).kind] += 1

    def _write_timing(self, job: Job, measured: Measurement, started_at: str) -> str:
        """Write the timing of a measurement that has just come to its end; return when that was."""
        self.end = done_at = now()
        self.gpu_seconds += measured.wall_s
        times = {"started_at": started_at, "completed_at": done_at, **measured.timing()}
        program = program_id(job.code)
        self._append(self._timing, {"request_id": job.request_id, "program": program, **times})
        return done_at


class AttemptLog(RunLog):
    """The log of a run of attempts, ``attempts.jsonl``."""

    def __init__(self, directory: Path) -> None:
        self.rows: list[Attempt] = []
        super().__init__(directory / "attempts.jsonl", Attempt)

    def _apply(self, row: Attempt) -> None:
        self._count(row.evaluation)
        self.rows.append(row)

    def add(self, code: str, measured: Measurement, started_at: str, **more: Any) -> None:
        """Write one measurement; ``more`` are further fields of the row."""
        number = max((row.attempt for row in self.rows), default=-1) + 1
        row = Attempt(
            attempt=number,
            code=code,
            started_at=started_at,
            completed_at=self._write_timing(Job(f"attempt-{number}", code), measured, started_at),
            evaluation=logged_evaluation(measured),
            **more,
        )
        self._write_and_apply(row)
