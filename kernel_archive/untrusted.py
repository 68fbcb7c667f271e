"""Open files that strangers made, in bounded memory and time.

A few kilobytes can stand for gigabytes: a compressed stream of zeros, one long line. So nothing
reads a file without a bound. :mod:`kernel_archive.untrusted_tables` reads Parquet.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from kernel_archive.errors import DataError, Finding, printable

#: A longer line, or a row of a table with more text, is reported and skipped.
MAX_LINE_BYTES: Final = 1 << 20
#: Values of one JSON text: beyond it the text is not decoded, as objects take far more than text.
MAX_VALUES: Final = 4_000_000
# A compressed file is refused beyond this many bytes and times its own size; logs come to 50 times.
_FREE_BYTES: Final = 32 << 20
_EXPANSION: Final = 100
_BUFFER_BYTES: Final = 1 << 20
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
#: First bytes of a compressed file -> name of its compression in Arrow.
_COMPRESSIONS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class UntrustedFileError(Exception):
    """Raised when a file is ``unreadable`` or ``file-too-large``; never for what it says."""

    def __init__(self, code: str, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.code, self.fix = code, fix

    @classmethod
    def of(cls, error: OSError | ValueError) -> UntrustedFileError:
        """Make one of an error of the system."""
        reason = getattr(error, "strerror", None) or printable(error)
        return cls("unreadable", f"cannot be read: {reason[:1].lower()}{reason[1:]}")

    def finding(self, file: str, line: int | None = None) -> Finding:
        """Make a record of the error."""
        return Finding(code=self.code, message=str(self), file=file, line=line, fix=self.fix)


def regular_file(path: str | Path) -> Path:
    """Check that a path names a regular file that can be opened.

    Raises:
        UntrustedFileError: it can't, or is a pipe or a device, which could block for ever.
    """
    file = Path(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            message = "this is no file, but a directory, a pipe or a device"
            raise UntrustedFileError("unreadable", message, "Name a file")
        file.open("rb").close()
    except (OSError, ValueError) as error:
        raise UntrustedFileError.of(error) from None
    return file


def _first_bytes(path: Path) -> bytes:
    with path.open("rb", buffering=0) as stream:
        return stream.read(4)


def is_parquet(path: Path) -> bool:
    """Tell whether the file begins as a Parquet file does."""
    return _first_bytes(path).startswith(b"PAR1")


def is_compressed(path: Path) -> bool:
    """Tell whether the file begins as gzip or zstd does."""
    return _first_bytes(path).startswith(tuple(_COMPRESSIONS))


def decompressed_limit(path: Path, limit: int) -> int:
    """Bound the bytes that a file may come to: ``limit``, less for a small compressed file."""
    if _first_bytes(path).startswith((*_COMPRESSIONS, b"PAR1")):
        return min(limit, _FREE_BYTES + _EXPANSION * path.stat().st_size)
    return limit


@contextmanager
def open_uncompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file without its compression: gzip, zstd or none, told apart by its first bytes.

    The caller bounds how much it reads. What it read before a checksum fails at the end is salvage.

    Raises:
        UntrustedFileError: it can't be opened; or in the block, where the stream is damaged.
    """
    try:
        start = _first_bytes(path)
        codec = next((name for mark, name in _COMPRESSIONS.items() if start.startswith(mark)), None)
        if codec is None:
            raw: Any = path.open("rb", buffering=0)
        else:
            import pyarrow as pa

            raw = pa.input_stream(str(path), compression=codec)
    except OSError as error:
        raise UntrustedFileError.of(error) from None
    with io.BufferedReader(raw, _BUFFER_BYTES) as stream:
        try:
            yield stream
        except (OSError, MemoryError) as error:
            message = f"reading stopped here: {printable(str(error) or type(error).__name__)}"
            fix = "Copy or compress the file again: it seems to be cut off or damaged"
            raise UntrustedFileError("unreadable", message, fix) from None


def read_whole(path: Path, *, max_bytes: int) -> bytes:
    """Read all bytes of a file, decompressed.

    Raises:
        UntrustedFileError: it can't be read, is damaged, or comes to more than ``max_bytes``.
    """
    with open_uncompressed(path) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        message = f"reading stopped here: more than {max_bytes >> 20} MiB uncompressed"
        raise UntrustedFileError("file-too-large", message)
    return data


def read_toml(path: Path, fail: Callable[..., DataError], missing: str, fix: str) -> dict[str, Any]:
    """Read a TOML file; ``fail`` makes errors, ``missing`` and ``fix`` that of a missing file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise fail(message=missing, fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fail(message=f"cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # also long numbers and deep tables
        raise fail(message=f"not valid TOML: {printable(error)}") from None


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


class Lines:
    """The non-empty lines of a file with their numbers, and findings where a line can't be had.

    Lines longer than ``max_line`` are skipped.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_lines: int,
        max_line: int = MAX_LINE_BYTES,
        name: str | None = None,
    ) -> None:
        self.path = path
        self.name = name or printable(path, 300)  # as findings state it
        self.n_lines = 0  # read so far, empty ones included
        self.n_bytes = 0  # read so far, decompressed
        self.ended_mid_line = False  # whether the last line has no line end
        self.at_end = False  # whether all was read, and the checksum of its compression holds
        self._max_bytes, self._max_lines, self._max_line = max_bytes, max_lines, max_line
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """sha256 of the decompressed bytes read so far."""
        return f"sha256:{self._sha256.hexdigest()}"

    def __iter__(self) -> Iterator[tuple[int, bytes] | Finding]:
        try:
            with open_uncompressed(self.path) as stream:
                yield from self._read(stream)
        except UntrustedFileError as error:
            yield error.finding(self.name, self.n_lines + 1)

    def _read(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes] | Finding]:
        while line := self._piece(stream):
            self.n_lines += 1
            if self.n_lines == 1:
                if b"\0" in line[:4] or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    message = "the file is UTF-16 or UTF-32, or no text"
                    yield self._finding("bad-utf8", message, "Save it as UTF-8")
                    return
                line = line.removeprefix(codecs.BOM_UTF8)
            self.ended_mid_line = not line.endswith(b"\n")
            if self.ended_mid_line and len(line) > self._max_line:
                message = f"the line is longer than {self._max_line >> 20} MiB"
                yield self._finding("line-too-long", message, "Shorten its texts")
                while self.n_bytes <= self._max_bytes and self.ended_mid_line and line:
                    line = self._piece(stream)
                    self.ended_mid_line = not line.endswith(b"\n")
            elif text := line.strip():
                yield self.n_lines, text
            if self.n_bytes > self._max_bytes or self.n_lines > self._max_lines:
                bounds = f"{self._max_bytes >> 20} MiB or {self._max_lines:,} lines"
                message = f"reading stopped here: more than {bounds}, and more is never read"
                yield self._finding("file-too-large", message)
                return
        self.at_end = True

    def _piece(self, stream: IO[bytes]) -> bytes:
        """Read up to the end of a line, or a little more than the longest line that is taken."""
        piece = stream.readline(self._max_line + 1)
        self.n_bytes += len(piece)
        self._sha256.update(piece)
        return piece

    def _finding(self, code: str, message: str, fix: str | None = None) -> Finding:
        return Finding(code=code, message=message, file=self.name, line=self.n_lines, fix=fix)
