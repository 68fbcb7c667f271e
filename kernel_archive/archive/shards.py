"""Write a table as Parquet files (shards) of which a new version re-uploads little to the Hub.

Row groups, the blocks inside a Parquet file, end where searches end, not after a fixed number of
rows: a version that adds a search adds groups and leaves the bytes of all others as they were
(benchmarks/reupload.py counts it).
"""

from __future__ import annotations

import hashlib
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.ids import CANARY, logical_digest, row_digest
from kernel_archive.schema import TABLES, shard_name
from kernel_archive.storage import file_sha256

#: A group has at least this many rows, unless it is the last one; short searches share one.
GROUP_MIN: Final = 64
#: From this many rows on every end of a search ends the group; before, every second one does (by
#: the search's id), so that after a change the groups soon fall into step again.
GROUP_FULL: Final = 200
#: Inside a long search a group ends after one row in this many (by the row's id), at the latest
#: after GROUP_MAX rows.
GROUP_RATE: Final = 400
GROUP_MAX: Final = 600
#: Columns that are worth a dictionary (``repeated``) or statistics (``sortable``).
_COLUMNS: Final = tomllib.loads(Path(__file__).with_name("shards.toml").read_text(encoding="utf-8"))
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


def row_groups(table: str, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut the rows of all parts into row groups; parts without rows are one empty group."""
    open_group: list[pa.Table] = []
    for part in parts:
        rows = pa.concat_tables([*open_group, part])
        keys = rows.column(TABLES[table].key).to_pylist()
        by_search = "search_id" in rows.column_names
        searches = rows.column("search_id").to_pylist() if by_search else [""] * len(keys)
        start = 0
        # The last group may be cut by the end of the part only: it is kept open.
        for end in list(group_ends(keys, searches))[:-1]:
            yield rows.slice(start, end - start)
            start = end
        open_group = [rows.slice(start)]
    yield from open_group


def digest_rows(table: str, rows: pa.Table) -> list[tuple[str, bytes]]:
    """List key and digest of every row, as canonical JSON; times are microseconds since 1970."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(pa.int64()))
    # A struct of sorted fields is written as its dictionary would be, in half the time.
    names = sorted(rows.column_names)
    columns = [rows.column(name).to_pylist() for name in names]
    digests = map(row_digest, map(msgspec.defstruct("Row", names, gc=False), *columns))
    return list(zip(columns[names.index(TABLES[table].key)], digests, strict=True))


def write_table(
    directory: Path,
    table: str,
    splits: Mapping[str, pa.Table | Iterable[pa.Table]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> TableFacts:
    """Write a table into an archive directory, and return its facts.

    ``splits`` are its rows, whole or in parts, in their final order; ``metadata`` are further pairs
    of the Parquet footer. A file ends with the row group in which it comes to :data:`SHARD_ROWS`.
    """
    schema = TABLES[table].schema
    digests: list[tuple[str, bytes]] = []

    def shaped(rows: pa.Table | Iterable[pa.Table]) -> Iterator[pa.Table]:
        yield pa.Table.from_batches([], schema)  # an empty table of it imports pandas
        for part in [rows] if isinstance(rows, pa.Table) else rows:
            exact = part.select(schema.names).cast(schema)
            digests.extend(digest_rows(table, exact))
            yield exact

    folder = directory / "data" / table
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, list[ShardFacts]] = {}
    for split in TABLES[table].splits:
        if split not in splits:
            continue
        for old in folder.glob(f"{split}-*-of-*.parquet"):
            old.unlink()
        groups = row_groups(table, shaped(splits[split]))
        counts: list[int] = []
        for first in groups:
            path = folder / f"{split}-{len(counts):05}.part"
            counts.append(_write_file(path, table, itertools.chain([first], groups), metadata))
        facts[split] = []
        for i, count in enumerate(counts):
            name = shard_name(table, split, i, len(counts))
            path = (folder / f"{split}-{i:05}.part").rename(directory / name)
            facts[split].append(ShardFacts(name, count, path.stat().st_size, file_sha256(path)))
    return TableFacts(splits=facts, logical_digest=logical_digest(digests))


def _write_file(
    path: Path, table: str, groups: Iterable[pa.Table], metadata: Mapping[str, str] | None
) -> int:
    """Write row groups until they fill a file; return the number of its rows."""
    count = 0
    schema = TABLES[table].schema
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=3,
        # Not content-defined chunking: its state runs on from one row group into the next, so that
        # a new group would change the pages of all groups behind it.
        use_content_defined_chunking=False,
        use_dictionary=[name for name in schema.names if name in _COLUMNS["repeated"]],
        write_statistics=[name for name in schema.names if name in _COLUMNS["sortable"]],
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        # The Arrow schema is not stored (it varies between versions), so the pairs are added by
        # hand.
        writer.add_key_value_metadata({"canary": CANARY, "table": table, **(metadata or {})})
        for group in groups:
            # In one piece: where the parts of a group meet would show in the pages.
            writer.write_table(group.combine_chunks(), row_group_size=max(1, group.num_rows))
            count += group.num_rows
            if count >= SHARD_ROWS:
                break
    return count
