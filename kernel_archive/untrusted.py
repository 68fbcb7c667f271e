"""Open files that strangers made, in bounded memory and time.

A few kilobytes can stand for gigabytes: a compressed stream of zeros, one long line. So nothing
here reads a file without a bound: :func:`open_bounded` gives the bytes of a plain, gzip or zstd
file, :class:`Lines` its lines. :mod:`kernel_archive.untrusted_tables` reads Parquet.
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
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

    from kernel_archive.errors import DataError

#: A longer line, or a row of a table with more text, is reported and skipped.
MAX_LINE_BYTES: Final = 1 << 20
#: Values of one JSON text: beyond it the text is not decoded, as objects take far more than text.
MAX_VALUES: Final = 4_000_000
#: A compressed file is refused beyond this many bytes and this many times its own size; logs
#: come to 50 times.
_FREE_BYTES: Final = 32 << 20
_EXPANSION: Final = 100

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PARQUET: Final = b"PAR1"
#: The bit of a zstd frame's fifth byte that says that a checksum stands at its end.
_ZSTD_CHECKSUM: Final = 4
#: The first page of a Parquet file with checksums: its header (Thrift) begins with type, two sizes
#: and the checksum, each a mark and a number of variable length.
_CHECKED_PAGE: Final = re.compile(rb"PAR1(?:\x15[\x80-\xff]*[\x00-\x7f]){3}\x15", re.DOTALL)


class UntrustedFileError(Exception):
    """Raised when a file can't be read or is too large; never for what its content says.

    Attributes:
        code: ``unreadable`` or ``file-too-large``.
        fix: the way out.
    """

    def __init__(self, code: str, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix

    def finding(self, file: str, line: int | None = None) -> Finding:
        """Make a record of the error."""
        return Finding(code=self.code, message=str(self), file=file, line=line, fix=self.fix)


def _unreadable(reason: str, fix: str | None = None) -> UntrustedFileError:
    return UntrustedFileError("unreadable", reason, fix)


def regular_file(path: str | Path) -> Path:
    """Check that a path names a regular file that can be opened.

    Raises:
        UntrustedFileError: it is missing, a directory, not readable, or a pipe or a device, which
            could block for ever.
    """
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISREG(mode):
            Path(path).open("rb").close()
            return Path(path)
    except FileNotFoundError:
        raise _unreadable("cannot be read: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(f"cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise _unreadable("this is a directory, not a file", "Name the file in it")
    raise _unreadable("this is a pipe or a device, not a file", "Write it to a file first")


def _start(path: Path) -> bytes:
    with path.open("rb", buffering=0) as stream:
        return stream.read(64)


def is_parquet(path: Path) -> bool:
    """Tell whether the file begins as a Parquet file does."""
    return _start(path).startswith(_PARQUET)


def is_compressed(path: Path) -> bool:
    """Tell whether the file begins as gzip or zstd does."""
    return _start(path).startswith((_GZIP, _ZSTD))


def lacks_checksum(path: Path) -> bool:
    """Tell whether the file is zstd or Parquet without checksums: damage may go unnoticed."""
    start = _start(path)
    if start.startswith(_PARQUET):
        return len(start) == 64 and _CHECKED_PAGE.match(start) is None
    return start.startswith(_ZSTD) and len(start) > 4 and not start[4] & _ZSTD_CHECKSUM


def allowance(path: Path, most: int) -> int:
    """Bound the bytes that a file may come to: ``most``, less for a small compressed file."""
    if _start(path).startswith((_GZIP, _ZSTD, _PARQUET)):
        return min(most, _FREE_BYTES + _EXPANSION * path.stat().st_size)
    return most


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after ``max_bytes``, or where its source is damaged."""

    def __init__(self, inner: IO[bytes], max_bytes: int) -> None:
        self._inner = inner
        # One portion at a time, so that what comes before a fault is not lost with it.
        self._read = getattr(inner, "read1", inner.read)
        self._max_bytes = max_bytes
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            data = self._read(min(memoryview(buffer).nbytes, self._left + 1))
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            reason = printable(str(error) or type(error).__name__)
            fix = "Copy or compress the file again: it seems to be cut off or damaged"
            raise _unreadable(f"reading stopped here: {reason}", fix) from None
        self._left -= len(data)
        if self._left < 0:
            message = f"reading stopped here: more than {self._max_bytes >> 20} MiB uncompressed"
            raise UntrustedFileError("file-too-large", message)
        memoryview(buffer)[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_bounded(path: Path, *, max_bytes: int) -> IO[bytes]:
    """Open a file without its compression: gzip, zstd or none, told apart by its first bytes.

    The checksum of the compression, if there is one, is checked at its end: what was read before it
    fails is only salvage.

    Raises:
        UntrustedFileError: while reading, where the stream is damaged or too long.
        OSError: the file can't be opened.
    """
    start = _start(path)
    inner: Any
    if start.startswith(_GZIP):
        inner = gzip.open(path, "rb")  # noqa: SIM115 - _Bounded closes it
    elif start.startswith(_ZSTD):
        import pyarrow as pa

        inner = pa.input_stream(str(path), compression="zstd")
    elif path.stat().st_size <= max_bytes:
        return path.open("rb", buffering=1 << 20)  # nothing to bound, and a copy of every byte less
    else:
        inner = path.open("rb", buffering=0)
    return io.BufferedReader(_Bounded(inner, max_bytes), 1 << 20)


def read_whole(path: Path, *, max_bytes: int) -> bytes:
    """Read all bytes of a file, decompressed.

    Raises:
        UntrustedFileError: it can't be read, is damaged, or comes to more than ``max_bytes``.
    """
    try:
        with open_bounded(path, max_bytes=max_bytes) as stream:
            return stream.read()
    except OSError as error:
        raise _unreadable(f"cannot be read: {error.strerror or printable(str(error))}") from None


def read_toml(path: Path, fail: Callable[..., DataError], missing: str, fix: str) -> dict[str, Any]:
    """Read a TOML file; ``fail`` makes errors, ``missing`` and ``fix`` that of a missing file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise fail(message=missing, fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fail(message=f"cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # also long numbers and deep tables
        raise fail(message=f"not valid TOML: {printable(str(error))}") from None


def misfit(error: Exception) -> tuple[str, str | None]:
    """Split an error of msgspec into the message, and the field where it is known.

    >>> misfit(ValueError("Expected `int`, got `str` - at `$.a[1]`"))
    ('Expected `int`, got `str`', 'a[1]')
    """
    message, _, where = str(error).partition(" - at `$")
    return message, where.strip("`.") or None


def has_few_values(data: bytes) -> bool:
    """Tell whether a JSON text, which may be broken, has at most :data:`MAX_VALUES` values."""

    def count(text: bytes) -> int:  # each value follows a comma or an opening bracket
        return sum(text.count(mark) for mark in (b",", b"[", b"{"))

    return count(data) <= MAX_VALUES or count(_STRING.sub(b"", data)) <= MAX_VALUES


@dataclass
class Lines:
    """The non-empty lines of a file with their numbers, and findings where a line can't be had.

    ``name`` is the file as findings state it, the path when not given. Lines longer than
    ``max_line`` are skipped. Only ``hashed`` lines have a digest, which takes a third of the time.
    """

    path: Path
    _: KW_ONLY
    max_bytes: int
    max_lines: int
    max_line: int = MAX_LINE_BYTES
    name: str = ""
    hashed: bool = True
    #: Lines and bytes read so far, decompressed, empty lines included.
    lines: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    #: Whether the last line has no line end.
    ended_mid_line: bool = field(default=False, init=False)
    #: Whether the whole file was read, and the checksum of its compression holds.
    at_end: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or printable(str(self.path), 300)
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """sha256 of the decompressed bytes read so far."""
        return f"sha256:{self._sha256.hexdigest()}"

    def __iter__(self) -> Iterator[tuple[int, bytes] | Finding]:
        try:
            # Some lines more than the bound, so that the end is reported here, with its line.
            with open_bounded(self.path, max_bytes=self.max_bytes + 4 * self.max_line) as stream:
                yield from self._read(stream)
        except UntrustedFileError as error:
            yield error.finding(self.name, self.lines + 1)
        except OSError as error:
            reason = error.strerror or printable(str(error))
            yield _unreadable(f"cannot be read: {reason}").finding(self.name, self.lines)

    def _read(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes] | Finding]:
        while line := stream.readline(self.max_line + 1):
            self.lines += 1
            self._count(line)
            if self.lines == 1:
                if b"\0" in line[:4] or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    message = "the file is UTF-16 or UTF-32, or no text"
                    yield self._finding("bad-utf8", message, "Save it as UTF-8")
                    return
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) > self.max_line and not line.endswith(b"\n"):
                message = f"the line is longer than {self.max_line >> 20} MiB"
                yield self._finding("line-too-long", message, "Shorten its texts")
                self._skip_line(stream)
            else:
                self.ended_mid_line = not line.endswith(b"\n")
                text = line.strip()
                if text:
                    yield self.lines, text
            if self.n_bytes > self.max_bytes or self.lines > self.max_lines:
                limit = f"{self.max_lines:,} lines"
                if self.n_bytes > self.max_bytes:
                    limit = f"{self.max_bytes >> 20} MiB"
                message = f"reading stopped here: more than {limit} uncompressed"
                yield self._finding("file-too-large", f"{message}, and more is never read")
                return
        self.at_end = True

    def _skip_line(self, stream: IO[bytes]) -> None:
        """Read on to the end of a line, without holding it."""
        while self.n_bytes <= self.max_bytes and (rest := stream.readline(self.max_line)):
            self._count(rest)
            if rest.endswith(b"\n"):
                return

    def _count(self, data: bytes) -> None:
        self.n_bytes += len(data)
        if self.hashed:
            self._sha256.update(data)

    def _finding(self, code: str, message: str, fix: str | None = None) -> Finding:
        return Finding(code=code, message=message, file=self.name, line=self.lines, fix=fix)
