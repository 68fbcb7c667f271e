"""The merge: from all measurements of a program, in whatever search, to one kernel or failure with its label and split.

The decisions are the SQL of :mod:`kernel_archive.archive.labels`; here they are made part by part, so that memory does not grow with
the archive. A small archive is one part. A large one is cut twice: into *ranges* of searches, in the order of the archive, and into
*partitions* of programs by a hash of their tokens, so that all measurements of a program and of those that are nearly the
same meet. The steps, each a call of its own (:mod:`kernel_archive.archive.calls`):

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
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive import labels
from kernel_archive.archive.open import literal_path
from kernel_archive.archive.shards import possible_cuts
from kernel_archive.archive.store import Store, Stored
from kernel_archive.errors import KernelArchiveError, LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
NO_REASONS: Final = pa.table({"evaluation_id": pa.array([], pa.string()), "reason": pa.array([], pa.string())})

#: The rows of a split that a part has; ``None`` for none.
Part = Stored | None


class Range(msgspec.Struct, frozen=True):
    """A run of searches in the order of the archive.

    Attributes:
        first: the first search's id.
        searches: a file that names the searches (:class:`Search`).
        rows: their evaluations.
    """

    first: str
    searches: Stored
    rows: int


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
def connected(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills where it may."""
    import duckdb

    scratch.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET temp_directory = ?", [str(scratch)])
        yield connection


def _scratch(store: Store) -> Path:
    """Where a call may spill: in the staging area, or in a folder for temporary files where that is behind a URL."""
    return Path(tempfile.gettempdir(), "kernel-archive-spill") if store.remote else store.path("spill")


@contextmanager
def _database(store: Store) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of a call of its own, of one thread: whoever spreads the calls gives each its share of the machine."""
    with connected(_scratch(store)) as connection:
        connection.execute("SET threads = 1")
        yield connection


@contextmanager
def faults_named(fragments: Sequence[tuple[str, Path]], scratch: Path) -> Iterator[None]:
    """What a database raises when disk or memory is full, as an error that names the run that it comes from, if it is one."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error
    except duckdb.OutOfMemoryException as error:
        largest = sorted(fragments, key=lambda named: (-named[1].stat().st_size, named[0]))[:MOST_SUSPECTS]
        for name, path in largest:
            try:
                with connected(scratch) as connection:
                    view(connection, [path])
                    labels.settle(connection)
            except duckdb.OutOfMemoryException:
                raise LogError(
                    f"the measurements of {name} alone take more memory than a merge may ({MEMORY_LIMIT}). "
                    "Take the run out of its path; the others are staged and kept"
                ) from error
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error


def view(connection: duckdb.DuckDBPyConnection, fragments: Iterable[Path]) -> None:
    """Make the rows of fragments the table ``fragment``."""
    paths = sorted({literal_path(path) for path in fragments})
    connection.read_parquet(paths).create_view("fragment", replace=True)


def _batches(store: Store, part: Range) -> Iterator[dict[str, Path]]:
    """A few searches of a range at a time, by name, with their fragments on this machine."""
    for held in _together(searches_of(store, part), ROWS_AT_ONCE):
        with ExitStack() as stack:
            fragments = dict.fromkeys(s.fragment for s in held)  # several searches may share one
            files = {fragment: stack.enter_context(store.reading(fragment)) for fragment in fragments}
            yield {s.search_id: files[s.fragment] for s in held}


def _looked_at(store: Store, part: Range, look: Callable[[duckdb.DuckDBPyConnection], None]) -> None:
    """Look at the fragments of a range, some at a time, as the table ``fragment`` without the searches of other ranges."""
    for paths in _batches(store, part):
        with _database(store) as connection, faults_named(list(paths.items()), _scratch(store)):
            connection.register("searched", pa.table({"search_id": [*paths]}, labels.texts("search_id")))
            connection.read_parquet(sorted({literal_path(p) for p in paths.values()})).create_view("read")
            connection.execute("CREATE VIEW fragment AS SELECT * FROM read SEMI JOIN searched USING (search_id)")
            look(connection)


def _hashed(text: str, parts: int) -> str:
    """SQL for the part that a hexadecimal text belongs to."""
    return f"(('0x' || substr({text}, 1, 8))::UBIGINT % {parts})"


class _Spread:
    """Rows sorted into parts, each written to a file of its own."""

    def __init__(self, parts: int) -> None:
        self._tables: list[list[pa.Table]] = [[] for _ in range(parts)]

    def add(self, rows: pa.Table) -> None:
        """Rows with their part in the column ``part``."""
        rows = rows.sort_by("part")
        numbers, rows = rows["part"].to_numpy(), rows.drop_columns("part")
        for part in range(len(self._tables)):
            low, high = numbers.searchsorted(part), numbers.searchsorted(part, side="right")
            if high > low:
                self._tables[part].append(rows.slice(low, high - low))

    def written(self, store: Store, stem: str) -> list[Part]:
        """Files by part; ``None`` where there are no rows."""
        return [write_table(store, stem, pa.concat_tables(t)) if t else None for t in self._tables]


