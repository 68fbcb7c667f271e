"""Crash-safe JSON-lines files.

A line is written in one call and synchronised to disk. When a file is opened again, a last line
without its end is kept if it is complete JSON, else cut off (it was never acknowledged to anyone).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
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
MAX_GIVEN: Final = 1 << 20


class BusyError(KernelArchiveError):
    """Raised when another process records into the same run."""


def now() -> str:
    """UTC time as the logs state it: ISO 8601, microseconds, ``Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_ulid() -> str:
    """A ULID: 26 characters; those of one process sort as they were made."""
    return str(_ulids.generate())


class JsonLines:
    """An append-only file of JSON lines with one writer.

    Raises:
        BusyError: another process has it open for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made_folder = not path.parent.exists()
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._file)
                raise BusyError(f"{path}: another process is recording into this run") from error
            if self._is_there():
                break
            os.close(self._file)  # its last writer took the empty file away before the lock
        self._repair()

    def _is_there(self) -> bool:
        """Whether the path still names the open file."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except OSError:
            return False

    def _repair(self) -> None:
        """End or cut off a last line without its end."""
        written = self.path.read_bytes()
        fragment = written.rpartition(b"\n")[2]
        if not fragment:
            return
        try:
            msgspec.json.decode(fragment)
        except (msgspec.DecodeError, UnicodeDecodeError):
            os.ftruncate(self._file, len(written) - len(fragment))
        else:
            os.write(self._file, b"\n")
        os.fsync(self._file)

    def append(self, value: Any) -> None:
        """Write one line; it is on disk when this returns."""
        data = memoryview(msgspec.json.encode(value) + b"\n")
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file and give the lock back.

        A run that a deadline stopped before its first line would otherwise lie there as a log that
        nobody can read.
        """
        if os.fstat(self._file).st_size == 0 and self._is_there():
            with suppress(OSError):
                self.path.unlink()
                if self._made_folder:
                    self.path.parent.rmdir()
        os.close(self._file)


def read_given(path: Path, kind: type[T], *, code: str, fix: str | None = None) -> T:
    """Read a file that somebody wrote for us: text for ``str``, else JSON of that type.

    Raises:
        DataError: it is not what was asked for, with file and field; ``code`` and ``fix`` go along.
    """
    try:
        data = read_whole(path, max_bytes=MAX_GIVEN)
        return cast("T", data.decode()) if kind is str else msgspec.json.decode(data, type=kind)
    except UntrustedFileError as error:
        raise DataError.from_findings([error.finding(str(path))]) from None
    except UnicodeDecodeError as error:
        text, field = f"not UTF-8: {error}", None
    except msgspec.DecodeError as error:
        text, field = misfit(error)
    message = printable(text, 300)
    raise DataError.of(code=code, file=str(path), field=field, message=message, fix=fix)


def read_lines(path: Path, kind: Any) -> list[Any]:
    """The lines of a log of ours as values of a type (or one of several), in order.

    Raises:
        DataError: a line is damaged or of another kind; logs written here have none after they were
            opened for writing.
    """
    if not path.exists():
        return []
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
    """What is said of a log that a run can't go on from."""
    place = {"file": str(path), "line": line, "field": field}
    fix = "This run can't be resumed; move it away and record it anew"
    return DataError.of(code="wrong-format", message=message, fix=fix, **place)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document whole: readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1))
