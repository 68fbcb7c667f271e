"""From the fragments of all runs to the measured tables: one DuckDB pass that spills to disk.

What becomes of a row is decided over narrow columns, by the queries of ``labels.sql``; then the
rows stream, search by search, with their texts into Parquet files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
from duckdb.sqltypes import DOUBLE, TINYINT

from kernel_archive.archive.fragment_store import Store
from kernel_archive.archive.labels import FLAGS, SQL_NAMES
from kernel_archive.archive.manifest import TableFacts
from kernel_archive.archive.recipe import LoadedRecipe
from kernel_archive.archive.recipe_files import READING_SCHEMA, reading_rows, refuse_stray_readings
from kernel_archive.archive.shards import ShardWriter, close_table, write_table
from kernel_archive.archive.stage import StagedRun
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.databases import literal_path, memory_database, sql_texts
from kernel_archive.errors import KernelArchiveError, RecipeError
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

#: DuckDB spills to disk above this; a process stays below 2 GB.
MEMORY_LIMIT: Final = "800MB"
#: Each thread holds blocks of its own: more of them than this need more than the limit.
MAX_THREADS: Final = 4
#: Fragments of fewer bytes and rows in all are read once, with their texts.
SMALL_BYTES: Final = 64 << 20
SMALL_ROWS: Final = 50_000
#: Of others, sort searches of about this many rows together, with their texts, at a time.
CHUNK_ROWS: Final = 20_000
#: Rows of a batch that goes to a Parquet file.
BATCH_ROWS: Final = 4000
#: Which rows of the views in ``labels.sql`` each split of the large tables has.
_LARGE_TABLES: Final = (
    ("kernels", "train", "NOT withheld AND NOT held_out"),
    ("kernels", "test", "held_out"),
    ("evaluations", "train", "true"),
    ("failures", "train", "true"),
)
#: What ``labels.sql`` reads beside ``fragment``: field of :class:`LabelRules`, table of that name.
_RULE_SCHEMAS: Final = {
    "succession": pa.schema([("newer", pa.string()), ("older", pa.string())]),
    "unanimous": pa.schema([("builder", pa.string())]),
    "reading": READING_SCHEMA,
}


class LabelRules(msgspec.Struct, frozen=True):
    """What the recipes say of labels and GPUs, and the bin scheme of the labels."""

    scheme: Scheme
    succession: list[dict[str, Any]]  # rows of builders (newer, older): the newer's verdicts count
    unanimous: list[dict[str, Any]]  # rows of builders: one failed measurement takes a label
    reading: list[dict[str, Any]]  # rows: what readers found in programs
    gpus: dict[str, GpuFacts]  # facts that recipes state


def label_rules(recipes: Sequence[LoadedRecipe], scheme: Scheme) -> LabelRules:
    """Collect the rules of all recipes; errors as of :func:`superseding_pairs` and the readings."""
    all_recipes = [loaded.recipe for loaded in recipes]
    pairs = superseding_pairs({recipe.name: recipe.supersedes for recipe in all_recipes})
    succession = [{"newer": new, "older": old} for new, old in pairs]
    unanimous = [{"builder": recipe.name} for recipe in all_recipes if recipe.unanimous]
    gpus = {name: facts for recipe in all_recipes for name, facts in recipe.gpu.items()}
    return LabelRules(scheme, succession, unanimous, reading_rows(recipes), gpus)


def superseding_pairs(supersedes: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """List all pairs (new, old) of builders, also over several steps; refuse a circle."""
    pairs = {(new, old) for new, olds in supersedes.items() for old in olds}
    for _ in range(len(pairs)):
        pairs |= {(new, oldest) for new, old in pairs for newer, oldest in pairs if newer == old}
    if circle := sorted(new for new, old in pairs if new == old):
        raise RecipeError.of(
            code="bad-recipe",
            message="a builder supersedes itself, perhaps by way of others",
            field="supersedes",
            value=circle[0],
            fix="Take its name out of one of the lists",
        )
    return sorted(pairs)


def consolidate(
    runs: Sequence[StagedRun],
    store: Store,
    directory: Path,
    *,
    rules: LabelRules,
    scratch: Path,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive; return facts per table, and counts for the manifest.

    Runs are sorted by id; ``scratch`` is a folder on this machine for what the merge spills.
    """
    with _merge_database(scratch) as connection:
        if store.remote:
            connection.register_filesystem(store.system)
        fragments = {literal_path(store.location(run.fragment.name)): run.fragment for run in runs}
        whole = connection.read_parquet(sorted(fragments))
        n_bytes = sum(fragment.bytes for fragment in fragments.values())
        chunks: Sequence[str | None] = [None]  # what is in ``chunk`` already
        if n_bytes < SMALL_BYTES and sum(run.facts.evaluations for run in runs) < SMALL_ROWS:
            whole.create("chunk")
            connection.execute("CREATE VIEW fragment AS SELECT * EXCLUDE (code) FROM chunk")
        else:
            whole.limit(0).create("chunk")
            whole.project("* EXCLUDE (code)").create("fragment")
            chunks = _chunk_queries(connection, runs, store)
        _create_views(connection, rules)
        (counts,) = connection.sql("FROM report").to_arrow_table().to_pylist()
        flagged = ", ".join(f"count(*) FILTER ({flag.name}) AS {flag.name}" for flag in FLAGS)
        query = f"SELECT {flagged} FROM kernel WHERE NOT withheld"
        (counts["flags"],) = connection.sql(query).to_arrow_table().to_pylist()
        gpus = connection.sql("SELECT DISTINCT gpu FROM evaluation ORDER BY 1").fetchall()
        writers: dict[str, dict[str, ShardWriter]] = {}
        for name, split, _ in _LARGE_TABLES:
            writer = ShardWriter(directory, name, split)
            writers.setdefault(name, {})[split] = writer
        for chunk in chunks:  # read once for all tables
            if chunk is not None:
                connection.execute(f"CREATE OR REPLACE TABLE chunk AS {chunk}")
            for name, split, condition in _LARGE_TABLES:
                for part in _split_rows(connection, name, condition, rules.scheme):
                    writers[name][split].add(part)
        tables = {name: close_table(splits) for name, splits in writers.items()}
    searches = [row for run in runs for row in run.searches]
    small = {
        "searches": sorted(searches, key=lambda row: str(row["search_id"])),
        "references": _reference_rows(runs),
        "gpus": [_gpu_row(name, rules.gpus) for (name,) in gpus],
    }
    for name, rows in small.items():
        marked = [{**row, "canary": CANARY} for row in rows]
        table = pa.Table.from_pylist(marked, schema=TABLES[name].schema)
        tables[name] = write_table(directory, name, {"train": table})
    return tables, counts