def times_of(store: Store, part: Range, groups: int) -> tuple[list[Part], pa.Table]:
    """Times of the reference in a range, by group, and what its sources have kept."""
    spread, sources = _Spread(groups), []

    def look(connection: duckdb.DuckDBPyConnection) -> None:
        group = _hashed("md5(concat_ws(chr(0), problem, reference_id, gpu, shape))", groups)
        spread.add(
            connection.sql(f"SELECT *, {group} AS part FROM ({labels.TIMES})")
            .to_arrow_table()
            .drop_columns("evaluation_id")
        )
        sources.append(connection.sql(labels.SOURCES).to_arrow_table())

    _looked_at(store, part, look)
    return spread.written(store, "times"), pa.concat_tables(sources)


def medians_of(store: Store, parts: Sequence[Part]) -> Part:
    """The median time of the reference for every case of a group."""
    rows = read_tables(store, parts)
    if rows is None:
        return None
    with _database(store) as connection:
        connection.register("reference_time", rows)
        return write_table(store, "medians", connection.sql(labels.FACTS["reference_median"]).to_arrow_table())


def logged_of(store: Store, part: Range, medians: Sequence[Part], parts: int) -> tuple[list[Part], Ordered]:
    """Evaluations of a range without texts, by partition; and where their row groups may end in the archive."""
    spread = _Spread(parts)
    known = read_tables(store, medians)
    keys: list[pa.Table] = []

    def look(connection: duckdb.DuckDBPyConnection) -> None:
        if known is None:
            connection.execute("CREATE TABLE drifted (evaluation_id VARCHAR)")
        else:
            connection.register("reference_median", known)
            connection.execute(f"CREATE TABLE reference_time AS {labels.TIMES}")
            connection.execute(f"CREATE TABLE drifted AS {labels.DRIFTED}")
        connection.execute(f"CREATE TABLE logged AS {labels.LOGGED}")
        spread.add(connection.sql(f"SELECT *, {_hashed('token_id', parts)} AS part FROM logged").to_arrow_table())
        keys.append(connection.sql(KEYS).to_arrow_table())

    _looked_at(store, part, look)
    return spread.written(store, "logged"), evaluations_in_order(store, pa.concat_tables(keys), NO_REASONS)


def merged(store: Store, parts: Sequence[Part], survivors: list[str], rules: Rules, starts: list[str]) -> Merged:
    """What the programs of a partition come to; ``starts`` are the first searches of the ranges."""
    empty: dict[tuple[str, str], list[Part]] = {split: [None] * len(starts) for split in labels.SPLIT_ROWS}
    with _database(store) as connection, ExitStack() as stack:
        paths = [stack.enter_context(store.reading(part)) for part in parts if part is not None]
        if not paths:
            return Merged(empty, dict.fromkeys(labels.REPORT, 0), [])
        connection.read_parquet([literal_path(path) for path in paths]).create_view("logged")
        connection.register("survivors", pa.table({"source_key": survivors}, labels.texts("source_key")))
        labels.decide(connection, rules)
        report, gpus = labels.counted(connection)
        rows = {}
        for split, query in labels.SPLIT_ROWS.items():
            spread = _Spread(len(starts))
            spread.add(_by_range(connection.sql(query).to_arrow_table(), starts))
            rows[split] = spread.written(store, "-".join(split))
        return Merged(rows, report, gpus)


def _by_range(rows: pa.Table, starts: list[str]) -> pa.Table:
    """Rows with the number of their range in the column ``part``."""
    searches = pc.dictionary_encode(rows["search_id"].combine_chunks())
    of_search = [bisect.bisect_right(starts, name) - 1 for name in searches.dictionary.to_pylist()]
    return rows.append_column("part", pa.array(of_search, pa.int64()).take(searches.indices))


def ordered(store: Store, split: tuple[str, str], parts: Sequence[Part]) -> Ordered:
    """Rows of a split that all partitions have in a range, in their order."""
    rows = read_tables(store, parts)
    if rows is None:
        return Ordered(None, 0, [])
    if split[0] == "evaluations":  # reasons, wherever they stand
        return Ordered(write_table(store, "reasons", rows), 0, [])
    rows = rows.sort_by([("search_id", "ascending"), ("seq", "ascending")])
    return in_order(store, split, rows)


def in_order(store: Store, split: tuple[str, str], rows: pa.Table) -> Ordered:
    """Rows of a split that are in their order, as a file."""
    cuts = possible_cuts(rows["kernel_id"].to_pylist(), rows["search_id"].to_pylist())
    return Ordered(write_table(store, "-".join(split), rows), rows.num_rows, cuts)


def evaluations_in_order(store: Store, keys: pa.Table, reasons: pa.Table) -> Ordered:
    """All evaluations: their keys and searches in their order, and the reasons of those that do not count."""
    cuts = possible_cuts(keys["evaluation_id"].to_pylist(), keys["search_id"].to_pylist())
    return Ordered(write_table(store, "reasons", reasons), keys.num_rows, cuts)
