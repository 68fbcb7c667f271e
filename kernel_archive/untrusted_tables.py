"""Rows of Parquet files that strangers made: a child process with limits reads them.

Arrow trusts what a file says of itself: a few kilobytes can ask for gigabytes, and one damaged
byte can end the process. Here either ends the child alone. It runs :func:`main`: the file is its
standard input, and on its standard output it sends frames, each a length of four bytes and a value
in MessagePack: an object for every row, ``None`` for one that is too long, and at the end a list,
empty or with a code and a message.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.untrusted import MAX_LINE_BYTES

#: Address space of the child: a table that takes more to read is refused.
MAX_CHILD_BYTES: Final = 2 << 30
#: Processor time of the child: reading stops after it; a million forecasts take a tenth of it.
MAX_CHILD_SECONDS: Final = 120
#: Rows that Arrow decodes at a time; each may hold a text of a megabyte, so more take much memory.
_BATCH_ROWS: Final = 256
#: The child takes no more than it needs of the address space, and starts no threads.
_FRUGAL: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}


class _RefusedError(Exception):
    """Raised with a code and a message, for a table that is not read to its end."""


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
    limits = {
        "wanted": None if wanted is None else sorted(wanted),  # None for all columns
        "max_rows": max_rows,  # refuse a table with more rows
        "max_bytes": max_bytes,  # stop after this many bytes of rows
        "max_row": max_row,  # leave out a row with more bytes
        "memory": MAX_CHILD_BYTES,
        "seconds": MAX_CHILD_SECONDS,
    }
    try:
        for line, frame in enumerate(_frames(path, limits), 1):
            if isinstance(frame, dict):
                yield line, frame
            elif frame is None:
                message = f"the row holds more than {max_row >> 20} MiB of text"
                fix = "Shorten its texts"
                yield Finding(code="line-too-long", message=message, file=name, line=line, fix=fix)
            elif frame:
                yield Finding(code=frame[0], message=printable(frame[1], 200), file=name)
    except OSError as error:
        yield Finding(code="unreadable", message=f"cannot be read: {error.strerror}", file=name)


def _frames(path: Path, limits: dict[str, Any]) -> Iterator[dict[str, Any] | list[str] | None]:
    """Start a child for a file, and decode what it sends up to the list at the end."""
    with (
        path.open("rb") as file,
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, msgspec.json.encode(limits).decode()],
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
    yield ["unreadable", "no Parquet file that can be read: the process that read it ended early"]


def _send_rows(limits: dict[str, Any]) -> None:
    """Send every row of the table on standard input."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(sys.stdin.buffer, page_checksum_verification=True) as table:
        names, n_rows = table.schema_arrow.names, table.metadata.num_rows
        wanted = [name for name in names if limits["wanted"] is None or name in limits["wanted"]]
        if n_rows > limits["max_rows"]:
            fault = f"the table's rows are {n_rows:,}, and at most {limits['max_rows']:,} are read"
            raise _RefusedError("file-too-large", fault)
        if len(set(wanted)) < len(wanted):
            twice = max(wanted, key=wanted.count)
            raise _RefusedError("repeated-field", f"the table has two columns {twice[:100]!r}")
        total = 0
        for batch in table.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False):
            # One row at a time: a whole batch as Python objects can take many times its size.
            for i in range(batch.num_rows):
                (fields,) = batch.slice(i, 1).to_pylist(maps_as_pydicts="strict")
                row = msgspec.msgpack.encode(dict.fromkeys(names) | fields, enc_hook=str)
                total += len(row)
                if total > limits["max_bytes"]:
                    message = f"the table holds more than {limits['max_bytes'] >> 20} MiB of text"
                    raise _RefusedError("file-too-large", message)
                _send(row if len(row) <= limits["max_row"] else msgspec.msgpack.encode(None))


def _send(frame: bytes) -> None:
    sys.stdout.buffer.write(len(frame).to_bytes(4, "little") + frame)


def main() -> None:
    """Read the limits from the command line, keep to them, and send the rows and the end."""
    limits = msgspec.json.decode(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limits["seconds"],) * 2)
    end: list[Any] = []
    try:
        _send_rows(limits)
    except _RefusedError as error:
        end = [*error.args]
    except MemoryError:
        end = ["file-too-large", f"reading it takes more than {limits['memory'] >> 20} MiB"]
    except Exception as error:  # noqa: BLE001 - whatever Arrow makes of a damaged file
        end = ["unreadable", f"no Parquet file that can be read: {error}"]
    _send(msgspec.msgpack.encode(end))


if __name__ == "__main__":
    main()
