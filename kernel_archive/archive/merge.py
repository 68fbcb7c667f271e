"""The merge: from all measurements of a program, in whatever search, to one kernel or failure with its label and split.

The decisions are the SQL of :mod:`kernel_archive.archive.labels`; here they are made part by part, so that memory does not grow with
the archive. A small archive is one part. A large one is cut twice: into *ranges* of searches, in the order of the archive, and into
*partitions* of programs by a hash of their tokens, so that all measurements of a program and of those that are nearly the
same meet. The steps, each a call of its own (:mod:`kernel_archive.archive.team`):

1. per range: times of the reference, by group; what sources have kept (:func:`times_of`);
2. per group of times: medians (:func:`medians_of`);
3. per range: its evaluations without texts, by partition (:func:`logged_of`);
4. per partition: which kernels and failures there are, with labels, flags and split, by range (:func:`merged`);
5. per range: the rows of each split in their order (:func:`ordered`).

What goes from step to step are files of the staging area. The rows are the same however it is cut.
"""

from __future__ import annotations

import bisect
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive import labels
from kernel_archive.archive.open import literal_path
from kernel_archive.archive.shards import possible_cuts
from kernel_archive.archive.store import Store, Stored
from kernel_archive.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from kernel_archive.archive.labels import Rules

#: DuckDB spills to disk above this.
MEMORY_LIMIT: Final = "600MB"
#: Of so many runs, the largest, it is tried whether one alone takes more.
MOST_SUSPECTS: Final = 20
#: Fragments of so many rows are looked at together; those behind a URL are copied meanwhile.
ROWS_AT_ONCE: Final = 100_000

#: What the row groups of evaluations are cut by.
KEYS: Final = "SELECT evaluation_id, search_id FROM logged ORDER BY search_id, seq"

#: The rows of a split that a part has; ``None`` for none.
Part = Stored | None


class Range(msgspec.Struct, frozen=True):
    """A run of searches in the order of the archive."""

    first: str  # the first search's id
    searches: Stored  # a file that names them (Search)
    rows: int  # their evaluations


class Search(msgspec.Struct, frozen=True, array_like=True):
    """A search, the fragment that it is in, and its evaluations."""

    search_id: str
    fragment: Stored
    rows: int


class Merged(msgspec.Struct):
    """What a part of the programs comes to: rows per split and range, counts for the manifest, GPUs."""

    rows: dict[tuple[str, str], list[Part]]
    report: dict[str, int]
    gpus: list[str]


class Ordered(msgspec.Struct):
    """Rows of a split and range in their order: where they are, how many, and where row groups may end."""

    rows: Part
    count: int
    cuts: list[tuple[int, int]]


def searches_of(store: Store, part: Range) -> list[Search]:
    """The searches of a range."""
    with store.reading(part.searches) as path:
        return msgspec.json.decode(path.read_bytes(), type=list[Search])


def ranges_of(store: Store, searches: Iterable[Search], most: int) -> list[Range]:
    """Searches cut into ranges of about so many evaluations."""
    ranges = []
    for held in _together(sorted(searches, key=lambda s: s.search_id), most):
        file = store.write("merge/searches", ".json", partial(Path.write_bytes, data=msgspec.json.encode(held)))
        ranges.append(Range(held[0].search_id, file, sum(s.rows for s in held)))
    return ranges


def _together(searches: Iterable[Search], most: int) -> Iterator[list[Search]]:
    """Neighbouring searches, until they have so many evaluations."""
    held: list[Search] = []
    rows = 0
    for search in searches:
        held.append(search)
        rows += search.rows
        if rows >= most:
            yield held
            held, rows = [], 0
    if held:
        yield held


def write_table(store: Store, stem: str, table: pa.Table) -> Part:
    """A table of the merge as a file; none for no rows."""
    if not table.num_rows:
        return None
    return store.write(
        f"merge/{stem}", ".parquet", lambda path: pq.write_table(table, path, compression="lz4", write_statistics=False)
    )


