"""Measuring kernels of an archive again."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.bins import SCHEMES
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.readers.events import Attempt
from kernel_measure.logs import now, write_json
from kernel_measure.runs import AttemptLog, earlier_run, feedback_of, run_document
from kernel_measure.settings import Settings
from kernel_measure.station import Host, Station, resolve_gpu
from kernel_measure.tasks import TASK_NAMES


class Program(NamedTuple):
    """A kernel to measure again."""

    task: str
    code: str


class Remeasured(msgspec.Struct):
    """What was measured again; the spread is for an archive of the logs to say."""

    kernels: int
    measurements: int
    failed: int  # kernels that failed at least once: see the logs for the reasons
    unreached: int  # kernels that the time did not suffice for; a further call goes on


def choose(archive: Archive, where: str, *, gpu: str | None = None) -> list[Program]:
    """Kernels of an archive that a task's reference can be timed beside.

    ``where`` is ``eval`` (rows of the evaluation split), ``edge`` (within 5 % of a bin edge), or a
    SQL condition on the table kernels.

    Raises:
        UsageError: the condition is not valid SQL, or the archive has no evaluation split.
    """
    if where == "eval" and "eval" not in archive.tables:
        raise UsageError(
            "the archive has no evaluation split yet. Make it with: kernel-archive build-eval"
        )
    edges = SCHEMES["paper"].edges
    conditions = {
        "edge": " OR ".join(f"abs(ln(speedup / {e!r})) < ln(1.05)" for e in edges),
        "eval": "kernel_id IN (SELECT kernel_id FROM eval)",
    }
    query = f"""
    SELECT problem, code FROM kernels
    WHERE list_contains($1, problem) AND ($2 IS NULL OR gpu = $2)
        AND ({conditions.get(where, where)})
    ORDER BY kernel_id"""
    import duckdb

    try:
        rows = archive.sql(query, [TASK_NAMES, canonical_gpu(gpu) if gpu else None])
    except duckdb.Error as error:
        raise UsageError(f"--select: {printable(str(error).splitlines()[0], 200)}") from error
    return [Program(row["problem"], row["code"]) for row in rows.to_pylist()]


class Repetitions(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are measured again."""

    repeat: int
    host: Host
    settings: Settings
    gpu: str | None = None
    deadline: float = math.inf


def remeasure_programs(
    programs: Sequence[Program],
    out: Path,
    how: Repetitions,
    *,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Remeasured:
    """Measure programs again.

    A directory that is there already is gone on with: programs in it are not measured again. All
    are compiled before the first is timed, since a host that compiles launches kernels more slowly.
    ``advance`` is called with measurements done, measurements in all, and the task.

    Raises:
        BusyError: another process records into the directory.
        DataError: a log there was damaged, or made with other settings.
        MeasurerError: no worker comes up.
    """
    codes: dict[str, dict[str, None]] = {}  # by task, each once and in order
    for program in programs:
        codes.setdefault(program.task, {})[program.code] = None
    total, done = how.repeat * sum(map(len, codes.values())), 0
    name = resolve_gpu(how.host.device, how.gpu)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(_Repetition(out, task, r, how.settings))
            for r in range(1, how.repeat + 1)
            for task in codes
        ]
        station = stack.enter_context(
            Station(how.host, how.settings, name, next(iter(codes), None))
        )
        missing = [(r.task, c) for r in runs for c in codes[r.task] if c not in r.passed]
        compiling = [station.compile_ahead(task, [code]) for task, code in dict.fromkeys(missing)]
        for future in itertools.chain(*compiling):
            future.result()
        for run in runs:
            for code in codes[run.task]:
                if code not in run.passed and time.monotonic() < how.deadline:
                    run.measure(code, station)
                if code in run.passed:
                    done += 1
                    advance(done, total, run.task)
            run.finish(set(codes[run.task]))
            station.measurer.end(run.task)
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for run in runs:
        for code in run.passed.keys() & codes[run.task]:
            outcomes.setdefault((run.task, code), []).append(run.passed[code])
    kernels = sum(map(len, codes.values()))
    return Remeasured(
        kernels=kernels,
        measurements=sum(map(len, outcomes.values())),
        failed=sum(not all(passed) for passed in outcomes.values()),
        unreached=kernels - len(outcomes),
    )


class _Repetition(AttemptLog):
    """One run directory; ``passed`` says of each program measured whether it passed."""

    def __init__(self, out: Path, task: str, repetition: int, settings: Settings) -> None:
        directory = out / f"{task}__r{repetition}"
        self._path = directory / "run.json"
        self.task, self._repetition = task, repetition
        facts = {"method": "remeasurement", "mutator": "none", "run": directory.name}
        search = {"repetition": repetition, "aggregation": "geomean"}
        document = run_document(task, settings, **facts, search=search)
        earlier = earlier_run(self._path, document)
        self._document = {**earlier, **document}
        self.passed: dict[str, bool] = {}
        super().__init__(directory)
        if self.rows and not earlier:
            self.close()
            raise DataError.of(
                code="no-run-json",
                message="there are measurements, and no run.json says how they were made",
                file=str(directory),
                fix="Move the folder away",
            )

    def _apply(self, row: Attempt) -> None:
        super()._apply(row)
        self.passed[row.code] = feedback_of(row.evaluation).kind == "success"

    def measure(self, code: str, station: Station) -> None:
        """Measure a program and log it."""
        started = now()
        measured = station.measurer.measure(self.task, code)
        self._document.update(station.facts())
        self._write(finished=False)  # before its row: rows alone don't say how they were made
        note = f"repetition {self._repetition}"
        self.add(code, measured, started, title="measured again", note=note)

    def finish(self, wanted: set[str]) -> None:
        """State what the directory holds now, and whether that is all that was asked for."""
        if self._path.exists():
            self._write(finished=wanted <= self.passed.keys())

    def _write(self, *, finished: bool) -> None:
        rows = self.rows
        start, end = (rows[0].started_at, rows[-1].completed_at) if rows else (None, None)
        self._document.update(finished=finished, evaluations=len(rows), start=start, end=end)
        write_json(self._path, self._document)
