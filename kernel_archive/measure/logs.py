"""Crash-safe JSON-lines files: one writer, whole lines only, and a repair that never glues a fragment to the next line.

A line is written in one call and synchronised to disk. When a file is opened again, a last line without its end is kept
if it is complete JSON, else cut off (it was never acknowledged to anyone).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from kernel_archive.errors import DataError, Finding, KernelArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BusyError", "JsonLines", "new_ulid", "now", "read_lines", "write_json"]

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_last: list[int] = [0]


class BusyError(KernelArchiveError):
    """Raised when another process records into the same run."""


def now() -> str:
    """UTC time as the logs state it: ISO 8601, microseconds, ``Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_ulid() -> str:
    """A ULID: 26 characters, strictly increasing within a process."""
    value = (time.time_ns() // 1_000_000 << 80) | secrets.randbits(79)
    value = max(value, _last[0] + 1)
    _last[0] = value
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


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
            os.close(self._file)  # its last writer took the empty file away between opening and locking
        self.repaired = self._repair()

    def _is_there(self) -> bool:
        """Whether the path still names the open file."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except OSError:
            return False

    def _repair(self) -> str | None:
        """End or cut off a last line without its end; what was done, ``None`` when nothing had to be."""
        size = os.fstat(self._file).st_size
        if size == 0 or os.pread(self._file, 1, size - 1) == b"\n":
            return None
        begin, tail = size, b""
        while begin > 0 and b"\n" not in tail:
            step = min(1 << 16, begin)
            begin -= step
            tail = os.pread(self._file, step, begin) + tail
        start = begin + tail.rfind(b"\n") + 1
        fragment = tail[tail.rfind(b"\n") + 1 :]
        try:
            msgspec.json.decode(fragment)
        except (msgspec.DecodeError, UnicodeDecodeError):
            os.ftruncate(self._file, start)
            os.fsync(self._file)
            return f"cut off {len(fragment)} bytes of an unfinished line"
        os.write(self._file, b"\n")
        os.fsync(self._file)
        return "ended a complete last line"

    def append(self, value: Any) -> None:
        """Write one line; it is on disk when this returns."""
        data = memoryview(msgspec.json.encode(value) + b"\n")
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file and give the lock back; a file into which nothing was written, and the folder made for it, go away.

        A run that a deadline stopped before its first line would otherwise lie there as a log that nobody can read.
        """
        if os.fstat(self._file).st_size == 0 and self._is_there():
            with suppress(OSError):
                self.path.unlink()
                if self._made_folder:
                    self.path.parent.rmdir()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[Any]:
    """The values of a log of ours, in order.

    Raises:
        DataError: a line is damaged; logs written here have none after they were opened for writing.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                finding = Finding(
                    code="bad-json", message=f"the line is damaged: {error}", file=str(path), line=number,
                    fix="This run can't be resumed; move it away and record it anew",
                )  # fmt: skip
                raise DataError.from_findings([finding]) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically: readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