@contextmanager
def _merge_database(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that spills into a folder."""
    try:
        with memory_database(
            memory_limit=MEMORY_LIMIT,
            temp_directory=str(scratch),
            threads=min(MAX_THREADS, os.cpu_count() or 1),
            preserve_insertion_order=False,
        ) as connection:
            connection.execute("SET parquet_metadata_cache = true")
            yield connection
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        reason = str(error).splitlines()[0]
        message = f"the merge could not go on: {reason}. The staged fragments are kept"
        raise KernelArchiveError(message) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _create_views(connection: duckdb.DuckDBPyConnection, rules: LabelRules) -> None:
    """Create views of the large tables, with what becomes of every row of ``fragment``."""
    for name, schema in _RULE_SCHEMAS.items():
        connection.register(name, pa.Table.from_pylist(getattr(rules, name), schema=schema))

    def bin_of(speedups: pa.Array) -> pa.Array:
        return pa.array(assign_bins(speedups.to_numpy(zero_copy_only=False), rules.scheme))

    udf: Any = connection.create_function  # its stubs have no type "arrow"
    udf("bin_of", bin_of, [DOUBLE], TINYINT, type="arrow")
    queries = Path(__file__).with_name("labels.sql").read_text(encoding="utf-8")
    flags = ", ".join(f"CASE WHEN {flag.name} THEN '{flag.name}' END" for flag in FLAGS)
    connection.execute(Template(queries).substitute(SQL_NAMES, flags=flags))
    refuse_stray_readings(connection)


def _chunk_queries(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[StagedRun], store: Store
) -> list[str]:
    """Part the searches, in order, into queries for about :data:`CHUNK_ROWS` rows of fragments."""
    files: dict[str, set[str]] = {}
    for run in runs:
        path = literal_path(store.location(run.fragment.name))
        for search in run.searches:
            files.setdefault(str(search["search_id"]), set()).add(path)
    parts = connection.sql(
        f"""SELECT list(search_id ORDER BY search_id)
            FROM (SELECT search_id, sum(count(*)) OVER (ORDER BY search_id) - count(*) AS before
                  FROM fragment GROUP BY search_id)
            GROUP BY before // {CHUNK_ROWS} ORDER BY before // {CHUNK_ROWS}"""
    )
    chunks = []
    for (part,) in parts.fetchall():
        paths = sql_texts(sorted(set().union(*(files[search] for search in part))))
        chunks.append(
            f"SELECT * FROM read_parquet([{paths}]) WHERE search_id IN ({sql_texts(part)})"
        )
    return chunks


def _split_rows(
    connection: duckdb.DuckDBPyConnection, table: str, condition: str, scheme: str
) -> Iterator[pa.Table]:
    """Yield the rows of a split that are in ``chunk``, in order, as the schema has them."""
    constants = {"bin_scheme": scheme, "canary": CANARY}
    columns = ", ".join(
        f"'{constants[name]}' AS {name}" if name in constants else name
        for name in TABLES[table].schema.names
    )
    query = f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY search_id, seq"
    for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
        yield pa.Table.from_batches([batch])


def _reference_rows(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """Keep one row per problem and reference: the one with the most facts, then the first."""
    by_id: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.references:
            by_id.setdefault((row["problem"], row["reference_id"]), []).append(row)
    return [
        max(rows, key=lambda row: sum(value is not None for value in row.values()))
        for _, rows in sorted(by_id.items())
    ]


def _gpu_row(name: str, stated: Mapping[str, GpuFacts]) -> dict[str, Any]:
    """Make the row of ``gpus``: its facts, and whether this package or a recipe knows it."""
    facts = gpu_facts(name, stated)
    columns = {field: getattr(facts, field) for field in GpuFacts.__struct_fields__}
    return {"gpu": name, "known": is_known(name, stated), **columns}