def read_tables(store: Store, parts: Iterable[Part]) -> pa.Table | None:
    """The rows of some files; ``None`` for none."""
    tables = []
    for part in parts:
        if part is not None:
            with store.reading(part) as path:
                tables.append(pq.ParquetFile(path).read())
    return pa.concat_tables(tables) if tables else None


@contextmanager
def _database(store: Store, calls: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of a call of its own; of one thread where there are several such calls, which share the machine."""
    import duckdb

    # It spills in the staging area, or in a folder for temporary files where that is behind a URL.
    scratch = Path(tempfile.gettempdir(), "kernel-archive-spill") if store.remote else store.path("spill")
    scratch.mkdir(parents=True, exist_ok=True)
    limits: dict[str, Any] = {"memory_limit": MEMORY_LIMIT, "temp_directory": str(scratch)}
    if calls > 1:
        limits["threads"] = 1
    with duckdb.connect(":memory:", config=limits) as connection:
        yield connection


def _batches(store: Store, part: Range) -> Iterator[dict[str, Path]]:
    """A few searches of a range at a time, by name, with their fragments on this machine."""
    for held in _together(searches_of(store, part), ROWS_AT_ONCE):
        with ExitStack() as stack:
            fragments = dict.fromkeys(s.fragment for s in held)  # several searches may share one
            files = {fragment: stack.enter_context(store.reading(fragment)) for fragment in fragments}
            yield {s.search_id: files[s.fragment] for s in held}


def _found(
    store: Store,
    part: Range,
    queries: Sequence[str],
    *,
    calls: int,
    known: Mapping[str, pa.Table] | None = None,
    steps: Mapping[str, str] | None = None,
) -> list[pa.Table]:
    """What queries find in the fragments of a range, looked at some at a time.

    They read ``known`` tables, ``fragment`` (the rows of the range), and tables that ``steps`` make of these before.

    Raises:
        LogError: a single run takes more memory than there is for all.
    """
    import duckdb

    def answers(paths: Mapping[str, Path]) -> list[pa.Table]:
        with _database(store, calls) as connection:
            for name, table in (known or {}).items():
                connection.register(name, table)
            # A file may hold searches of other ranges, too.
            connection.register("searched", pa.table({"search_id": [*paths]}, labels.texts("search_id")))
            connection.read_parquet(sorted({literal_path(path) for path in paths.values()})).create_view("read")
            connection.execute("CREATE VIEW fragment AS SELECT * FROM read SEMI JOIN searched USING (search_id)")
            for name, query in (steps or {}).items():
                connection.execute(f"CREATE TABLE {name} AS {query}")
            return [connection.sql(query).to_arrow_table() for query in queries]

    found = []
    for paths in _batches(store, part):
        try:
            found.append(answers(paths))
        except duckdb.OutOfMemoryException:
            for name in sorted(paths, key=lambda name: (-paths[name].stat().st_size, name))[:MOST_SUSPECTS]:
                try:
                    answers({name: paths[name]})
                except duckdb.OutOfMemoryException as error:
                    raise LogError(
                        f"the measurements of {name} alone take more memory than a merge may ({MEMORY_LIMIT}). "
                        "Take the run out of its path; the others are staged and kept"
                    ) from error
            raise
    return [pa.concat_tables(tables) for tables in zip(*found, strict=True)]


def _hashed(text: str, parts: int) -> str:
    """SQL for the part that a hexadecimal text belongs to."""
    return f"(('0x' || substr({text}, 1, 8))::UBIGINT % {parts}) AS part"


def _spread(store: Store, stem: str, rows: pa.Table, parts: int) -> list[Part]:
    """Rows by the number of their part in the column ``part``, as a file for each; ``None`` where there are no rows."""
    numbers, rows = rows["part"], rows.drop_columns("part")
    return [write_table(store, stem, rows.filter(pc.equal(numbers, part))) for part in range(parts)]


def times_of(store: Store, part: Range, groups: int) -> tuple[list[Part], pa.Table]:
    """Times of the reference in a range, by group, and what its sources have kept."""
    group = _hashed("md5(concat_ws(chr(0), problem, reference_id, gpu, shape))", groups)
    grouped = f"SELECT * EXCLUDE (evaluation_id), {group} FROM ({labels.TIMES})"
    times, sources = _found(store, part, [grouped, labels.SOURCES], calls=groups)
    return _spread(store, "times", times, groups), sources


def medians_of(store: Store, parts: Sequence[Part]) -> Part:
    """The median time of the reference for every case of a group."""
    rows = read_tables(store, parts)
    if rows is None:
        return None
    with _database(store, len(parts)) as connection:
        connection.register("reference_time", rows)
        return write_table(store, "medians", connection.sql(labels.MEDIANS).to_arrow_table())


def logged_of(store: Store, part: Range, medians: Sequence[Part], parts: int) -> tuple[list[Part], Ordered]:
    """Evaluations of a range without texts, by partition; and where their row groups may end in the archive."""
    known = read_tables(store, medians)
    logged, keys = _found(
        store,
        part,
        [f"SELECT *, {_hashed('token_id', parts)} FROM logged", KEYS],
        calls=parts,
        known={"reference_median": labels.NO_MEDIANS if known is None else known},
        steps={"reference_time": labels.TIMES, "drifted": labels.DRIFTED, "logged": labels.LOGGED},
    )
    cuts = possible_cuts(keys["evaluation_id"].to_pylist(), keys["search_id"].to_pylist())
    return _spread(store, "logged", logged, parts), Ordered(None, keys.num_rows, cuts)


def merged(store: Store, parts: Sequence[Part], survivors: list[str], rules: Rules, starts: list[str]) -> Merged:
    """What the programs of a partition come to; ``starts`` are the first searches of the ranges."""
    with ExitStack() as stack:
        paths = [stack.enter_context(store.reading(part)) for part in parts if part is not None]
        if not paths:
            empty: dict[tuple[str, str], list[Part]] = {split: [None] * len(starts) for split in labels.SPLIT_ROWS}
            return Merged(empty, dict.fromkeys(labels.REPORT, 0), [])
        connection = stack.enter_context(_database(store, len(starts)))
        connection.read_parquet([literal_path(path) for path in paths]).create_view("logged")
        connection.register("survivors", pa.table({"source_key": survivors}, labels.texts("source_key")))
        labels.decide(connection, rules)
        report, gpus = labels.counted(connection)
        rows = {}
        for split, query in labels.SPLIT_ROWS.items():
            found = _by_range(connection.sql(query).to_arrow_table(), starts)
            rows[split] = _spread(store, "-".join(split), found, len(starts))
        return Merged(rows, report, gpus)


def _by_range(rows: pa.Table, starts: list[str]) -> pa.Table:
    """Rows with the number of their range in the column ``part``."""
    searches = pc.dictionary_encode(rows["search_id"].combine_chunks())
    of_search = [bisect.bisect_right(starts, name) - 1 for name in searches.dictionary.to_pylist()]
    return rows.append_column("part", pa.array(of_search, pa.int64()).take(searches.indices))


def ordered(store: Store, split: tuple[str, str], parts: Sequence[Part]) -> Ordered:
    """Rows of a split that all partitions have in a range, in their order; of ``evaluations`` reasons, wherever they stand."""
    rows = read_tables(store, parts)
    if rows is None:
        return Ordered(None, 0, [])
    if split[0] == "evaluations":
        return Ordered(write_table(store, "reasons", rows), 0, [])
    rows = rows.sort_by([("search_id", "ascending"), ("seq", "ascending")])
    cuts = possible_cuts(rows["kernel_id"].to_pylist(), rows["search_id"].to_pylist())
    return Ordered(write_table(store, "-".join(split), rows), rows.num_rows, cuts)
