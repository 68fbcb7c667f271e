"""Measuring kernels of an archive again."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.bins import SCHEMES, bin_of
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_measure.logs import now, write_json
from kernel_measure.runs import AttemptLog, earlier_run, feedback_of, run_document
from kernel_measure.settings import Settings  # noqa: TC001 - msgspec reads the annotations
from kernel_measure.station import Host, Station, resolve_gpu
from kernel_measure.tasks import TASK_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.readers.events import Attempt, Feedback


class Program(msgspec.Struct, frozen=True):
    """A kernel to measure again, with its label so far, x."""

    task: str
    code: str
    speedup: float | None = None


class TaskSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How far the measurements of a task's kernels agree."""

    programs: int
    measured: int  # successful measurements
    #: (largest - least) / median over a kernel's measurements, its median over the kernels
    spread_median: float
    spread_p90: float  # the same, 90th percentile
    moved: int  # kernels whose median lies in another bin than their label so far


class Again(msgspec.Struct):
    """What was measured again."""

    tasks: dict[str, TaskSpread] = {}
    notes: list[str] = []


def choose(
    archive: Archive,
    where: str,
    *,
    edge: float = 0.05,
    limit: int | None = None,
    gpu: str | None = None,
) -> list[Program]:
    """Kernels of an archive that a task's reference can be timed beside.

    ``where`` is ``eval`` (rows of the evaluation split), ``edge`` (within that share of a bin
    edge), ``flagged``, ``all``, or a SQL condition on the table kernels.

    Raises:
        UsageError: the condition is not valid SQL, or the archive has no evaluation split.
    """
    edges = " OR ".join(
        f"abs(ln(speedup / {e!r})) < ln(1 + {edge!r})" for e in SCHEMES["paper"].edges
    )
    conditions = {
        "all": "true",
        "edge": f"({edges})",
        "flagged": "len(flags) > 0",
        "eval": "kernel_id IN (SELECT kernel_id FROM eval)",
    }
    condition = conditions.get(where, f"({where})")
    if where == "eval" and "eval" not in archive.tables:
        raise UsageError(
            "the archive has no evaluation split yet. Make it with: kernel-archive build-eval"
        )
    given: list[Any] = [TASK_NAMES]
    query = "SELECT problem, code, speedup FROM kernels WHERE list_contains(?, problem)"
    query += f" AND {condition}"
    if gpu:
        query, given = f"{query} AND gpu = ?", [*given, canonical_gpu(gpu)]
    query += " ORDER BY kernel_id" + (f" LIMIT {limit}" if limit else "")
    import duckdb

    try:
        rows = archive.sql(query, given).to_pylist()
    except duckdb.Error as error:
        raise UsageError(f"--select: {printable(str(error).splitlines()[0], 200)}") from error
    return [Program(r["problem"], r["code"], r["speedup"]) for r in rows]


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
) -> Again:
    """Measure programs again.

    A directory that is there already is gone on with: programs in it are not measured again. All
    are compiled before the first is timed, since a host that compiles launches kernels more slowly.
    ``advance`` is called with measurements done, measurements in all, and the task.

    Raises:
        BusyError: another process records into the directory.
        DataError: a log there was damaged, or made with other settings.
        MeasurerError: no worker comes up.
    """
    labels: dict[str, dict[str, float | None]] = {}
    for program in programs:
        labels.setdefault(program.task, {}).setdefault(program.code, program.speedup)
    measured: dict[str, dict[str, list[Feedback]]] = {task: {} for task in labels}
    total, done = how.repeat * sum(map(len, labels.values())), 0
    missing = {task: _missing(task, codes, out, how) for task, codes in labels.items()}
    name = resolve_gpu(how.host.device, how.gpu)
    with Station(how.host, how.settings, name, next(iter(labels), None)) as station:
        compiling = [station.compile_ahead(task, codes) for task, codes in missing.items()]
        for future in itertools.chain(*compiling):
            future.result()
        for r in range(1, how.repeat + 1):
            for task, codes in labels.items():
                with _Repetition(out, task, r, how.settings) as run:
                    for code in codes:
                        if code not in run.have and time.monotonic() < how.deadline:
                            run.measure(code, station)
                        if code in run.have:
                            done += 1
                            advance(done, total, task)
                            measured[task].setdefault(code, []).append(run.have[code])
                    run.finish(set(codes))
                station.measurer.end(task)
    again = Again({task: _spread(labels[task], measured[task]) for task in labels})
    unreached = sum(len(labels[task]) - len(measured[task]) for task in labels)
    if unreached:
        again.notes.append(f"{unreached} kernels were not reached in time; call again to go on")
    feedbacks = itertools.chain(*(measured[task].values() for task in labels))
    failed = sum(any(f.aggregated_speedup is None for f in values) for values in feedbacks)
    if failed:
        text = f"{failed} kernels failed at least once now: see the logs for the reasons"
        again.notes.append(text)
    return again


