"""Have an archive's programs followed, and write what they launch.

Without a GPU: mode ``dry`` follows the host code on tensors without values (``following.py``). On a
GPU: mode ``profile`` asks torch's profiler what the compiler made of each kernel, those of CUDA C++
and of torch included (``profiler.py``). Programs run in the sandboxed worker; its answers are
checked here before they are written.

Programs of the package's own problems are followed on their timed cases. Without a GPU, those in
the form of KernelBench (``ModelNew`` or ``Model``) are, too, on the inputs of their reference.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from kernel_archive._version import __version__
from kernel_archive.archive.build import Advance
from kernel_archive.archive.open import Archive
from kernel_archive.archive.recipe_files import FULL_LAUNCH_LINE, LaunchLine
from kernel_archive.errors import printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.scoring.cues import multiprocessors_of
from kernel_archive.storage import check_new, locked, write_new
from kernel_measure.logs import append_line, read_lines
from kernel_measure.measurer import START_TIMEOUT_S, MeasurerError
from kernel_measure.process import LostRequest, WorkerProcess
from kernel_measure.settings import Settings, WorkerConfig
from kernel_measure.tasks import TASK_NAMES
from kernel_measure.worker import Reply

#: What a mode can follow, and how long a program may take, s.
_LANGUAGES: Final = {
    "dry": ("triton", "pytorch", "gluon"),
    "profile": ("triton", "pytorch", "gluon", "cuda"),
}
_TIMEOUT_S: Final = {"dry": 8.0, "profile": 150.0}
#: A line of the unfinished file: problem, id and launch lines of a program.
_ANSWERED: Final[Any] = tuple[str, str, list[FULL_LAUNCH_LINE]]
#: Programs of our tasks ($1), in the languages ($2) of the mode ($3), and in mode ``dry`` those in
#: the form of KernelBench whose reference is known; of several references the first by its id.
_QUERY: Final = """
WITH programs AS (
    SELECT program_id, problem, reference_id, code, language FROM kernels
    UNION ALL SELECT program_id, problem, reference_id, code, language FROM failures)
SELECT program_id, p.problem, p.code, list_contains($1, p.problem) AS is_task,
    coalesce(min_by(r.code, reference_id), '') AS reference
FROM programs p LEFT JOIN "references" r USING (reference_id)
WHERE list_contains($2, p.language)
GROUP BY ALL
HAVING is_task OR ($3 = 'dry' AND contains(p.code, 'class Model')
    AND contains(reference, 'def get_inputs'))
ORDER BY p.problem, program_id"""


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are followed."""

    mode: Literal["dry", "profile"] = "dry"
    trusted: bool = False
    workers: int = 1  # processes; those of ``profile`` share the GPU, since nothing is timed
    seconds: float = math.inf  # no program is begun after this time


class Followed(msgspec.Struct, kw_only=True):
    """How many programs were followed, and why others were not."""

    programs: int
    followed: int
    not_followed: dict[str, int]
    lines: int


def _follow(
    rows: Iterable[dict[str, Any]],
    cache: Path,
    how: FollowOptions,
    multiprocessors: int,
    report: Callable[[dict[str, Any], list[LaunchLine]], None],
    stop: threading.Event,
) -> None:
    """Report the lines of each program, until told to stop; a worker that is lost is replaced."""
    end = time.monotonic() + how.seconds
    device = "cuda" if how.mode == "profile" else "cpu"
    config = WorkerConfig(
        mode=how.mode,
        task="",
        device=device,
        settings=Settings(),
        multiprocessors=multiprocessors,
        trusted=how.trusted,
    )
    worker: WorkerProcess | None = None
    with ExitStack() as workers:
        for row in rows:
            if stop.is_set() or time.monotonic() >= end:
                return
            if worker is None:
                worker = WorkerProcess(config, cache)
                workers.callback(worker.kill)
                if not worker.ready(START_TIMEOUT_S):
                    raise MeasurerError(f"no worker comes up: {worker.last_line()}")
            kind = {"task": row["problem"]} if row["is_task"] else {"reference": row["reference"]}
            answer = worker.ask(row["code"], _TIMEOUT_S[how.mode], **kind)
            if isinstance(answer, LostRequest):
                answer = Reply(error=answer.why, ends_worker=True)
            result = {"error": answer.error} if answer.error else answer.result
            report(row, launch_lines(row, result))
            if answer.ends_worker:
                worker.kill()
                worker = None


