"""The sizes that the footer of a Parquet file states, read without Arrow.

Arrow's own view of a column chunk checks the chunk's size statistics and, where they contradict the schema, throws an
error that Python never sees: the process ends (pyarrow 26, ``RowGroupMetaData.column``). One damaged byte is enough.
So the few numbers that are needed before a file is read are taken from the footer here. It is a structure in the
Thrift compact protocol; every length in it is held against the bytes that are left.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_archive.untrusted import UntrustedFileError

if TYPE_CHECKING:
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
    """Row group -> column -> its sizes, as the footer states them.

    Args:
        footer: the footer of a Parquet file, without its length and magic.

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
    """The footer of a Parquet file; the last eight bytes of the file give its length, and the magic.

    Args:
        path: the file.
        data: its content, where that is at hand.

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
