"""The last step of the merge: whole rows, with program texts and timed cases, are fetched and written to the Parquet files.

Which row stands where was decided before (:mod:`kernel_archive.archive.merge`), over columns without texts. The rest of a row is taken
out of its fragment by its position there. Only a few thousand rows are held with their texts at a time, so that memory does not grow
with the archive.
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.merge import Part, Range, read_tables, searches_of
from kernel_archive.archive.shards import digest_rows, write_groups
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.ids import CANARY, ID_LENGTH
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.archive.store import Store, Stored

#: So many rows of one table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: Of a line: what a row adds to the logical digest of its table (:func:`~kernel_archive.ids.logical_digest`).
LINE_BYTES: Final = ID_LENGTH + 1 + 32
#: Columns of the evaluation that the label or the refusal comes from; all others are of the one that found the program.
_LABEL_COLUMNS: Final = {
    "kernels": ("runtime_us", "reference_runtime_us", "cases"),
    "failures": ("outcome", "error_type", "error_text"),
}


class Piece(msgspec.Struct, frozen=True):
    """Some rows of one range, in its order: those from ``start`` to before ``stop``.

    The rows of the range are without texts. They have the search and the position in its fragment (``search_id``, ``seq``)
    of the evaluation that found the program, and of the one for the label (``label_search``, ``label_seq``). For
    ``evaluations`` they are the reasons of those that do not count (``evaluation_id``, ``reason``).
    """

    number: int  # which range
    rows: Part
    start: int
    stop: int


class Shard(msgspec.Struct, frozen=True):
    """One file to write."""

    table: str
    split: str
    scheme: Scheme  # of the labels
    ranges: list[Range]  # all of the archive
    pieces: list[Piece]  # what is in it
    groups: list[int]  # rows of each row group


def write_shard(store: Store, shard: Shard) -> tuple[Stored, Stored]:
    """Write one file of a split; it, and a file of sorted lines: key, NUL and digest of each row."""
    writer = _Writer(store, shard)
    metadata = {"bin_scheme": shard.scheme} if shard.table == "kernels" else {}
    lines: list[bytes] = []

    def rows() -> Iterator[pa.Table]:
        for part in writer.rows():
            lines.extend(key.encode() + b"\0" + digest for key, digest in digest_rows(shard.table, part))
            yield part

    def make(path: Path) -> None:
        groups = _regrouped(rows(), shard.groups) if shard.groups else [TABLES[shard.table].schema.empty_table()]
        write_groups(path, shard.table, groups, metadata)

    file = store.write(f"merge/{shard.table}-{shard.split}", ".shard.parquet", make)
    return file, store.write("merge/digests", ".bin", lambda path: path.write_bytes(b"".join(sorted(lines))))


def _regrouped(parts: Iterator[pa.Table], sizes: list[int]) -> Iterator[pa.Table]:
    """The rows of all parts in groups of these sizes."""
    held: list[pa.Table] = []
    count = 0
    for size in sizes:
        while count < size:
            held.append(next(parts))
            count += held[-1].num_rows
        rows = pa.concat_tables(held)
        yield rows.slice(0, size)
        held, count = [rows.slice(size)], count - size


class _Writer:
    """Finds the rows of a shard."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store, self._shard = store, shard
        self._starts = [part.first for part in shard.ranges]
        self._fragments: dict[int, dict[str, Stored]] = {}

    def rows(self) -> Iterator[pa.Table]:
        """The rows, some at a time."""
        for piece in self._shard.pieces:
            if self._shard.table == "evaluations":
                yield from map(self._shaped, self._evaluations(piece))
            elif (rows := read_tables(self._store, [piece.rows])) is not None:
                for chunk in _chunks(rows.slice(piece.start, piece.stop - piece.start)):
                    yield self._shaped(self._joined(chunk))

    def _fragment(self, search: str) -> Stored:
        """The fragment of a search of any range."""
        number = bisect.bisect_right(self._starts, search) - 1
        if number not in self._fragments:
            searches = searches_of(self._store, self._shard.ranges[number])
            self._fragments[number] = {s.search_id: s.fragment for s in searches}
        return self._fragments[number][search]

    def _evaluations(self, piece: Piece) -> Iterator[pa.Table]:
        """Rows of ``evaluations``, by search."""
        columns = [c.name for c in TABLES["evaluations"].columns if c.name != "canary"]
        known = read_tables(self._store, [piece.rows])
        reasons = (
            {}
            if known is None
            else dict(zip(known["evaluation_id"].to_pylist(), known["reason"].to_pylist(), strict=True))
        )
        end = 0
        for fragment, group in itertools.groupby(
            searches_of(self._store, self._shard.ranges[piece.number]), key=lambda s: s.fragment
        ):
            searches = list(group)
            start, end = end, end + sum(s.rows for s in searches)
            if end <= piece.start or start >= piece.stop:
                continue
            with self._store.reading(fragment) as path:
                rows = pq.ParquetFile(path).read(columns)
            # A file of several searches comes again for each that stands apart in the order.
            rows = rows.filter(pc.is_in(rows["search_id"], pa.array([s.search_id for s in searches], pa.string())))
            rows = rows.take(pc.sort_indices(rows["search_id"])) if len(searches) > 1 else rows
            first, last = max(0, piece.start - start), min(end, piece.stop) - start
            for at in range(first, last, CHUNK_ROWS):
                part = rows.slice(at, min(CHUNK_ROWS, last - at))
                reason = pa.array([reasons.get(key) for key in part["evaluation_id"].to_pylist()], pa.string())
                place = part.schema.get_field_index("excluded")
                yield part.set_column(place, "excluded", pc.coalesce(part["excluded"], reason))

    def _joined(self, chunk: pa.Table) -> pa.Table:
        """Narrow rows with the columns of the two evaluations that each names."""
        table, scheme = self._shard.table, self._shard.scheme
        known = {*chunk.column_names, "bin", "bin_scheme", "canary", *_LABEL_COLUMNS[table]}
        columns = [name for name in TABLES[table].schema.names if name not in known]
        found = self._take(chunk["search_id"].to_pylist(), chunk["seq"].to_pylist(), columns)
        label = self._take(
            chunk["label_search"].to_pylist(), chunk["label_seq"].to_pylist(), list(_LABEL_COLUMNS[table])
        )
        for part in (found, label):
            for name in part.column_names:
                chunk = chunk.append_column(name, part[name])
        if table == "kernels":
            chunk = chunk.append_column("bin", pa.array(assign_bins(chunk["speedup"].to_numpy(), scheme)))
            chunk = chunk.append_column("bin_scheme", pa.repeat(scheme, chunk.num_rows))
        return chunk

    def _take(self, searches: list[str], positions: list[int], columns: list[str]) -> pa.Table:
        """Rows of fragments by search and position, in the order asked for; each fragment is read once."""
        wanted: dict[Stored, list[int]] = {}
        of_search = {name: self._fragment(name) for name in dict.fromkeys(searches)}
        for i, name in enumerate(searches):
            wanted.setdefault(of_search[name], []).append(i)
        parts = []
        for fragment, rows in wanted.items():
            with self._store.reading(fragment) as path:
                parts.append(
                    pq.ParquetFile(path).read(columns).take(pa.array([positions[i] for i in rows], pa.int64()))
                )
        order = [i for rows in wanted.values() for i in rows]
        taken = pa.concat_tables(parts)
        return taken if order == sorted(order) else taken.take(pc.sort_indices(pa.array(order, pa.int64())))

    def _shaped(self, rows: pa.Table) -> pa.Table:
        """Columns as the schema orders them, with the canary."""
        schema = TABLES[self._shard.table].schema
        return rows.append_column("canary", pa.repeat(CANARY, rows.num_rows)).select(schema.names).cast(schema)


def _chunks(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of narrow rows that end where searches end, of about ``CHUNK_ROWS`` rows."""
    searches = rows["search_id"].to_pylist()
    start = 0
    for end in range(1, len(searches) + 1):
        if end == len(searches) or (end - start >= CHUNK_ROWS and searches[end] != searches[end - 1]):
            yield rows.slice(start, end - start)
            start = end
