"""Follow the host code of an archive's programs, and write what they launch.

The programs run in the sandboxed worker, in its mode ``dry`` (``worker.py``, ``standin.py``); its
answers are checked here before they are written.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kernel_archive.archive.beside import LaunchLine
from kernel_archive.errors import printable
from kernel_archive.storage import check_new, write_new
from kernel_measure.measurer import START_TIMEOUT_S, MeasurerError
from kernel_measure.process import Lost, WorkerProcess
from kernel_measure.settings import Settings
from kernel_measure.tasks import TASK_NAMES
from kernel_measure.worker import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from kernel_archive.archive.open import Archive

_LANGUAGES: Final = ("triton", "pytorch")
_QUERY: Final = " UNION ".join(
    f"SELECT program_id, problem, code FROM {table}"
    " WHERE list_contains(?, problem) AND list_contains(?, language)"
    for table in ("kernels", "failures")
)


class DryRun(msgspec.Struct, kw_only=True):
    """How many programs were followed, and why others were not."""

    programs: int
    followed: int
    not_followed: dict[str, int]
    lines: int


def _follow(
    problem: str, rows: Iterable[dict[str, Any]], cache: Path, timeout_s: float, *, trusted: bool
) -> Generator[list[LaunchLine], None, None]:
    """The lines of each program of a problem; a worker that is lost is replaced."""
    config = Config(mode="dry", task=problem, device="cpu", settings=Settings(), trusted=trusted)
    worker: WorkerProcess | None = None
    try:
        for row in rows:
            if worker is None:
                worker = WorkerProcess(config, cache)
                if not worker.ready(START_TIMEOUT_S):
                    said = worker.output().strip().splitlines() or ["it says nothing"]
                    raise MeasurerError(f"no worker comes up: {printable(said[-1], 300)}")
            answer = worker.ask(row["code"], cache / row["program_id"], timeout_s)
            if isinstance(answer, Lost):
                worker.kill()
                worker = None
                yield launch_lines(row, {"error": answer.why})
            else:
                yield launch_lines(row, {"error": answer.error} if answer.error else answer.result)
    finally:
        if worker is not None:
            worker.kill()


def launch_lines(row: dict[str, Any], result: Any) -> list[LaunchLine]:
    """Check an answer, which a program may have made: its lines, or the one that says why not."""
    ours = {name: row[name] for name in ("program_id", "problem")}
    try:
        if "error" not in result:
            calls = [(i, call) for i, calls in enumerate(result["cases"]) for call in calls]
            return [msgspec.convert({**c, **ours, "case": i}, LaunchLine) for i, c in calls]
        reason = printable(str(result["error"]), 200)
    except (KeyError, TypeError, ValueError):
        reason = "garbage"
    return [LaunchLine(**ours, case=0, kind="not_followed", name=reason[:200])]


def dry_run(
    archive: Archive,
    output: Path,
    *,
    trusted: bool = False,
    timeout_s: float = 8.0,
    force: bool = False,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> DryRun:
    """Write what an archive's Triton and PyTorch programs launch, as JSON lines.

    A name that ends in ``.zst`` is compressed. ``advance`` is called with programs done, programs
    in all, and the problem.

    Raises:
        TargetExistsError: the file is there, and ``force`` is not given.
        IsolationError: programs cannot be isolated here, and are not trusted.
        MeasurerError: no worker comes up.
    """
    check_new(output, force=force)
    query = f"SELECT * FROM ({_QUERY}) ORDER BY problem, program_id"
    programs = archive.sql(query, [TASK_NAMES, _LANGUAGES] * 2).to_pylist()
    total, lines = len(programs), list[LaunchLine]()
    reasons, done = Counter[str](), itertools.count()
    with tempfile.TemporaryDirectory(prefix="kernel-archive-dry-") as folder:
        for problem, group in itertools.groupby(programs, key=lambda row: row["problem"]):
            follow = _follow(problem, group, Path(folder), timeout_s, trusted=trusted)
            with contextlib.closing(follow):
                for made in follow:
                    advance(next(done), total, problem)
                    lines += made
                    failed = (line.name for line in made if line.kind == "not_followed")
                    reasons.update(name.split(":")[0] for name in failed)
    advance(total, total, "")
    rows = (msgspec.structs.asdict(line) for line in lines)
    stated = [{name: v for name, v in row.items() if v is not None} for row in rows]
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in stated)
    if output.suffix == ".zst":
        data = pa.Codec("zstd", compression_level=15).compress(data, asbytes=True)
    write_new(output, data, force=force)
    return DryRun(
        programs=total,
        followed=total - reasons.total(),
        not_followed=dict(reasons.most_common()),
        lines=len(lines),
    )
