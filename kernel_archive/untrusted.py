"""Opening files that strangers made, in bounded memory and time, whatever the files claim of themselves.

A few kilobytes can stand for gigabytes: a compressed stream of zeros, one long line. So nothing here reads a file without
a bound: :func:`open_bounded` gives the bytes of a plain, gzip or zstd file up to one, :class:`Lines` its lines. What
can't be read is one error, or one finding, that says why. Tables are read by :mod:`kernel_archive.untrusted_tables`.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import re
import stat
import tomllib
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

    from kernel_archive.errors import DataError

#: A longer line, or a row of a table with more text, is reported and skipped; it is never held in memory.
MAX_LINE_BYTES: Final = 1 << 20
#: Values in one JSON text that is taken whole: objects take far more than their text.
MAX_VALUES: Final = 4_000_000
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
#: What a compressed file may come to: so many bytes, and so many times its own size (text of logs comes to 50 times).
_FREE_BYTES: Final = 32 << 20
_EXPANSION: Final = 100
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
#: The bit of a zstd frame's first byte that says that a checksum stands at its end.
_ZSTD_CHECKSUM: Final = 4
_PARQUET: Final = b"PAR1"


class UntrustedFileError(Exception):
    """Raised when a file can't be read, or is larger than what is expected of it; never for what its content says.

    Attributes:
        code: ``unreadable`` or ``file-too-large``.
        fix: the way out.
    """

    def __init__(self, code: str, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix

    def finding(self, file: str, line: int | None = None) -> Finding:
        """The same as a record."""
        return Finding(code=self.code, message=str(self), file=file, line=line, fix=self.fix)


def regular_file(path: str | Path) -> Path:
    """The path, when it names a regular file that can be opened.

    Raises:
        UntrustedFileError: it is missing, a directory, a pipe or a device (which could block for ever), or not readable.
    """
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISREG(mode):
            with Path(path).open("rb"):
                return Path(path)
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "no such file" if missing else getattr(error, "strerror", None) or str(error)
        raise UntrustedFileError("unreadable", f"cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise UntrustedFileError("unreadable", "this is a directory, not a file", "Name the file in it")
    raise UntrustedFileError("unreadable", "this is a pipe or a device, not a file", "Write it to a file first")


def _unreadable(error: OSError) -> UntrustedFileError:
    return UntrustedFileError("unreadable", f"cannot be read: {error.strerror or printable(str(error))}")


def _start(path: Path) -> bytes:
    with path.open("rb", buffering=0) as stream:
        return stream.read(5)


def is_parquet(path: Path) -> bool:
    """Whether the file begins as a Parquet file does."""
    return _start(path).startswith(_PARQUET)


def lacks_checksum(path: Path) -> bool:
    """Whether the file is zstd without a checksum of its content (of its first frame): a changed byte may go unnoticed."""
    start = _start(path)
    return start.startswith(_ZSTD) and len(start) == 5 and not start[4] & _ZSTD_CHECKSUM


def is_compressed(path: Path) -> bool:
    """Whether the file begins as gzip or zstd does."""
    return _start(path).startswith((_GZIP, _ZSTD))


def allowance(path: Path, most: int) -> int:
    """What the text of a file may come to: ``most`` bytes, of a compressed file or a table less where it is small."""
    if _start(path).startswith((_GZIP, _ZSTD, _PARQUET)):
        return min(most, _FREE_BYTES + _EXPANSION * path.stat().st_size)
    return most


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after so many bytes, or where what it reads from is damaged."""

    def __init__(self, inner: IO[bytes], max_bytes: int) -> None:
        self._inner = inner
        self._read = getattr(inner, "read1", inner.read)
        self._max_bytes = max_bytes
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            # One portion at a time, so that what comes before a fault is not lost with it.
            data = self._read(min(memoryview(buffer).nbytes, self._left + 1))
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            message = f"reading stopped here: {printable(str(error) or type(error).__name__)}"
            raise UntrustedFileError("unreadable", message, "Was the file copied or compressed in full?") from None
        self._left -= len(data)
        if self._left < 0:
            raise UntrustedFileError(
                "file-too-large", f"reading stopped here: more than {self._max_bytes >> 20} MiB uncompressed"
            )
        memoryview(buffer)[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_bounded(path: Path, *, max_bytes: int) -> IO[bytes]:
    """The bytes of a file without its compression (gzip, zstd or none, told apart by its first bytes).

    A gzip stream's checksum, and a zstd frame's if it has one, is checked where it ends: what was read before it fails
    is only salvage.

    Raises:
        UntrustedFileError: while reading, where the stream is damaged or too long.
        OSError: the file can't be opened.
    """
    start = _start(path)
    if start.startswith(_GZIP):
        inner: Any = gzip.open(path, "rb")  # noqa: SIM115 - _Bounded closes it
    elif start.startswith(_ZSTD):
        import pyarrow as pa

        inner = pa.input_stream(str(path), compression="zstd")
    elif path.stat().st_size <= max_bytes:
        return path.open("rb", buffering=1 << 20)  # nothing to bound, and a copy of every byte less
    else:
        inner = path.open("rb", buffering=0)
    return io.BufferedReader(_Bounded(inner, max_bytes), 1 << 20)


def read_whole(path: Path, *, max_bytes: int) -> bytes:
    """All bytes of a file, decompressed; the checksum of its compression holds.

    Raises:
        UntrustedFileError: it can't be read, is damaged, or comes to more than ``max_bytes``.
    """
    try:
        with open_bounded(path, max_bytes=max_bytes) as stream:
            return stream.read()
    except OSError as error:
        raise _unreadable(error) from None


def read_toml(path: Path, fail: Callable[..., DataError], missing: str, fix: str) -> dict[str, Any]:
    """The table of a TOML file that somebody wrote by hand.

    ``fail`` makes the error of a message and a fix; ``missing`` and ``fix`` are those of a file that is not there.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise fail(message=missing, fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fail(message=f"cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # also numbers too long, and tables too deep, for the parser
        raise fail(message=f"not valid TOML: {printable(str(error))}") from None


def misfit(error: Exception) -> tuple[str, str | None]:
    """What a document has that its type has not: the message, and the field where it is known.

    >>> import msgspec
    >>> try:
    ...     _ = msgspec.json.decode(b'{"a": [1, "x"]}', type=dict[str, list[int]])
    ... except msgspec.ValidationError as error:
    ...     misfit(error)
    ('Expected `int`, got `str`', '[...][1]')
    """
    message, _, where = str(error).partition(" - at `$")
    return message, where.strip("`.") or None


def has_few_values(data: bytes) -> bool:
    """Whether a JSON text, which may be broken, can be decoded: each value follows a comma or an opening bracket."""
    marks = (b",", b"[", b"{")
    return sum(map(data.count, marks)) <= MAX_VALUES or sum(map(_STRING.sub(b"", data).count, marks)) <= MAX_VALUES


class Lines:
    """The non-empty lines of a file with their numbers, and findings where a line can't be had.

    Attributes:
        path: the file.
        name: the file as findings state it; the path when not given.
        max_line: bytes of the longest line that is read.
        raw: whether lines are given as they stand in the file, blank ones too, with their ends.
        hashed: whether ``digest`` is asked for; of logs it takes a third of the time of reading.
        lines: lines seen so far, empty ones included.
        bytes: bytes seen so far, decompressed.
        ended_mid_line: the last line has no line end.
        at_end: the whole file was read, and the checksum of its compression holds.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_lines: int,
        max_line: int = MAX_LINE_BYTES,
        name: str | None = None,
        raw: bool = False,
        hashed: bool = True,
    ) -> None:
        self.path = path
        self.name = printable(str(path), 300) if name is None else name
        self.max_bytes = max_bytes
        self.max_lines = max_lines
        self.max_line = max_line
        self.lines = 0
        self.bytes = 0
        self.ended_mid_line = False
        self.at_end = False
        self.raw = raw
        self.hashed = hashed
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """sha256 of the decompressed bytes seen so far."""
        return f"sha256:{self._sha256.hexdigest()}"

    def _finding(self, code: str, message: str, fix: str | None = None) -> Finding:
        return Finding(code=code, message=message, file=self.name, line=self.lines, fix=fix)

    def __iter__(self) -> Iterator[tuple[int, bytes] | Finding]:
        try:
            # Two lines more than the bound, so that the end is said here, with the number of lines.
            with open_bounded(self.path, max_bytes=self.max_bytes + 4 * self.max_line) as stream:
                yield from self._read(stream)
        except UntrustedFileError as error:
            yield error.finding(self.name, self.lines + 1)
        except OSError as error:
            yield _unreadable(error).finding(self.name, self.lines)

    def _read(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes] | Finding]:
        while line := stream.readline(self.max_line + 1):
            self.lines += 1
            self._take(line)
            if self.lines == 1:
                if b"\0" in line[:4] or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    yield self._finding("bad-utf8", "the file is UTF-16 or UTF-32, or no text", "Save it as UTF-8")
                    return
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) > self.max_line and not line.endswith(b"\n"):
                yield self._finding(
                    "line-too-long", f"the line is longer than {self.max_line >> 20} MiB", "Shorten its texts"
                )
                while self.bytes <= self.max_bytes and (rest := stream.readline(self.max_line)):
                    self._take(rest)
                    if rest.endswith(b"\n"):
                        break
            else:
                self.ended_mid_line = not line.endswith(b"\n")
                if text := line if self.raw else line.strip():
                    yield self.lines, text
            if self.bytes > self.max_bytes or self.lines > self.max_lines:
                what = f"{self.max_bytes >> 20} MiB" if self.bytes > self.max_bytes else f"{self.max_lines:,} lines"
                yield self._finding(
                    "file-too-large", f"reading stopped here: more than {what} uncompressed, which it can't need"
                )
                return
        self.at_end = True

    def _take(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.hashed:
            self._sha256.update(data)
