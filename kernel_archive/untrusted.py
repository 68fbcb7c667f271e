"""Opening files that strangers made, in bounded memory and time, whatever the files claim of themselves.

A few kilobytes can stand for gigabytes: a compressed stream of zeros, one long line, a Parquet dictionary whose only
text every row refers to. So nothing here reads a file whole: :func:`open_bounded` gives the bytes of a plain, gzip or
zstd file up to a bound, :class:`Lines` its lines, and :func:`parquet_rows` the rows of a Parquet file after a look at
the sizes that its footer states. What can't be read is one error, or one finding, that says why.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import stat
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding, printable
from kernel_archive.parquet_footer import ChunkSizes, chunk_sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from _typeshed import WriteableBuffer

__all__ = [
    "MAX_COLUMNS",
    "MAX_LINE_BYTES",
    "Lines",
    "UntrustedFileError",
    "allowance",
    "is_compressed",
    "is_parquet",
    "open_bounded",
    "parquet_rows",
    "read_whole",
    "regular_file",
]

#: A longer line, or a row of a table with more text, is reported and skipped; it is never held in memory.
MAX_LINE_BYTES: Final = 1 << 20
#: What a compressed file may come to: so many bytes, and so many times its own size (text of logs comes to 50 times).
_FREE_BYTES: Final = 32 << 20
_EXPANSION: Final = 100
#: A table with more columns than this is none of ours: the widest has some fifty.
MAX_COLUMNS: Final = 1_000
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PARQUET: Final = b"PAR1"
_MAX_FOOTER: Final = 4 << 20
#: Elements of one list of a Parquet footer: columns and their parents, or row groups.
_MAX_FOOTER_ITEMS: Final = 20_000
#: Values of fixed length that are longer are no number.
_MAX_FIXED: Final = 64
#: Values of one column per row that a table may have: the eight bins of a nested distribution, and room.
_MAX_VALUES: Final = 16
#: What a value takes beside its own bytes once it is a Python object in a list.
_POINTER: Final = 8


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


def _magic(path: Path) -> bytes:
    with path.open("rb", buffering=0) as stream:
        return stream.read(4)


def is_parquet(path: Path) -> bool:
    """Whether the file begins as a Parquet file does."""
    return _magic(path) == _PARQUET


def _compresses(magic: bytes) -> bool:
    return magic.startswith(_GZIP) or magic == _ZSTD


def is_compressed(path: Path) -> bool:
    """Whether the file begins as gzip or zstd does."""
    return _compresses(_magic(path))


def allowance(path: Path, most: int) -> int:
    """What the text of a file may come to: ``most`` bytes, of a compressed file or a table less where it is small."""
    magic = _magic(path)
    if _compresses(magic) or magic == _PARQUET:
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

    Args:
        path: the file.
        max_bytes: reading more than so many raises.

    Raises:
        UntrustedFileError: while reading, where the stream is damaged or too long.
        OSError: the file can't be opened.
    """
    magic = _magic(path)
    if magic.startswith(_GZIP):
        inner: Any = gzip.open(path, "rb")  # noqa: SIM115 - _Bounded closes it
    elif magic == _ZSTD:
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
        raise UntrustedFileError("unreadable", f"cannot be read: {error.strerror or printable(str(error))}") from None


