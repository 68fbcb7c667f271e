"""Crash-safe JSON-lines files.

A line is synchronised to disk before it counts. When a file is read to go on from, a last line
without its end is kept if it is complete JSON, else cut off (it was never acknowledged to anyone).
One process at a time records into a directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from ulid import ULIDGenerator

from kernel_archive.errors import DataError, KernelArchiveError, printable
from kernel_archive.storage import write_atomically
from kernel_archive.untrusted import UntrustedFileError, misfit, read_whole

T = TypeVar("T")
_ulids: Final = ULIDGenerator()
#: Refuse a given file above this size, bytes: no program of the archive comes near it.
MAX_GIVEN_BYTES: Final = 1 << 20


def now() -> str:
    """Return the UTC time as the logs state it: ISO 8601, microseconds, ``Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_ulid() -> str:
    """Make a ULID: 26 characters; those of one process sort as they were made."""
    return str(_ulids.generate())


@contextmanager
def recording_into(out: Path) -> Iterator[None]:
    """Hold a directory of runs while the block runs.

    Raises:
        KernelArchiveError: another process records into it.
    """
    out.mkdir(parents=True, exist_ok=True)
    # The directory itself is locked: two names of it, in two containers, are one directory.
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"another process is recording into {out}: give each a directory of its own"
        raise KernelArchiveError(message) from None
    except OSError as error:  # some network file systems
        message = f"{out} can't be locked ({error}). Record into a directory of a local disk"
        raise KernelArchiveError(message) from error
    else:
        yield
    finally:
        os.close(folder)


def append_line(path: Path, value: Any) -> None:
    """Write one line into a folder that is there; it is on disk when this returns."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(value) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_given(path: Path, kind: type[T], *, code: str, fix: str | None = None) -> T:
    """Read a file that somebody wrote for us: text for ``str``, else JSON of that type.

    Raises:
        DataError: it is not what was asked for, with file and field; ``code`` and ``fix`` go along.
    """
    try:
        data = read_whole(path, max_bytes=MAX_GIVEN_BYTES)
        return cast("T", data.decode()) if kind is str else msgspec.json.decode(data, type=kind)
    except UntrustedFileError as error:
        raise DataError.from_findings([error.finding(str(path))]) from None
    except UnicodeDecodeError as error:
        text, field = f"not UTF-8: {error}", None
    except msgspec.DecodeError as error:
        text, field = misfit(error)
    message = printable(text, 300)
    raise DataError.of(code=code, file=str(path), field=field, message=message, fix=fix)


def _mend(path: Path) -> None:
    """End or cut off a last line without its end."""
    written = path.read_bytes()
    fragment = written.rpartition(b"\n")[2]
    if not fragment:
        return
    with path.open("ab") as file:
        try:
            msgspec.json.decode(fragment)
        except (msgspec.DecodeError, UnicodeDecodeError):
            file.truncate(len(written) - len(fragment))
        else:
            file.write(b"\n")
            file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, kind: Any) -> list[Any]:
    """Read the lines of a log of ours, in order, as values of a type or one of several.

    A last line without its end is ended or cut off in the file first.

    Raises:
        DataError: a line is damaged or of another kind; logs written here have none.
    """
    if not path.exists():
        return []
    _mend(path)
    decode = msgspec.json.Decoder(kind).decode
    values = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            values.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text, field = misfit(error)
            message = f"damaged, or not recorded here: {text}"
            raise unresumable(path, number, message, field) from error
    return values


def unresumable(path: Path, line: int, message: str, field: str | None = None) -> DataError:
    """Make the error of a log that a run can't go on from."""
    place = {"file": str(path), "line": line, "field": field}
    fix = "This run can't be resumed; move it away and record it anew"
    return DataError.of(code="wrong-format", message=message, fix=fix, **place)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document whole: readers see the old one or the new one."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1))
