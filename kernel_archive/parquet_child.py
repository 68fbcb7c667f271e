"""Turn the Parquet file on standard input into rows on standard output, as a process of its own.

Arrow trusts what a file says of itself: a few kilobytes can ask for gigabytes, and one damaged
byte can end the process. Here either ends this process alone, within its limits.

The output is frames, each a length of four bytes and a value in MessagePack: an object for every
row, ``None`` for one that is too long, and at the end a list, empty or with a code and a message.
"""

from __future__ import annotations

import resource
import sys
from typing import Any, Final

import msgspec

#: Rows that Arrow decodes at a time; each may hold a text of a megabyte, so more take much memory.
_BATCH_ROWS: Final = 256


class ChildLimits(msgspec.Struct, frozen=True):
    """What is read of a file, and up to where."""

    wanted: list[str] | None  # columns to read, the others come as None; all where it is None
    columns: int  # refuse a table with more columns
    rows: int  # refuse a table with more rows
    total: int  # stop after this many bytes of rows
    row: int  # leave out a row with more bytes
    memory: int  # bytes of address space of this process; beyond it an allocation fails
    seconds: int  # processor time, after which the process is killed


class _RefusedError(Exception):
    """Raised with a code and a message, for a table that is not read to its end."""


def _send_rows(limits: ChildLimits) -> None:
    """Send every row of the table on standard input."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(sys.stdin.buffer, page_checksum_verification=True) as table:
        names, n_rows = table.schema_arrow.names, table.metadata.num_rows
        wanted = [name for name in names if limits.wanted is None or name in limits.wanted]
        if len(names) > limits.columns:
            message = f"the table has {len(names):,} columns, more than {limits.columns:,}"
            raise _RefusedError("file-too-large", message)
        if n_rows > limits.rows:
            message = f"the table has {n_rows:,} rows, and at most {limits.rows:,} are read"
            raise _RefusedError("file-too-large", message)
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
                if total > limits.total:
                    message = f"the table holds more than {limits.total >> 20} MiB of text"
                    raise _RefusedError("file-too-large", message)
                _send(row if len(row) <= limits.row else msgspec.msgpack.encode(None))


def _send(frame: bytes) -> None:
    sys.stdout.buffer.write(len(frame).to_bytes(4, "little") + frame)


def main() -> None:
    """Read the limits from the command line, keep to them, and send the rows and the end."""
    limits = msgspec.json.decode(sys.argv[1], type=ChildLimits)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
    end: list[Any] = []
    try:
        _send_rows(limits)
    except _RefusedError as error:
        end = [*error.args]
    except MemoryError:
        end = ["file-too-large", f"reading it takes more than {limits.memory >> 20} MiB"]
    except Exception as error:  # noqa: BLE001 - whatever Arrow makes of a damaged file
        end = ["unreadable", str(error)]
    _send(msgspec.msgpack.encode(end))


if __name__ == "__main__":
    main()
