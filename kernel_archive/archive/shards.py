"""Writing a table as Parquet files (shards), so that a new version re-uploads little of them to the Hugging Face Hub.

Row groups, the blocks inside a Parquet file, end where searches end, not after a fixed number of rows: a version that adds a search
adds groups and leaves the bytes of all others as they were (benchmarks/reupload.py counts it).
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.ids import CANARY, logical_digest, row_digest
from kernel_archive.schema import TABLES, shard_name
from kernel_archive.storage import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

#: Row groups end where a search ends: a new search makes groups of its own and leaves the bytes of all others as they were.
#: A group has at least this many rows, unless it is the last one; short searches share one.
GROUP_MIN: Final = 64
#: From so many rows on every end of a search ends the group; before, every second one does (by the search's id), so that
#: after a change the groups soon fall into step again.
GROUP_FULL: Final = 200
#: Inside a long search a group ends after one row in so many (by the row's id), at the latest after GROUP_MAX rows.
GROUP_RATE: Final = 400
GROUP_MAX: Final = 600
#: Columns of few distinct values, worth a dictionary; for ids and figures it only adds bytes.
REPEATED: Final = frozenset(
    {
        "anchor_code", "anchor_program_id", "bin", "bin_scheme", "builder", "canary", "error_type", "excluded", "family", "format",
        "generation_method", "gpu", "is_root", "language", "model", "n_evaluations", "n_logged", "n_measurements", "outcome",
        "pair_type", "parent_distance", "problem", "reference_code", "reference_id", "role", "search_id", "source_digest",
        "source_file", "step", "task",
    }
)  # fmt: skip
#: Columns whose least and largest value help a reader to skip row groups; those of ids and texts only fill the footer.
SORTABLE: Final = frozenset(
    {
        "bin", "g", "generation_method", "gpu", "language", "outcome", "pair_type", "problem", "role", "search_id",
        "source_file", "speedup", "step", "task",
    }
)  # fmt: skip
#: Rows per file; a file of kernels of 6 KB each stays well under the Hub's recommended size.
SHARD_ROWS: Final = 200_000


def writer_version() -> str:
    """Name and version of the Parquet writer; the bytes of shards may differ between versions."""
    return f"pyarrow {pa.__version__}"


def _mark(key: str) -> int:
    """A number that a key always has, evenly spread."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")


def possible_cuts(keys: list[str], searches: list[str]) -> list[tuple[int, int]]:
    """Where row groups may end, from what is there alone: positions, and how many rows such a group must have.

    Args:
        keys: keys of consecutive rows; the first and the last one begin and end a search.
        searches: their searches.
    """
    found = []
    for i, key in enumerate(keys):
        if i + 1 == len(keys) or searches[i] != searches[i + 1]:
            found.append((i + 1, GROUP_MIN if _mark(searches[i]) % 2 == 0 else GROUP_FULL))
        elif _mark(key) % GROUP_RATE == 0:
            found.append((i + 1, GROUP_MIN))
    return found


def group_ends(possible: Iterable[tuple[int, int]], total: int) -> Iterator[int]:
    """End positions of the row groups among so many rows."""
    start = 0
    for end, least in [*possible, (total, 0)]:
        while end - start > GROUP_MAX:
            start += GROUP_MAX
            yield start
        if start < end and (end - start >= least or end - start == GROUP_MAX):
            yield end
            start = end


def digest_rows(table: str, rows: pa.Table) -> list[tuple[str, bytes]]:
    """Key and digest of every row, from its canonical JSON; times as microseconds since the epoch."""
    for i, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(pa.int64()))
    key = TABLES[table].key
    return [(row[key], row_digest(row)) for row in rows.to_pylist()]


def _groups(table: str, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Row groups out of parts: rows are held until the end of their group is known."""
    held: pa.Table | None = None
    ends: list[int] = []
    for part in parts:
        held = part if held is None else pa.concat_tables([held, part])
        searches = held.column("search_id").to_pylist() if "search_id" in held.column_names else [""] * held.num_rows
        ends = list(group_ends(possible_cuts(held.column(TABLES[table].key).to_pylist(), searches), held.num_rows))
        start = 0
        # The last group may be cut by the end of the part only: keep it open.
        for end in ends[:-1]:
            yield held.slice(start, end - start)
            start = end
        held = held.slice(start)
    if held is not None and held.num_rows:
        yield held


def write_table(
    directory: Path,
    table: str,
    splits: Mapping[str, pa.Table | Iterable[pa.Table]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> TableFacts:
    """Write one table's shards into an archive directory and return its facts.

    ``splits`` are its rows, whole or in parts, in the order that they are kept in; ``metadata`` are further key-value pairs of the
    Parquet footer (the canary is always there).
    """
    digests: list[tuple[str, bytes]] = []
    shards = {
        split: _write_split(directory, table, split, splits[split], digests, metadata or {})
        for split in TABLES[table].splits
        if split in splits
    }
    return TableFacts(splits=shards, logical_digest=logical_digest(digests))


def _write_split(
    directory: Path,
    table: str,
    split: str,
    rows: pa.Table | Iterable[pa.Table],
    digests: list[tuple[str, bytes]],
    metadata: Mapping[str, str],
) -> list[ShardFacts]:
    """Write the shards of one split; their count is in their names, so they are renamed once it is known."""
    schema = TABLES[table].schema
    folder = (directory / shard_name(table, split)).parent
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{split}-*-of-*.parquet"):
        old.unlink()

    def exact() -> Iterator[pa.Table]:
        for part in [rows] if isinstance(rows, pa.Table) else rows:
            shaped = part.select(schema.names).cast(schema)
            digests.extend(digest_rows(table, shaped))
            yield shaped

    written: list[tuple[Path, int]] = []
    groups = _groups(table, exact())
    first: pa.Table | None = next(groups, schema.empty_table())
    while first is not None:
        path = folder / f".{split}-{len(written):05d}.tmp"
        count = write_groups(path, table, itertools.chain([first], groups), metadata)
        written.append((path, count))
        first = next(groups, None)
    facts = []
    for i, (path, count) in enumerate(written):
        name = shard_name(table, split, i, len(written))
        final = path.replace(directory / name)
        facts.append(ShardFacts(path=name, rows=count, bytes=final.stat().st_size, sha256=file_sha256(final)))
    return facts


def write_groups(path: Path, table: str, groups: Iterable[pa.Table], metadata: Mapping[str, str]) -> int:
    """Write row groups to a file until it is full; its rows."""
    count = 0
    schema = TABLES[table].schema
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=3,
        # Not content-defined chunking: its state runs on from one row group into the next, so that a new group changes the
        # pages of all groups behind it.
        use_content_defined_chunking=False,
        use_dictionary=[name for name in schema.names if name in REPEATED],
        write_statistics=[name for name in schema.names if name in SORTABLE],
        write_page_index=True,
        store_schema=False,
    ) as writer:
        # The Arrow schema is not stored (it varies between versions), so the pairs are added by hand.
        writer.add_key_value_metadata({"canary": CANARY, "table": table, **metadata})
        for group in groups:
            # In one piece: where the parts of a group meet would show in the pages.
            writer.write_table(group.combine_chunks(), row_group_size=max(1, group.num_rows))
            count += group.num_rows
            if count >= SHARD_ROWS:
                break
    return count
