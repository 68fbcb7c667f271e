"""Measuring kernels of an archive again: which ones, how often, and logs that a build takes in (``attempts``)."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import msgspec

from kernel_archive.bins import SCHEMES, bin_of
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.measure.api import resolve_gpu
from kernel_archive.measure.logs import now, write_json
from kernel_archive.measure.runs import AttemptLog, earlier_run, feedback_of, run_document
from kernel_archive.measure.station import Station

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.measure.settings import Settings
    from kernel_archive.readers.events import Feedback


class Program(msgspec.Struct, frozen=True):
    """A kernel to measure again.

    Attributes:
        task: problem id.
        code: the program.
        speedup: its label so far, x.
    """

    task: str
    code: str
    speedup: float | None = None


class TaskSpread(msgspec.Struct, kw_only=True):
    """How far the measurements of a task's kernels agree.

    Attributes:
        programs: kernels.
        measured: successful measurements.
        spread_median: (largest - least) / median over a kernel's measurements, its median over the kernels.
        spread_p90: the same, 90th percentile.
        moved: kernels whose median lies in another bin than their label so far.
    """

    programs: int = 0
    measured: int = 0
    spread_median: float = 0.0
    spread_p90: float = 0.0
    moved: int = 0


class Again(msgspec.Struct, kw_only=True):
    """What was measured again."""

    tasks: dict[str, TaskSpread] = {}
    notes: list[str] = []


def choose(
    archive: Archive, where: str, *, edge: float = 0.05, limit: int | None = None, gpu: str | None = None
) -> list[Program]:
    """Kernels of an archive that the six tasks' references can be timed beside.

    Args:
        archive: the archive.
        where: ``eval`` (rows of the evaluation split), ``edge`` (within a share of a bin edge), ``flagged``, ``all``, or
            a SQL condition on the table kernels.
        edge: that share.
        limit: at most so many, in order of id.
        gpu: only kernels of this GPU; without it, of any.

    Raises:
        UsageError: the condition is not valid SQL, or the archive has no evaluation split.
    """
    from kernel_archive.measure.tasks import TASK_NAMES

    edges = " OR ".join(f"abs(ln(speedup / {e!r})) < ln(1 + {edge!r})" for e in SCHEMES["paper"].edges)
    conditions = {
        "all": "true",
        "edge": f"({edges})",
        "flagged": "len(flags) > 0",
        "eval": "kernel_id IN (SELECT kernel_id FROM eval)",
    }
    condition = conditions.get(where, f"({where})")
    if where == "eval" and "eval" not in archive.tables:
        raise UsageError("the archive has no evaluation split yet. Make it with: kernel-archive build-eval")
    tasks = ", ".join(f"'{t}'" for t in TASK_NAMES)
    query = f"SELECT problem, code, speedup FROM kernels WHERE problem IN ({tasks}) AND {condition}"
    parameters: list[Any] = []
    if gpu:
        query += " AND gpu = ?"
        parameters.append(canonical_gpu(gpu))
    query += " ORDER BY kernel_id" + (f" LIMIT {limit}" if limit else "")
    import duckdb

    try:
        rows = archive.sql(query, parameters).to_pylist()
    except duckdb.Error as error:
        raise UsageError(f"--select: {printable(str(error).splitlines()[0], 200)}") from error
    return [Program(r["problem"], r["code"], r["speedup"]) for r in rows]


def remeasure_programs(
    programs: Sequence[Program],
    out: Path,
    *,
    repeat: int,
    device: str,
    settings: Settings,
    gpu: str | None = None,
    seconds: float = float("inf"),
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Again:
    """Measure programs ``repeat`` times, every repetition in other workers; one run directory per task and repetition.

    A directory that is there already is gone on with: programs in it are not measured again. A program that is named twice
    is measured once. All are compiled before the first is timed, since a host that compiles launches kernels more slowly.

    Args:
        programs: what to measure.
        out: directory of the run directories.
        repeat: measurements of each.
        device: ``cuda`` or ``standin``.
        settings: the protocol.
        gpu: name of the GPU; asked from the driver when not given.
        seconds: start no measurement after so many seconds.
        advance: called with measurements done, measurements in all, and the task.

    Raises:
        BusyError: another process records into the directory.
        DataError: a log there was damaged, or made with other settings.
        MeasurerError: no worker comes up.
    """
    once: dict[tuple[str, str], Program] = {}
    for program in programs:
        once.setdefault((program.task, program.code), program)
    programs = list(once.values())
    deadline = time.monotonic() + seconds
    tasks = list(dict.fromkeys(p.task for p in programs))
    found: dict[int, list[float]] = {}
    failed: set[int] = set()
    total, done = len(programs) * repeat, 0
    missing = _missing(programs, out, repeat, settings)
    with Station(device, settings, resolve_gpu(device, gpu), tasks[0] if tasks else None) as station:
        for future in [f for p in missing for f in station.compile_ahead(p.task, [p.code])]:
            future.result()
        for r in range(1, repeat + 1):
            for task in tasks:
                with _Repetition(out / f"{task}__r{r}", task, r, settings) as run:
                    for i, program in enumerate(programs):
                        if program.task != task:
                            continue
                        feedback = run.have.get(program.code)
                        if feedback is None:
                            if time.monotonic() >= deadline:
                                continue
                            feedback = run.measure(program.code, station)
                        done += 1
                        advance(done, total, task)
                        if feedback.aggregated_speedup is not None:
                            found.setdefault(i, []).append(feedback.aggregated_speedup)
                        else:
                            failed.add(i)
                    run.finish({p.code for p in programs if p.task == task})
                station.measurer.end(task)
    return _summary(programs, found, failed, tasks)


class _Repetition:
    """One run directory: what it holds, and its ``run.json``, written before the first new row and after the last.

    ``finished`` says whether it holds every program that the last call asked for.

    Raises:
        BusyError: another process records into it.
        DataError: its log is damaged, or made with other settings.
    """

    def __init__(self, directory: Path, task: str, repetition: int, settings: Settings) -> None:
        self._path = directory / "run.json"
        self._task, self._repetition = task, repetition
        self._station: Station | None = None
        search = {"repetition": repetition, "aggregation": "geomean"}
        self._document = run_document(
            task, settings, method="remeasurement", mutator="none", run=directory.name, search=search
        )
        with ExitStack() as stack:
            self._log = AttemptLog(directory)
            stack.callback(self._log.close)
            self._earlier = earlier_run(self._path, self._document)
            if self._log.rows and self._earlier is None:
                raise DataError.of(
                    code="no-run-json", message="there are measurements, and no run.json says how they were made",
                    file=str(directory), fix="Move the folder away",
                )  # fmt: skip
            stack.pop_all()
        self.have = {row.code: feedback_of(row.evaluation) for row in self._log.rows}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def measure(self, code: str, station: Station) -> Feedback:
        """Measure a program and log it."""
        started = now()
        measured = station.measurer.measure(self._task, code)
        if self._station is None:
            self._station = station
            self._write(station.facts(), finished=False)
        row = self._log.add(code, measured, started, title="measured again", note=f"repetition {self._repetition}")
        self.have[code] = feedback_of(row.evaluation)
        return self.have[code]

    def finish(self, wanted: set[str]) -> None:
        """State what the directory holds now: when this call added to it, or an earlier one was killed before it could."""
        if self._station is not None:
            self._write(self._station.facts(), finished=wanted <= self.have.keys())
        elif self._earlier is not None and self._earlier.get("evaluations") != len(self._log.rows):
            self._write(self._earlier, finished=wanted <= self.have.keys())

    def _write(self, facts: dict[str, Any], *, finished: bool) -> None:
        rows = self._log.rows
        write_json(self._path, {
            **facts, **self._document, "finished": finished, "evaluations": len(rows),
            "start": rows[0].started_at if rows else None, "end": rows[-1].completed_at if rows else None,
        })  # fmt: skip


def _missing(programs: Sequence[Program], out: Path, repeat: int, settings: Settings) -> list[Program]:
    """The programs that some repetition has not measured yet; only they need compiling.

    Raises:
        BusyError: another process records into a directory.
        DataError: a log there was damaged, or made with other settings.
    """
    have: dict[tuple[str, int], Collection[str]] = {}
    for task in {p.task for p in programs}:
        for r in range(1, repeat + 1):
            directory = out / f"{task}__r{r}"
            if (directory / "attempts.jsonl").exists():
                with _Repetition(directory, task, r, settings) as run:
                    have[task, r] = run.have.keys()
    repetitions = range(1, repeat + 1)
    return [p for p in programs if any(p.code not in have.get((p.task, r), ()) for r in repetitions)]


def _summary(
    programs: Sequence[Program], found: dict[int, list[float]], failed: set[int], tasks: Sequence[str]
) -> Again:
    again = Again()
    for task in tasks:
        runs = {i: v for i, v in found.items() if programs[i].task == task}
        spread = sorted((max(v) - min(v)) / statistics.median(v) for v in runs.values() if len(v) > 1)
        moved = 0
        for i, values in runs.items():
            label = programs[i].speedup
            moved += label is not None and bin_of(label) != bin_of(statistics.median(values))
        again.tasks[task] = TaskSpread(
            programs=sum(p.task == task for p in programs),
            measured=sum(len(v) for v in runs.values()),
            spread_median=statistics.median(spread) if spread else 0.0,
            spread_p90=spread[min(len(spread) - 1, int(0.9 * len(spread)))] if spread else 0.0,
            moved=moved,
        )
    reached = found.keys() | failed
    if len(reached) < len(programs):
        again.notes.append(f"{len(programs) - len(reached)} kernels were not reached in time; call again to go on")
    if failed:
        again.notes.append(f"{len(failed)} kernels failed at least once now: see the logs for the reasons")
    return again