class Lines:
    """The non-empty lines of a file with their numbers, and findings where a line can't be had.

    Attributes:
        path: the file.
        name: the file as findings state it; the path when not given.
        max_line: bytes of the longest line that is read.
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
        self.hashed = hashed
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """sha256 of the decompressed bytes seen so far."""
        return f"sha256:{self._sha256.hexdigest()}"

    def _finding(self, code: str, message: str, fix: str | None = None) -> Finding:
        return Finding(code=code, message=message, file=self.name, line=self.lines, fix=fix)

    def __iter__(self) -> Iterator[tuple[int, bytes] | Finding]:
        """Every line that is not blank, without the white space around it."""
        return self._opened(strip=True)

    def raw(self) -> Iterator[tuple[int, bytes] | Finding]:
        """Every line as it stands in the file, with its line end."""
        return self._opened(strip=False)

    def _opened(self, *, strip: bool) -> Iterator[tuple[int, bytes] | Finding]:
        try:
            # Two lines more than the bound, so that the end is said here, with the number of lines.
            with open_bounded(self.path, max_bytes=self.max_bytes + 4 * self.max_line) as stream:
                yield from self._read(stream, strip=strip)
        except UntrustedFileError as error:
            yield error.finding(self.name, self.lines + 1)
        except OSError as error:
            yield self._finding("unreadable", f"cannot be read: {error.strerror or printable(str(error))}")

    def _read(self, stream: IO[bytes], *, strip: bool) -> Iterator[tuple[int, bytes] | Finding]:
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
                if not strip:
                    yield self.lines, line
                elif text := line.strip():
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


def parquet_rows(
    path: Path,
    *,
    name: str,
    wanted: Collection[str] | None,
    max_rows: int,
    max_bytes: int,
    max_row: int = MAX_LINE_BYTES,
) -> Iterator[tuple[int, dict[str, Any]] | Finding]:
    """Row number (from 1) and fields of every row, or what is wrong with the table.

    The sizes that the footer states are looked at first, only the columns that are wanted are read, texts stay
    dictionary-encoded until their lengths are known, and rows become Python objects in portions of bounded size. What
    is left to trust is the footer: a file whose pages are larger than it says can still take the memory of its
    decompressed pages, a portion at a time. Checksums of pages are checked where the writer left them.

    Args:
        path: the file; one inside gzip or zstd is decompressed whole.
        name: the file as findings state it.
        wanted: columns to read; the others come as ``None``, so that their names are known. All when ``None``.
        max_rows: more rows are refused.
        max_bytes: more text, or larger columns, are refused.
        max_row: a row with more bytes is skipped.
    """
    import pyarrow as pa

    try:
        yield from _rows(path, wanted, max_rows, max_bytes, max_row, name)
    except UntrustedFileError as error:
        yield error.finding(name)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        message = f"not a Parquet file that can be read: {printable(str(error), 200)}"
        yield Finding(code="unreadable", message=message, file=name, fix="Write it again")


def _too_large(message: str) -> UntrustedFileError:
    return UntrustedFileError("file-too-large", message)


def _rows(
    path: Path, wanted: Collection[str] | None, max_rows: int, max_bytes: int, max_row: int, name: str
) -> Iterator[tuple[int, dict[str, Any]] | Finding]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A compressed file has no random access.
    data = read_whole(path, max_bytes=max_bytes) if is_compressed(path) else None
    source: Any = path if data is None else pa.py_buffer(data)
    sizes = chunk_sizes(_footer(path, data))
    limits = {"thrift_string_size_limit": _MAX_FOOTER, "thrift_container_size_limit": _MAX_FOOTER_ITEMS}
    with pq.ParquetFile(source, **limits) as parquet:
        meta, schema = parquet.metadata, parquet.schema
        if meta.num_columns > MAX_COLUMNS:
            raise _too_large(f"the table has {meta.num_columns:,} columns, more than {MAX_COLUMNS:,}")
        top = parquet.schema_arrow.names
        names = [field for field in top if wanted is None or field in wanted]
        for field, count in Counter(names).items():
            if count > 1:
                message = "the table has two columns of this name"
                yield Finding(code="repeated-field", message=message, file=name, field=printable(field))
                return
        leaves = [c for c in range(meta.num_columns) if _top(schema.column(c).path, top) in names]
        _check_sizes(meta, schema, leaves, sizes, max_rows, max_bytes)
        texts = [schema.column(c).path for c in leaves if schema.column(c).physical_type == "BYTE_ARRAY"]
        groups = range(meta.num_row_groups)
    unread: dict[str, Any] = dict.fromkeys(field for field in top if field not in names)
    line = total = 0
    options = {"read_dictionary": texts, "pre_buffer": False, "page_checksum_verification": True, **limits}
    with pq.ParquetFile(source, **options) as parquet:
        # Row group by row group: Arrow can't join the dictionaries of nested texts of two of them.
        for batch in (b for g in groups for b in parquet.iter_batches(batch_size=1024, row_groups=[g], columns=names)):
            for size, part in _portions(batch, max_row):
                total += size
                if total > max_bytes:
                    raise _too_large(f"the table holds more than {max_bytes >> 20} MiB of text")
                if size > max_row and part.num_rows == 1:
                    line += 1
                    message = f"the row holds more than {max_row >> 20} MiB of text"
                    yield Finding(code="line-too-long", message=message, file=name, line=line, fix="Shorten its texts")
                    continue
                for row in part.to_pylist():
                    line += 1
                    yield line, {**unread, **row}


def _footer(path: Path, data: bytes | None) -> bytes:
    """The description of the columns; the last eight bytes of the file give its length, and the magic."""
    size = path.stat().st_size if data is None else len(data)
    with path.open("rb") if data is None else io.BytesIO(data) as stream:
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(8)[:4], "little")
        if length > size - 8:
            raise ValueError("its end is not that of a Parquet file")
        if length > _MAX_FOOTER:
            raise _too_large(f"the description of its columns takes {length >> 20} MiB")
        stream.seek(size - 8 - length)
        return stream.read(length)


def _top(path: str, names: Collection[str]) -> str:
    """The column of the table that a leaf belongs to; a name may hold dots itself."""
    if path in names:
        return path
    parts = path.split(".")
    return next((head for i in range(len(parts), 0, -1) if (head := ".".join(parts[:i])) in names), parts[0])


def _check_sizes(
    meta: Any, schema: Any, leaves: list[int], sizes: list[list[ChunkSizes]], max_rows: int, max_bytes: int
) -> None:
    """Rows, values and bytes of the columns that will be read, as the footer states them."""
    values: Counter[int] = Counter()
    total = 0
    for group in sizes:
        for c in leaves:
            values[c] += group[c].values
            total += max(group[c].uncompressed, group[c].compressed)
    if meta.num_rows > max_rows or max(values.values(), default=0) > max_rows * _MAX_VALUES:
        raise _too_large(f"the table has {meta.num_rows:,} rows, more than it can need")
    if total > max_bytes:
        raise _too_large(f"its columns take {total >> 20:,} MiB uncompressed, more than {max_bytes >> 20} MiB")
    for c in leaves:
        column = schema.column(c)
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY" and column.length > _MAX_FIXED:
            raise _too_large(f"the column {printable(column.path)} holds values of {column.length:,} bytes")


def _portions(batch: Any, max_row: int) -> Iterator[tuple[int, Any]]:
    """A batch in parts that come to little each, or of a single row: what the part comes to, and the part."""
    size = sum(_cost(column) for column in batch.columns)
    # At most the text of one line: then no row can hold more than a line may.
    if size <= max_row or batch.num_rows <= 1:
        yield size, batch
        return
    half = batch.num_rows // 2
    yield from _portions(batch.slice(0, half), max_row)
    yield from _portions(batch.slice(half), max_row)


def _cost(array: Any) -> int:
    """Bytes of an array once every value stands for itself: its text, and a pointer to it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(pc.take(lengths, array.indices)).as_py() or 0) + _POINTER * len(array)
    if pa.types.is_struct(kind):
        return sum(_cost(child) for child in array.flatten())
    if pa.types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_cost(child.slice(start, end - start)) for child in (array.keys, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _cost(array.flatten()) + _POINTER * len(array)
    return int(array.nbytes) + _POINTER * len(array)
