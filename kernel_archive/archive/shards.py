"""Write a table as Parquet files (shards) of which a new version re-uploads little to the Hub.

Row groups, the blocks inside a Parquet file, end where searches end, not after a fixed number of
rows: a version that adds a search adds groups and leaves the bytes of all others as they were
(benchmarks/reupload.py counts it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.ids import keyed_digest, logical_digest
from kernel_archive.schema import TABLES, shard_name
from kernel_archive.storage import file_sha256
from kernel_archive.toml_files import toml_beside

#: A group has at least this many rows, unless it is the last one; short searches share one.
GROUP_MIN: Final = 64
#: From this many rows on every end of a search ends the group; before, every second one does (by
#: the search's id), so that after a change the groups soon fall into step again.
GROUP_FULL: Final = 200
#: Inside a long search a group ends after one row in this many (by the row's id), at the latest
#: after GROUP_MAX rows.
GROUP_RATE: Final = 400
GROUP_MAX: Final = 600
#: Rows of a group in a table without searches: its rows stand by id, so that new ones fall into all
#: groups, and no end of a group would spare an upload.
GROUP_WITHOUT_SEARCH: Final = 20_000
#: Columns that are worth a dictionary (``repeated``) or statistics (``sortable``).
_COLUMNS: Final = toml_beside(__file__)
#: Rows per file; a file of kernels of 6 KB each stays well under the Hub's recommended size.
SHARD_ROWS: Final = 200_000


def writer_version() -> str:
    """Name the Parquet writer and its version; the bytes of shards may differ between versions."""
    return f"pyarrow {pa.__version__}"


def _mark(key: str) -> int:
    """Hash a key to a number, evenly spread."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")


def group_ends(keys: Sequence[str], searches: Sequence[str]) -> Iterator[int]:
    """Yield the end positions of row groups, from the keys and searches of consecutive rows."""
    start, last = 0, len(keys) - 1
    for i, key in enumerate(keys):
        size = i + 1 - start
        if i == last or size == GROUP_MAX:
            least = 0
        elif searches[i] != searches[i + 1]:
            least = GROUP_MIN if _mark(searches[i]) % 2 == 0 else GROUP_FULL
        elif size >= GROUP_MIN and _mark(key) % GROUP_RATE == 0:
            least = GROUP_MIN
        else:
            continue
        if size >= least:
            yield i + 1
            start = i + 1


def keyed_digests(table: str, rows: pa.Table) -> list[bytes]:
    """Digest every row, as canonical JSON with its key; times are microseconds since 1970."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(pa.int64()))
    # A struct of sorted fields is written as its dictionary would be, in half the time.
    names = sorted(rows.column_names)
    columns = [rows.column(name).to_pylist() for name in names]
    keys = columns[names.index(TABLES[table].key)]
    return list(map(keyed_digest, keys, map(msgspec.defstruct("Row", names, gc=False), *columns)))


class ShardWriter:
    """Writes the rows of a split, part by part and in their final order, into an archive directory.

    A file ends with the row group in which it comes to :data:`SHARD_ROWS`.

    Attributes:
        digests: of every row so far.
    """

    def __init__(self, directory: Path, table: str, split: str) -> None:
        self.digests: list[bytes] = []
        self._directory, self._table, self._split = directory, table, split
        self._schema = TABLES[table].schema
        self._open_group = pa.Table.from_batches([], self._schema)  # empty_table imports pandas
        self._writer: pq.ParquetWriter | None = None
        self._counts: list[int] = []  # rows by file
        self._folder = directory / "data" / table
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob(f"{split}-*-of-*.parquet"):
            old.unlink()

    def add(self, part: pa.Table) -> None:
        """Write the next rows, but for the last group: the end of the part alone may end it."""
        exact = part.select(self._schema.names).cast(self._schema)
        self.digests += keyed_digests(self._table, exact)
        rows = pa.concat_tables([self._open_group, exact])
        start = 0
        for end in list(self._group_ends(rows))[:-1]:
            self._write_group(rows.slice(start, end - start))
            start = end
        self._open_group = rows.slice(start)

    def close(self) -> list[ShardFacts]:
        """Write what is left, and return the files; without rows one with an empty group."""
        if self._open_group.num_rows or not self._counts:
            self._write_group(self._open_group)
        if self._writer is not None:
            self._writer.close()
        facts = []
        for i, count in enumerate(self._counts):
            name = shard_name(self._table, self._split, i, len(self._counts))
            path = self._part(i).rename(self._directory / name)
            facts.append(ShardFacts(name, count, path.stat().st_size, file_sha256(path)))
        return facts

    def _group_ends(self, rows: pa.Table) -> Iterable[int]:
        if "search_id" not in self._schema.names:
            size = GROUP_WITHOUT_SEARCH
            return [*range(size, rows.num_rows, size), rows.num_rows]
        keys = rows.column(TABLES[self._table].key).to_pylist()
        return group_ends(keys, rows.column("search_id").to_pylist())

    def _part(self, number: int) -> Path:
        return self._folder / f"{self._split}-{number:05}.part"

    def _write_group(self, group: pa.Table) -> None:
        names = self._schema.names
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._part(len(self._counts)),
                self._schema,
                compression="zstd",
                compression_level=3,
                # Not content-defined chunking: its state runs on from one row group into the next,
                # so that a new group would change the pages of all groups behind it.
                use_content_defined_chunking=False,
                use_dictionary=[name for name in names if name in _COLUMNS["repeated"]],
                write_statistics=[name for name in names if name in _COLUMNS["sortable"]],
                write_page_index=True,
                write_page_checksum=True,
                store_schema=False,  # the Arrow schema varies between versions
            )
            self._counts.append(0)
        # In one piece: where the parts of a group meet would show in the pages.
        self._writer.write_table(group.combine_chunks(), row_group_size=max(1, group.num_rows))
        self._counts[-1] += group.num_rows
        if self._counts[-1] >= SHARD_ROWS:
            self._writer.close()
            self._writer = None


def close_table(writers: Mapping[str, ShardWriter]) -> TableFacts:
    """Close the writers of a table's splits, and return its facts."""
    splits = {split: writer.close() for split, writer in writers.items()}
    digests = [row for writer in writers.values() for row in writer.digests]
    return TableFacts(splits=splits, logical_digest=logical_digest(digests))


def write_table(
    directory: Path, table: str, splits: Mapping[str, pa.Table | Iterable[pa.Table]]
) -> TableFacts:
    """Write a table into an archive directory, and return its facts.

    ``splits`` are its rows, whole or in parts, in their final order.
    """
    writers = {}
    for split in TABLES[table].splits:
        if split in splits:
            rows = splits[split]
            writers[split] = ShardWriter(directory, table, split)
            for part in [rows] if isinstance(rows, pa.Table) else rows:
                writers[split].add(part)
    return close_table(writers)
