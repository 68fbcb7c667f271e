"""Follow the host code of an archive's programs, and write what they launch.

The programs run in the sandboxed worker, in its mode ``dry`` (``worker.py``, ``standin.py``); its
answers are checked here before they are written.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kernel_archive.archive.beside import LaunchLine
from kernel_archive.errors import printable
from kernel_archive.storage import check_new, write_new
from kernel_measure.measurer import MeasurerError
from kernel_measure.process import Lost, WorkerProcess
from kernel_measure.settings import Settings
from kernel_measure.tasks import TASK_NAMES
from kernel_measure.worker import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_archive.archive.open import Archive

_LANGUAGES: Final = ("triton", "pytorch")
_START_S: Final = 300.0
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


class _Follower:
    """Follows programs of one problem in a worker, which is replaced when it is lost."""

    def __init__(self, problem: str, cache: Path, timeout_s: float, *, trusted: bool) -> None:
        self._config = Config(
            mode="dry", task=problem, device="cpu", settings=Settings(), trusted=trusted
        )
        self._cache, self._timeout_s = cache, timeout_s
        self._worker: WorkerProcess | None = None

    def follow(self, row: dict[str, Any]) -> list[LaunchLine]:
        """The lines of one program."""
        if self._worker is None:
            self._worker = WorkerProcess(self._config, self._cache)
            if not self._worker.ready(_START_S):
                said = self._worker.output().strip().splitlines() or ["it says nothing"]
                self.close()
                raise MeasurerError(f"no worker comes up: {printable(said[-1], 300)}")
        answer = self._worker.ask(row["code"], self._cache / row["program_id"], self._timeout_s)
        if isinstance(answer, Lost):
            self.close()
            return _lines(row, {"error": answer.why})
        return _lines(row, answer.result if not answer.error else {"error": answer.error})

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _lines(row: dict[str, Any], result: Any) -> list[LaunchLine]:
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


def _programs(archive: Archive) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Programs of problems that have a task, by problem."""
    query = f"SELECT * FROM ({_QUERY}) ORDER BY problem, program_id"
    rows = archive.sql(query, [TASK_NAMES, _LANGUAGES] * 2).to_pylist()
    for problem, programs in groupby(rows, key=lambda row: row["problem"]):
        yield problem, list(programs)


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
    groups = list(_programs(archive))
    total, lines, reasons, done = sum(len(rows) for _, rows in groups), [], Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="kernel-archive-dry-") as folder:
        for problem, rows in groups:
            follower = _Follower(problem, Path(folder), timeout_s, trusted=trusted)
            try:
                for row in rows:
                    advance(done, total, problem)
                    made = follower.follow(row)
                    reasons.update(
                        line.name.split(":")[0] for line in made if line.kind == "not_followed"
                    )
                    lines += made
                    done += 1
            finally:
                follower.close()
    advance(total, total, "")
    encoder = msgspec.json.Encoder()
    data = b"".join(encoder.encode(_stated(line)) + b"\n" for line in lines)
    if output.suffix == ".zst":
        data = pa.Codec("zstd", compression_level=15).compress(data, asbytes=True)
    write_new(output, data, force=force)
    failed = dict(reasons.most_common())
    return DryRun(
        programs=total,
        followed=total - sum(failed.values()),
        not_followed=failed,
        lines=len(lines),
    )


def _stated(line: LaunchLine) -> dict[str, Any]:
    return {name: v for name, v in msgspec.structs.asdict(line).items() if v is not None}
