"""Rows of Parquet files that strangers made, in bounded memory and time.

A few kilobytes can stand for gigabytes here too: a dictionary whose only text every row refers to, a list of a billion
empty values. The sizes that a file's footer states are looked at before anything is read.

They are read without Arrow, whose own view of a column chunk checks the chunk's size statistics and, where they contradict the
schema, throws an error that Python never sees: the process ends (pyarrow 26, ``RowGroupMetaData.column``). One damaged byte is
enough. The footer is a structure in the Thrift compact protocol; every length in it is held against the bytes that are left.
"""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_archive.errors import Finding, printable
from kernel_archive.untrusted import MAX_LINE_BYTES, UntrustedFileError, is_compressed, read_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

#: A footer that takes more is none of ours, and takes many times more once it is read.
MAX_FOOTER_BYTES: Final = 4 << 20

_BOOLS: Final = (1, 2)
_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_MAX_DEPTH: Final = 16


class ChunkSizes(NamedTuple):
    """One column of one row group: number of values, and bytes of its pages without and with compression."""

    values: int
    uncompressed: int
    compressed: int


class _Reader:
    """Values of the compact protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise ValueError("the footer ends early")
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of the footer is too long")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("a text of the footer is longer than the footer")

    def _counted(self, count: int) -> range:
        if count > len(self._data) - self._at:
            raise ValueError("a list of the footer is longer than the footer")
        return range(count)

    def struct(self, depth: int = 0) -> dict[tuple[int, int], Any]:
        """A structure as (field number, type) -> value; a field that is there twice has its last value."""
        if depth > _MAX_DEPTH:
            raise ValueError("the footer is nested too deeply")
        out: dict[tuple[int, int], Any] = {}
        number = 0
        while header := self._byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self._integer()
            out[number, kind] = None if kind in _BOOLS else self._value(kind, depth)
        return out

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_BYTE, *_BOOLS):
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._skip(self._varint())
        if kind in (_LIST, _SET):
            header = self._byte()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            return [(header & 15, self._value(header & 15, depth + 1)) for _ in self._counted(count)]
        if kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in self._counted(count):
                self._value(kinds >> 4, depth + 1)
                self._value(kinds & 15, depth + 1)
            return None
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"the footer holds a value of unknown type {kind}")


def _structs(owner: dict[tuple[int, int], Any], field: int) -> list[dict[tuple[int, int], Any]]:
    items = owner.get((field, _LIST), [])
    if any(kind != _STRUCT for kind, _ in items):
        raise ValueError("the footer holds a list of something else than it must")
    return [value for _, value in items]


def chunk_sizes(footer: bytes) -> list[list[ChunkSizes]]:
    """Row group -> column -> its sizes, as the footer of a Parquet file (without its length and magic) states them.

    Raises:
        ValueError: it is no such structure.
    """
    groups = []
    for group in _structs(_Reader(footer).struct(), 4):
        columns = []
        for chunk in _structs(group, 1):
            meta = chunk.get((3, _STRUCT), {})
            sizes = ChunkSizes(*(meta.get((field, _I64), 0) for field in (5, 6, 7)))
            if min(sizes) < 0:
                raise ValueError("the footer states a size below 0")
            columns.append(sizes)
        groups.append(columns)
    return groups


def read_footer(path: Path, data: bytes | None = None) -> bytes:
    """The footer of a Parquet file, whose content may be at hand; the last eight bytes give its length, and the magic.

    Raises:
        UntrustedFileError: the footer is too large.
        ValueError: the file does not end as a Parquet file does.
        OSError: the file can't be read.
    """
    size = path.stat().st_size if data is None else len(data)
    with path.open("rb") if data is None else io.BytesIO(data) as stream:
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(8)[:4], "little")
        if length > size - 8:
            raise ValueError("its end is not that of a Parquet file")
        if length > MAX_FOOTER_BYTES:
            raise UntrustedFileError("file-too-large", f"the description of its columns takes {length >> 20} MiB")
        stream.seek(size - 8 - length)
        return stream.read(length)


#: A table with more columns than this is none of ours: the widest has some fifty.
MAX_COLUMNS: Final = 1_000
#: Elements of one list of a Parquet footer: columns and their parents, or row groups.
_MAX_FOOTER_ITEMS: Final = 20_000
#: Values of fixed length that are longer are no number.
_MAX_FIXED: Final = 64
#: Values of one column per row that a table may have: the eight bins of a nested distribution, and room.
_MAX_VALUES: Final = 16
#: What a value takes beside its own bytes once it is a Python object in a list.
_POINTER: Final = 8


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
    sizes = chunk_sizes(read_footer(path, data))
    limits = {"thrift_string_size_limit": MAX_FOOTER_BYTES, "thrift_container_size_limit": _MAX_FOOTER_ITEMS}
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
