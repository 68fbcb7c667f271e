"""Measuring kernels of an archive again: which ones, how often, and logs that a build takes in (``attempts``)."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.bins import SCHEMES, bin_of
from kernel_archive.errors import DataError, Finding, UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import program_id
from kernel_archive.measure.api import resolve_gpu
from kernel_archive.measure.compile_ahead import CompilePool
from kernel_archive.measure.hardware import Watch
from kernel_archive.measure.logs import JsonLines, now, read_lines, write_json
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.record import earlier_run, share_processors
from kernel_archive.measure.tasks import get_task
from kernel_archive.measure.verdict import evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.measure.settings import Settings

__all__ = ["Again", "Program", "TaskSpread", "choose", "remeasure_programs"]


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
    part: int = 0,
    parts: int = 1,
    cache: Path | None = None,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Again:
    """Measure programs ``repeat`` times, every repetition in other workers; one run directory per task and repetition.

    A directory that is there already is gone on with: programs in it are not measured again. A program that is named twice
    is measured once.

    Args:
        programs: what to measure.
        out: directory of the run directories.
        repeat: measurements of each.
        device: ``cuda`` or ``standin``.
        settings: the protocol.
        gpu: name of the GPU; asked from the driver when not given.
        seconds: start no measurement after so many seconds.
        part: which share of the machine's processors, from 0.
        parts: measurers that share the machine.
        cache: compiler caches; a temporary directory when not given.
        advance: called with measurements done, measurements in all, and the task.

    Raises:
        BusyError: another process records into the directory.
        DataError: a log there was damaged, or made with other settings.
        MeasurerError: no worker comes up.
    """
    programs = list({(p.task, p.code): p for p in reversed(programs)}.values())[::-1]
    deadline = time.monotonic() + seconds
    name = resolve_gpu(device, gpu)
    mine, others = share_processors(part, parts)
    tasks = list(dict.fromkeys(p.task for p in programs))
    found: dict[int, list[float]] = {}
    failed: set[int] = set()
    total, done = len(programs) * repeat, 0
    watch = Watch(enabled=device == "cuda")
    with Measurer(device, settings, gpu=name, cache=cache, cpus=mine, start_cpus=others) as measurer:
        pool = None
        if tasks:
            pool = CompilePool(
                max(1, len(others) - 1),
                task=tasks[0],
                device=device,
                settings=settings,
                cache=measurer.cache,
                cpus=others,
            )
        try:
            missing = _missing(programs, out, repeat, settings)
            ahead = {i: pool.submit(programs[i].task, programs[i].code) for i in missing} if pool else {}
            for r in range(1, repeat + 1):
                for task in tasks:
                    directory = out / f"{task}__r{r}"
                    with (
                        JsonLines(directory / "attempts.jsonl") as log,
                        JsonLines(directory / "timing.jsonl") as timing,
                    ):
                        have = _had(directory)
                        had = count = max((row["attempt"] for row in have.values()), default=-1) + 1
                        for i, program in enumerate(programs):
                            if program.task != task:
                                continue
                            row = have.get(program.code)
                            if row is None:
                                if time.monotonic() >= deadline:
                                    continue
                                ahead[i].result()
                                started = now()
                                measured = measurer.measure(task, program.code)
                                row = {
                                    "attempt": count, "parent_attempt": None, "title": "measured again",
                                    "note": f"repetition {r}", "code": program.code, "started_at": started,
                                    "completed_at": now(), "evaluation": evaluation(measured),
                                }  # fmt: skip
                                timing.append({
                                    "program": program_id(program.code), "started_at": started,
                                    "completed_at": now(), **measured.timing(),
                                })  # fmt: skip
                                log.append(row)
                                count += 1
                            done += 1
                            advance(done, total, task)
                            feedback = row["evaluation"]["observation"]["feedback"]
                            if feedback["kind"] == "success":
                                found.setdefault(i, []).append(feedback["aggregated_speedup"])
                            else:
                                failed.add(i)
                        if count > had or (count and not (directory / "run.json").exists()):
                            wanted = {p.code for p in programs if p.task == task}
                            _write_run(directory, task, r, measurer, watch, settings, wanted)
                    measurer.replace(task)
        finally:
            if pool is not None:
                pool.close()
            watch.close()
    return _summary(programs, found, failed, tasks)


def _had(directory: Path) -> dict[str, Any]:
    """The measurements of a run directory by program.

    Raises:
        DataError: a line is no row of ours.
    """
    path = directory / "attempts.jsonl"
    have: dict[str, Any] = {}
    for number, row in enumerate(read_lines(path), 1):
        try:
            _ = row["attempt"] + 1, row["evaluation"]["observation"]["feedback"]["kind"]
            have[row["code"]] = row
        except (KeyError, TypeError) as error:
            finding = Finding(
                code="wrong-format", message="not a row of a remeasurement", file=str(path), line=number,
                field=str(error).strip("'"), fix="This run can't be resumed; move it away and measure anew",
            )  # fmt: skip
            raise DataError.from_findings([finding]) from error
    return have


def _missing(programs: Sequence[Program], out: Path, repeat: int, settings: Settings) -> list[int]:
    """Positions of the programs that some repetition has not measured yet; only they need compiling.

    Raises:
        DataError: a log there was damaged, or made with other settings.
    """
    have: dict[tuple[str, int], dict[str, Any]] = {}
    for task in {p.task for p in programs}:
        for r in range(1, repeat + 1):
            directory = out / f"{task}__r{r}"
            if (directory / "attempts.jsonl").exists():
                earlier_run(directory / "run.json", _header(task, settings))
                with JsonLines(directory / "attempts.jsonl"):  # opening cuts off a torn last line
                    have[task, r] = _had(directory)
    repetitions = range(1, repeat + 1)
    return [i for i, p in enumerate(programs) if any(p.code not in have.get((p.task, r), ()) for r in repetitions)]


def _header(task: str, settings: Settings) -> dict[str, Any]:
    """What a run and its continuation have in common."""
    facts = get_task(task)
    return {
        "method": "remeasurement", "task": task, "mutator": "none",
        "measurement": msgspec.json.decode(msgspec.json.encode(settings.describe())), "reference_source": facts.reference,
        "benchmark_cases": list(facts.benchmark_cases), "correctness_cases": list(facts.correctness_cases),
        "tolerance": {"rtol": facts.rtol, "atol": facts.atol},
    }  # fmt: skip


def _write_run(
    directory: Path, task: str, repetition: int, measurer: Measurer, watch: Watch, settings: Settings, wanted: set[str]
) -> None:
    software = {**measurer.facts.get("software", {}), "driver": watch.first.get("driver_version")}
    rows = list(read_lines(directory / "attempts.jsonl"))
    write_json(directory / "run.json", {
        **_header(task, settings), "run": directory.name, "search": {"repetition": repetition, "aggregation": "geomean"},
        "finished": wanted <= {row["code"] for row in rows}, "evaluations": len(rows),
        "start": rows[0]["started_at"], "end": rows[-1]["completed_at"],
        **measurer.facts, "software": software, "nvidia_smi": watch.first, "environment_last": watch.latest(),
    })  # fmt: skip


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
