"""Measuring kernels of an archive again."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kernel_archive.archive.build import Advance
from kernel_archive.archive.open import Archive
from kernel_archive.bins import SCHEMES
from kernel_archive.errors import UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.readers.events import Attempt
from kernel_measure.logs import recording_into
from kernel_measure.record import Recorder, Run
from kernel_measure.runs import AttemptLog, Job, feedback_of, run_document
from kernel_measure.settings import Settings
from kernel_measure.station import Station, StationOptions, resolve_gpu
from kernel_measure.tasks import TASK_NAMES
from kernel_measure.verdict import Measurement


class Program(NamedTuple):
    """A kernel to measure again."""

    task: str
    code: str


class Remeasured(msgspec.Struct):
    """What was measured again; the spread is for an archive of the logs to say."""

    kernels: int
    measurements: int
    failed: int  # kernels that failed at least once: see the logs for the reasons
    unfinished_runs: int  # runs that the time did not suffice for; a further call goes on


def choose(
    archive: Archive, where: str, *, limit: int | None = None, gpu: str | None = None
) -> list[Program]:
    """Choose kernels of an archive that a task's reference can be timed beside.

    ``where`` is ``eval`` (rows of the evaluation split), ``edge`` (within 5 % of a bin edge),
    ``flagged``, ``all``, or a SQL condition on the table kernels.

    Raises:
        UsageError: the condition is not valid SQL, or the archive has no evaluation split.
    """
    if where == "eval" and "eval" not in archive.tables:
        raise UsageError(
            "the archive has no evaluation split yet. Make it with: kernel-archive build-eval"
        )
    edges = SCHEMES["paper"].edges
    conditions = {
        "all": "true",
        "edge": " OR ".join(f"abs(ln(speedup / {e!r})) < ln(1.05)" for e in edges),
        "flagged": "len(flags) > 0",
        "eval": "kernel_id IN (SELECT kernel_id FROM eval)",
    }
    query = f"""
    SELECT problem, code FROM kernels
    WHERE list_contains($1, problem) AND ($2 IS NULL OR gpu = $2)
        AND ({conditions.get(where, where)})
    ORDER BY kernel_id LIMIT {limit or "ALL"}"""
    import duckdb

    try:
        rows = archive.sql(query, [TASK_NAMES, canonical_gpu(gpu) if gpu else None])
    except duckdb.Error as error:
        raise UsageError(f"--select: {printable(str(error).splitlines()[0], 200)}") from error
    return [Program(row["problem"], row["code"]) for row in rows.to_pylist()]


class RemeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are measured again."""

    repeat: int
    station_options: StationOptions
    settings: Settings
    gpu: str | None = None
    deadline: float = math.inf


class RepetitionLog(AttemptLog):
    """Programs of one task, each measured once more; ``passed`` says of each measured whether.

    Raises:
        DataError: the log was damaged, or was not recorded here.
    """

    def __init__(self, directory: Path, repetition: int, codes: Collection[str]) -> None:
        self._repetition, self._codes = repetition, codes
        self.passed: dict[str, bool] = {}
        super().__init__(directory)

    @property
    def finished(self) -> bool:
        """Tell whether all programs were measured."""
        return not self.next_jobs()

    def next_jobs(self) -> list[Job]:
        """Return all programs that were not measured yet."""
        missing = [code for code in self._codes if code not in self.passed]
        return [Job(f"attempt-{i}", code) for i, code in enumerate(missing, len(self.rows))]

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of a program."""
        note = f"repetition {self._repetition}"
        self.add(job.code, measured, started_at, title="measured again", note=note)

    def _apply(self, row: Attempt) -> None:
        super()._apply(row)
        self.passed[row.code] = feedback_of(row.evaluation).kind == "success"


def _begin(
    task: str, repetition: int, codes: Collection[str], out: Path, settings: Settings
) -> Run:
    """Open one repetition of a task's programs with its log."""
    directory = out / f"{task}__r{repetition}"
    facts = {"method": "remeasurement", "mutator": "none", "run": directory.name}
    search = {"repetition": repetition, "aggregation": "geomean"}
    document = run_document(directory, task, settings, **facts, search=search)
    log = RepetitionLog(directory, repetition, codes)
    return Run(
        directory=directory,
        task=task,
        log=log,
        document=document,
        expected_evaluations=len(log.rows) + len(log.next_jobs()),
        in_new_worker=True,
    )


def remeasure_programs(
    programs: Sequence[Program],
    out: Path,
    how: RemeasureOptions,
    *,
    advance: Advance = lambda _done, _total, _what: None,
) -> Remeasured:
    """Measure programs again, each repetition in workers of its own.

    A directory that is there already is gone on with: programs in it are not measured again.
    ``advance`` is called with measurements done, measurements in all, and the run.

    Raises:
        KernelArchiveError: another process records into the directory.
        DataError: a log there was damaged, or made with other settings.
        MeasurerError: no worker comes up.
    """
    codes: dict[str, dict[str, None]] = {}  # by task, each once and in order
    for program in programs:
        codes.setdefault(program.task, {})[program.code] = None
    name = resolve_gpu(how.station_options.device, how.gpu)
    with recording_into(out), Station(how.station_options, how.settings, name) as station:
        runs = [
            _begin(task, repetition, codes[task], out, how.settings)
            for repetition in range(1, how.repeat + 1)
            for task in codes
        ]
        recorder = Recorder(runs=runs, station=station, deadline=how.deadline, advance=advance)
        recorder.record()
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for run in runs:
        assert isinstance(run.log, RepetitionLog)  # noqa: S101 - made above
        for code in run.log.passed.keys() & codes[run.task]:
            outcomes.setdefault((run.task, code), []).append(run.log.passed[code])
    return Remeasured(
        kernels=sum(map(len, codes.values())),
        measurements=sum(map(len, outcomes.values())),
        failed=sum(not all(passed) for passed in outcomes.values()),
        unfinished_runs=sum(not run.log.finished for run in runs),
    )
