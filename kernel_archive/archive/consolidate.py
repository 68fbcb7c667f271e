"""From the fragments of all runs to the finished tables: merge them, then write the rows.

The merge is one DuckDB pass over narrow columns, which spills to disk; its decisions are the SQL of
:mod:`kernel_archive.archive.labels`. It gives the rows of every file without their texts, and says
by search and position which evaluations each is made of. Executors write the files and take the
rest from the fragments, some thousand rows at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.fragments import FRAGMENT_GROUP
from kernel_archive.archive.labels import FLAGS, SPLIT_QUERIES, LabelRules, count_rows, decide
from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.archive.open import literal_path
from kernel_archive.archive.shards import (
    SHARD_ROWS,
    digest_rows,
    row_groups,
    write_groups,
    write_table,
)
from kernel_archive.archive.store import Store, Stored
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.errors import KernelArchiveError
from kernel_archive.executors import Call, collect_results
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known, same_gpu
from kernel_archive.ids import CANARY, ID_LENGTH
from kernel_archive.schema import TABLES, shard_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    import duckdb

    from kernel_archive.archive.stage import StagedRun

#: DuckDB spills to disk above this; a process stays below 2 GB.
MEMORY_LIMIT: Final = "800MB"
#: Each thread holds blocks of its own: more of them than this need more than the limit.
MAX_THREADS: Final = 4
#: At most this many rows of a table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: Bytes that a row adds to the logical digest of its table: key, NUL, digest.
LINE_BYTES: Final = ID_LENGTH + 1 + 32
#: Columns of the evaluation that the label or the refusal comes from; others are of the one that
#: found the program.
_LABEL_COLUMNS: Final = {
    "kernels": ["runtime_us", "reference_runtime_us", "cases"],
    "failures": ["outcome", "error_type", "error_text"],
    "evaluations": [],
}
#: Columns that are the same in every fragment row or made here.
_MADE: Final = frozenset({"bin", "bin_scheme", "canary"})


class Shard(msgspec.Struct, frozen=True):
    """One file to write; ``rows`` holds its rows without texts, and names their fragments."""

    table: str
    split: str
    scheme: Scheme
    rows: Stored


def consolidate(
    runs: Sequence[StagedRun],
    store: Store,
    directory: Path,
    *,
    rules: LabelRules,
    gpus: Mapping[str, GpuFacts],
    executor: Executor,
    scratch: Path,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive; return facts per table, and counts for the manifest.

    Runs are sorted by search id; ``scratch`` is a folder on this machine for what the merge spills.
    """
    folder = f"merge-{secrets.token_hex(4)}"
    scratch.mkdir(exist_ok=True)
    try:
        with _merge_database(scratch) as connection:
            if store.remote:
                connection.register_filesystem(store.system)
            fragments = sorted({literal_path(store.place(run.fragment.name)) for run in runs})
            connection.read_parquet(fragments).create_view("fragment")
            decide(connection, rules)
            report, names = count_rows(connection)
            shards = _plan_shards(connection, store, folder, runs, rules.scheme)
        tables = _small_tables(directory, runs, [_gpu_row(name, gpus) for name in names])
        tables |= _write_shards(shards, store, folder, directory, executor)
    finally:
        store.remove(folder)
        shutil.rmtree(scratch, ignore_errors=True)
    flags = {flag.name: report.pop(flag.name) for flag in FLAGS}
    return tables, {**report, "flags": flags}