def launch_lines(row: dict[str, Any], result: Any) -> list[LaunchLine]:
    """Check an answer, which a program may have made: its lines, or the one that says why not."""
    ids = {name: row[name] for name in ("program_id", "problem")}
    try:
        if "error" not in result:
            calls = [(i, call) for i, calls in enumerate(result["cases"]) for call in calls]
            return [msgspec.convert({**c, **ids, "case": i}, FULL_LAUNCH_LINE) for i, c in calls]
        reason = printable(str(result["error"]), 200)
    except (KeyError, TypeError, ValueError):
        reason = "garbage"
    return [LaunchLine(**ids, case=0, kind="not_followed", name=reason[:200])]


def _key(row: dict[str, Any]) -> tuple[str, str]:
    """Return what names a program of the query."""
    return row["problem"], row["program_id"]


def follow_programs(
    archive: Archive,
    output: Path,
    how: FollowOptions,
    *,
    force: bool = False,
    advance: Advance = lambda _done, _total, _what: None,
) -> Followed:
    """Write what an archive's programs launch, as JSON lines.

    A name that ends in ``.zst`` is compressed. A call that was killed leaves what it had beside the
    file, and the next goes on from there. ``advance`` is called with programs done, programs in
    all, and the problem.

    Raises:
        TargetExistsError: the file is there, and ``force`` is not given.
        KernelArchiveError: another call is at work on the file.
        IsolationError: programs cannot be isolated here, and are not trusted.
        MeasurerError: no worker comes up.
    """
    check_new(output, force=force)
    lock = output.with_name(f".{output.name}.lock")
    busy = f"another call is at work on {printable(output, 300)}. Wait for it to end"
    with locked(lock, busy=busy):
        check_new(output, force=force)  # another call may have written it meanwhile
        return _follow_missing(archive, output, how, force, advance)


def _follow_missing(
    archive: Archive, output: Path, how: FollowOptions, force: bool, advance: Advance
) -> Followed:
    """Follow the programs that have no answer yet, and write all answers to the file."""
    # The GPU of most programs: a program is followed once, whatever it was measured on.
    gpu = archive.sql("SELECT coalesce(mode(gpu), '') AS gpu FROM kernels")["gpu"][0].as_py()
    multiprocessors = multiprocessors_of(archive, gpu)
    programs = archive.sql(_QUERY, [TASK_NAMES, _LANGUAGES[how.mode], how.mode]).to_pylist()
    # What the answers depend on is in the name, so that no others are gone on with.
    state = [how.mode, archive.manifest.logical_digest, multiprocessors, __version__]
    key = sha256_hex(canonical_json(state))[:8]
    unfinished = output.with_name(f"{output.name}.unfinished-{key}")
    earlier = read_lines(unfinished, _ANSWERED)
    answered: dict[tuple[str, str], list[LaunchLine]] = {
        (problem, program): lines for problem, program, lines in earlier
    }
    missing = [row for row in programs if _key(row) not in answered]
    done = itertools.count(len(programs) - len(missing) + 1)

    writing, stop = threading.Lock(), threading.Event()

    def report(row: dict[str, Any], program_lines: list[LaunchLine]) -> None:
        with writing:
            append_line(unfinished, (*_key(row), program_lines))
        answered[_key(row)] = program_lines
        advance(next(done), len(programs), row["problem"])

    with (
        tempfile.TemporaryDirectory(prefix="kernel-archive-follow-") as folder,
        ThreadPoolExecutor(how.workers) as pool,
    ):
        calls = []
        for i in range(how.workers):
            share, cache = missing[i :: how.workers], Path(folder) / str(i)
            calls.append(pool.submit(_follow, share, cache, how, multiprocessors, report, stop))
        try:
            for call in as_completed(calls):
                call.result()
        finally:
            stop.set()  # after an interrupt, or the error of one share
    lines = [line for row in programs for line in answered.get(_key(row), [])]
    rows = map(msgspec.structs.asdict, lines)
    stated = [{name: v for name, v in row.items() if v is not None} for row in rows]
    data = msgspec.json.Encoder().encode_lines(stated)
    if output.suffix == ".zst":
        data = pa.Codec("zstd", compression_level=15).compress(data, asbytes=True)
    write_new(output, data, force=force)
    if len(answered) == len(programs):
        unfinished.unlink(missing_ok=True)
    failed = Counter(line.name.split(":")[0] for line in lines if line.kind == "not_followed")
    return Followed(
        programs=len(programs),
        followed=len(answered) - failed.total(),
        not_followed=dict(failed.most_common()),
        lines=len(lines),
    )