class _Repetition(AttemptLog):
    """One run directory; its programs that were measured are ``have``."""

    def __init__(self, out: Path, task: str, repetition: int, settings: Settings) -> None:
        directory = out / f"{task}__r{repetition}"
        self._path = directory / "run.json"
        self._task, self._repetition = task, repetition
        self._station: Station | None = None
        facts = {"method": "remeasurement", "mutator": "none", "run": directory.name}
        search = {"repetition": repetition, "aggregation": "geomean"}
        self._document = run_document(task, settings, **facts, search=search)
        self._earlier = earlier_run(self._path, self._document)
        self.have: dict[str, Feedback] = {}
        super().__init__(directory)
        if self.rows and self._earlier is None:
            self.close()
            raise DataError.of(
                code="no-run-json",
                message="there are measurements, and no run.json says how they were made",
                file=str(directory),
                fix="Move the folder away",
            )

    def _apply(self, row: Attempt) -> None:
        super()._apply(row)
        self.have[row.code] = feedback_of(row.evaluation)

    def measure(self, code: str, station: Station) -> None:
        """Measure a program and log it."""
        started = now()
        measured = station.measurer.measure(self._task, code)
        if self._station is None:
            self._station = station
            self._write(station.facts(), finished=False)
        note = f"repetition {self._repetition}"
        self.add(code, measured, started, title="measured again", note=note)

    def finish(self, wanted: set[str]) -> None:
        """State what the directory holds now, and whether that is all that was asked for."""
        finished = wanted <= self.have.keys()
        if self._station is not None:
            self._write(self._station.facts(), finished=finished)
        elif self._earlier is not None and self._earlier.get("evaluations") != len(self.rows):
            self._write(self._earlier, finished=finished)

    def _write(self, facts: dict[str, Any], *, finished: bool) -> None:
        rows = self.rows
        start, end = (rows[0].started_at, rows[-1].completed_at) if rows else (None, None)
        held = {"finished": finished, "evaluations": len(rows), "start": start, "end": end}
        write_json(self._path, {**facts, **self._document, **held})


def _missing(task: str, codes: Iterable[str], out: Path, how: Repetitions) -> list[str]:
    """The programs that some repetition has not measured yet; only they need compiling."""
    everywhere = set(codes)
    for r in range(1, how.repeat + 1):
        have = set[str]()
        if (out / f"{task}__r{r}" / "attempts.jsonl").exists():
            with _Repetition(out, task, r, how.settings) as run:
                have = set(run.have)
        everywhere &= have
    return [code for code in codes if code not in everywhere]


def _spread(labels: dict[str, float | None], measured: dict[str, list[Feedback]]) -> TaskSpread:
    """How far the measurements of a task's kernels agree, with each other and with the labels."""
    runs = {
        code: [f.aggregated_speedup for f in feedbacks if f.aggregated_speedup is not None]
        for code, feedbacks in measured.items()
    }
    medians = {code: statistics.median(values) for code, values in runs.items() if values}
    spread = sorted((max(v) - min(v)) / medians[code] for code, v in runs.items() if len(v) > 1)
    moved = [
        label is not None and bin_of(label) != bin_of(medians[code])
        for code, label in labels.items()
        if code in medians
    ]
    return TaskSpread(
        programs=len(labels),
        measured=sum(map(len, runs.values())),
        spread_median=statistics.median(spread) if spread else 0.0,
        spread_p90=spread[min(len(spread) - 1, int(0.9 * len(spread)))] if spread else 0.0,
        moved=sum(moved),
    )