@contextmanager
def _merge_database(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that spills into a folder."""
    import duckdb

    settings: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(scratch),
        "threads": min(MAX_THREADS, os.cpu_count() or 1),
        "preserve_insertion_order": False,
    }
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            connection.execute("SET enable_progress_bar = false")  # it writes to stdout
            connection.execute("SET parquet_metadata_cache = true")
            yield connection
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise KernelArchiveError(
            f"the merge could not go on: {str(error).splitlines()[0]}. The staged fragments are "
            "kept"
        ) from error


def _plan_shards(
    connection: duckdb.DuckDBPyConnection,
    store: Store,
    folder: str,
    runs: Sequence[StagedRun],
    scheme: Scheme,
) -> list[Shard]:
    """Cut what the merge found into files, and store the rows of each without texts."""
    fragments = {str(row["search_id"]): run.fragment for run in runs for row in run.searches}
    shards = []
    for (table, split), query in SPLIT_QUERIES.items():
        reader = connection.sql(query).to_arrow_reader(SHARD_ROWS // 4)
        parts = (pa.Table.from_batches([batch]) for batch in reader)
        groups = row_groups(table, itertools.chain([reader.schema.empty_table()], parts))
        for rows in _full_shards(groups):
            searches = pc.unique(rows["search_id"]).to_pylist()
            if "label_search" in rows.column_names:
                searches += pc.unique(rows["label_search"]).to_pylist()
            named = msgspec.json.encode({name: fragments[name] for name in searches})
            stored = store.write(
                f"{folder}/{table}-{split}",
                ".rows.parquet",
                partial(pq.write_table, rows.replace_schema_metadata({"fragments": named})),
            )
            shards.append(Shard(table, split, scheme, stored))
    return shards


def _full_shards(groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put row groups together until they fill a file."""
    held: list[pa.Table] = []
    for group in groups:
        held.append(group)
        if sum(part.num_rows for part in held) >= SHARD_ROWS:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _write_shards(
    shards: Sequence[Shard], store: Store, folder: str, directory: Path, executor: Executor
) -> dict[str, TableFacts]:
    """Write all shards into the archive directory, and find the digests of their tables."""
    calls = [
        Call(f"{s.table}/{s.split}, file {i + 1}", partial(write_shard, store, folder, s))
        for i, s in enumerate(shards)
    ]
    files: dict[str, dict[str, list[Stored]]] = {}
    digests: dict[str, list[bytes]] = {}
    for shard, (file, lines) in zip(shards, collect_results(executor, calls), strict=True):
        files.setdefault(shard.table, {}).setdefault(shard.split, []).append(file)
        digests.setdefault(shard.table, []).append(lines)
    tables = {}
    for table, splits in files.items():
        facts: dict[str, list[ShardFacts]] = {}
        for split in TABLES[table].splits:
            facts[split] = []
            for i, file in enumerate(splits[split]):
                name = shard_name(table, split, i, len(splits[split]))
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with store.open_file(file) as written:
                    shutil.move(written, path)
                count = pq.read_metadata(path).num_rows
                facts[split].append(ShardFacts(name, count, file.bytes, file.sha256))
        tables[table] = TableFacts(facts, _table_digest(digests[table]))
    return tables


def _table_digest(parts: Sequence[bytes]) -> str:
    """The logical digest of a table from keys and digests of its rows."""
    lines = np.frombuffer(bytearray().join(parts), dtype=f"V{LINE_BYTES}").view(f"S{LINE_BYTES}")
    lines.sort()
    return f"sha256:{hashlib.sha256(lines.tobytes()).hexdigest()}"


def write_shard(store: Store, folder: str, shard: Shard) -> tuple[Stored, bytes]:
    """Write one file of a split; return it, and key, NUL and digest of each row."""
    with store.open_file(shard.rows) as path:
        rows = pq.read_table(path)
    fragments = msgspec.json.decode(rows.schema.metadata[b"fragments"], type=dict[str, Stored])
    metadata = {"bin_scheme": shard.scheme} if shard.table == "kernels" else {}
    empty = TABLES[shard.table].schema.empty_table()
    lines: list[bytes] = []

    def parts() -> Iterator[pa.Table]:
        for start in range(0, rows.num_rows, CHUNK_ROWS):
            part = _whole_rows(store, shard, fragments, rows.slice(start, CHUNK_ROWS))
            digests = digest_rows(shard.table, part)
            lines.extend(key.encode() + b"\0" + digest for key, digest in digests)
            yield part

    def write(path: Path) -> None:
        groups = row_groups(shard.table, parts()) if rows.num_rows else [empty]
        write_groups(path, shard.table, groups, metadata)

    file = store.write(f"{folder}/{shard.table}-{shard.split}", ".shard.parquet", write)
    return file, b"".join(lines)


def _whole_rows(
    store: Store, shard: Shard, fragments: Mapping[str, Stored], rows: pa.Table
) -> pa.Table:
    """Rows with the columns of the evaluations that each names, as the schema orders them."""
    schema = TABLES[shard.table].schema
    of_label = _LABEL_COLUMNS[shard.table]
    known = {*rows.column_names, *_MADE, *of_label}
    columns = [name for name in schema.names if name not in known]
    made = {name: rows[name] for name in rows.column_names}
    taken = _take(store, fragments, rows["search_id"], rows["seq"], columns)
    made |= dict(zip(columns, taken.columns, strict=True))
    if of_label:
        label = _take(store, fragments, rows["label_search"], rows["label_seq"], of_label)
        made |= dict(zip(of_label, label.columns, strict=True))
    if shard.table == "kernels":
        made["bin"] = pa.array(assign_bins(rows["speedup"].to_numpy(), shard.scheme))
        made["bin_scheme"] = pa.repeat(shard.scheme, rows.num_rows)
    if shard.table == "evaluations":
        made["excluded"] = pc.coalesce(made["excluded"], made["reason"])
    made["canary"] = pa.repeat(CANARY, rows.num_rows)
    return pa.table({name: made[name] for name in schema.names}).cast(schema)


def _take(
    store: Store,
    fragments: Mapping[str, Stored],
    searches: pa.ChunkedArray,
    positions: pa.ChunkedArray,
    columns: list[str],
) -> pa.Table:
    """Take rows of fragments by search and position; each fragment is read once."""
    wanted: dict[Stored, list[int]] = {}
    for i, name in enumerate(searches.to_pylist()):
        wanted.setdefault(fragments[name], []).append(i)
    places = positions.to_numpy()
    parts = []
    for fragment, indices in wanted.items():
        group, place = np.divmod(places[indices], FRAGMENT_GROUP)
        groups, rank = np.unique(group, return_inverse=True)
        with store.open_file(fragment) as path:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            rows = file.read_row_groups(groups.tolist(), columns)
        parts.append(rows.take(pa.array(rank * FRAGMENT_GROUP + place)))
    order = np.argsort([i for indices in wanted.values() for i in indices], kind="stable")
    taken = pa.concat_tables(parts)
    return taken if len(parts) == 1 else taken.take(pa.array(order))


def _small_tables(
    directory: Path, runs: Sequence[StagedRun], gpus: list[dict[str, Any]]
) -> dict[str, TableFacts]:
    """Write the tables of which a staged run holds the rows, and that of the GPUs."""
    searches = [row for run in runs for row in run.searches]
    small = {
        "searches": sorted(searches, key=lambda row: str(row["search_id"])),
        "references": _references(runs),
        "gpus": gpus,
    }
    tables = {}
    for name, rows in small.items():
        marked = [{**row, "canary": CANARY} for row in rows]
        table = pa.Table.from_pylist(marked, schema=TABLES[name].schema)
        tables[name] = write_table(directory, name, {"train": table})
    return tables


def _references(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """One row per problem and reference: of several the one with the most facts, then the first."""
    stated: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.references:
            stated.setdefault((row["problem"], row["reference_id"]), []).append(row)
    return [
        max(rows, key=lambda row: sum(value is not None for value in row.values()))
        for _, rows in sorted(stated.items())
    ]


def _gpu_row(name: str, stated: Mapping[str, GpuFacts]) -> dict[str, Any]:
    """The row of ``gpus``: facts that a recipe states, else ours."""
    own = next((facts for other, facts in stated.items() if same_gpu(name, other)), None)
    facts = msgspec.structs.asdict(own or gpu_facts(name))
    return {"gpu": name, "known": own is not None or is_known(name), **facts}
