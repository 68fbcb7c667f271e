"""Rows of Parquet files that strangers made: a child process with limits reads them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive import parquet_child
from kernel_archive.errors import Finding, printable
from kernel_archive.untrusted import MAX_LINE_BYTES, UntrustedFileError, is_compressed, read_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

#: Address space of the child: a table that takes more to read is refused.
MAX_CHILD_BYTES: Final = 2 << 30
#: Processor time of the child: reading stops after it; a million forecasts take a tenth of it.
MAX_CHILD_SECONDS: Final = 120
#: Refuse a table with more columns; the widest of ours has some fifty.
MAX_COLUMNS: Final = 1_000
#: The child takes no more than it needs of the address space, and starts no threads.
_FRUGAL: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}


def parquet_rows(
    path: Path,
    *,
    name: str,
    wanted: Collection[str] | None,
    max_rows: int,
    max_bytes: int,
    max_row: int = MAX_LINE_BYTES,
) -> Iterator[tuple[int, dict[str, Any]] | Finding]:
    """Read row number (from 1) and fields of every row, or what is wrong with the table.

    Columns that are not ``wanted`` come as ``None``, so that their names are known. Starting the
    child takes about 0.3 s, so shards of our own making are read without it.
    """
    limits = parquet_child.ChildLimits(
        wanted=None if wanted is None else sorted(wanted),
        columns=MAX_COLUMNS,
        rows=max_rows,
        total=max_bytes,
        row=max_row,
        memory=MAX_CHILD_BYTES,
        seconds=MAX_CHILD_SECONDS,
    )
    message = f"the row holds more than {max_row >> 20} MiB of text"
    try:
        for line, frame in enumerate(_frames(path, limits), 1):
            if isinstance(frame, dict):
                yield line, frame
            elif frame is None:
                place: dict[str, Any] = {"file": name, "line": line, "fix": "Shorten its texts"}
                yield Finding(code="line-too-long", message=message, **place)
            elif frame:
                code, said = frame
                yield _refusal(code, said, name)
    except UntrustedFileError as error:
        yield error.finding(name)
    except OSError as error:
        yield _refusal("unreadable", error.strerror or str(error), name)


def _frames(
    path: Path, limits: parquet_child.ChildLimits
) -> Iterator[dict[str, Any] | list[str] | None]:
    """Start a child for a file, and decode what it sends up to the list at the end."""
    command = [sys.executable, "-I", parquet_child.__file__, msgspec.json.encode(limits).decode()]
    with (
        _open_seekable(path, limits.total) as file,
        subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_FRUGAL},
        ) as child,
    ):
        try:
            assert child.stdout is not None  # noqa: S101 - for the type checker
            while size := int.from_bytes(child.stdout.read(4), "little"):
                data = child.stdout.read(size)
                if len(data) < size:
                    break
                frame = msgspec.msgpack.decode(data)
                yield frame
                if isinstance(frame, list):
                    return
        finally:
            child.kill()
    yield ["unreadable", "the process that read it ended early"]


@contextmanager
def _open_seekable(path: Path, max_bytes: int) -> Iterator[IO[bytes]]:
    """Open a file for the child; a compressed one as a copy without compression, to seek in."""
    if not is_compressed(path):
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        copy.write(read_whole(path, max_bytes=max_bytes))
        copy.seek(0)
        yield copy


def _refusal(code: str, message: str, name: str) -> Finding:
    """Say why a table, or the rest of it, is not read."""
    message = printable(message, 200)
    if code != "unreadable":
        return Finding(code=code, message=message, file=name)
    message = f"not a Parquet file that can be read: {message}"
    return Finding(code=code, message=message, file=name, fix="Write it again")
