"""From the fragments of all searches to the finished tables: merge them, then write the rows.

Only columns without texts and cases are looked at together, and those only by parts (:mod:`kernel_archive.archive.merge`): they say
which row stands where. The rest of a row is taken out of its fragment by its position there, and written to the Parquet files. Only a
few thousand rows are held with their texts at a time, so that memory does not grow with the archive.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
import shutil
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive import labels, merge
from kernel_archive.archive.labels import FLAGS, SPLIT_ROWS, Rules
from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.archive.merge import Ordered, Part, Range, Search, read_tables, searches_of
from kernel_archive.archive.shards import SHARD_ROWS, digest_rows, group_ends, write_groups, write_table
from kernel_archive.archive.team import Call, Team, results
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.errors import KernelArchiveError
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known, same_gpu
from kernel_archive.ids import CANARY, ID_LENGTH
from kernel_archive.schema import TABLES, shard_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.store import Store, Stored

#: An archive of more evaluations is merged in parts: ranges of searches and partitions of programs of about so many.
PART_ROWS: Final = 500_000
#: So many rows of one table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: Of a line: what a row adds to the logical digest of its table (:func:`~kernel_archive.ids.logical_digest`).
LINE_BYTES: Final = ID_LENGTH + 1 + 32
#: Columns of the evaluation that the label or the refusal comes from; all others are of the one that found the program.
_LABEL_COLUMNS: Final = {
    "kernels": ("runtime_us", "reference_runtime_us", "cases"),
    "failures": ("outcome", "error_type", "error_text"),
}

_Splits = dict[tuple[str, str], list[Ordered]]


def _merged(
    store: Store, ranges: list[Range], rules: Rules, workers: Team
) -> tuple[_Splits, dict[str, int], list[str]]:
    """The steps of the merge (:mod:`kernel_archive.archive.merge`): rows per split and range, counts, and GPUs."""
    import duckdb

    parts = max(1, -(-sum(r.rows for r in ranges) // PART_ROWS))
    starts = [r.first for r in ranges]

    def of_ranges(function: Any, *more: Any) -> list[Any]:
        return results(
            workers, [Call(f"the searches from {r.first}", partial(function, store, r, *more)) for r in ranges]
        )

    def of_parts(what: str, function: Any, files: list[list[Part]], *more: Any) -> list[Any]:
        """The function's results for each part of what all ranges have."""
        given = enumerate(zip(*files, strict=True))
        return results(workers, [Call(f"{what}, part {i}", partial(function, store, held, *more)) for i, held in given])

    try:
        timed = of_ranges(merge.times_of, parts)
        with duckdb.connect(":memory:") as connection:
            connection.register("source", pa.concat_tables([sources for _, sources in timed]))
            survivors = [key for (key,) in connection.sql(labels.SURVIVORS).fetchall()]
        medians = of_parts("medians", merge.medians_of, [times for times, _ in timed])
        logged = of_ranges(merge.logged_of, medians, parts)
        merged = of_parts("programs", merge.merged, [rows for rows, _ in logged], survivors, rules, starts)
        calls = [
            Call(
                f"the order of {'/'.join(split)} from {first}",
                partial(merge.ordered, store, split, [part.rows[split][i] for part in merged]),
            )
            for split in SPLIT_ROWS
            for i, first in enumerate(starts)
        ]
        found = iter(results(workers, calls))
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error
    splits: _Splits = {split: [next(found) for _ in ranges] for split in SPLIT_ROWS}
    reasons = splits["evaluations", "train"]
    splits["evaluations", "train"] = [
        msgspec.structs.replace(held, rows=of.rows) for (_, held), of in zip(logged, reasons, strict=True)
    ]
    report: Counter[str] = Counter()
    for part in merged:
        report.update(part.report)
    return splits, dict(report), sorted({gpu for part in merged for gpu in part.gpus})


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


def _shards(split: tuple[str, str], ordered: list[Ordered], ranges: list[Range], rules: Rules) -> Iterator[Shard]:
    """The files of a split: row groups cut by content, whoever writes them, and files that end with a group."""
    starts = [0, *itertools.accumulate(part.count for part in ordered)]
    possible = [(starts[i] + end, least) for i, part in enumerate(ordered) for end, least in part.cuts]
    first, groups = 0, [0]
    for end in group_ends(possible, starts[-1]):
        groups.append(end)
        if end - first >= SHARD_ROWS or end == starts[-1]:
            pieces = [
                Piece(i, part.rows, max(first, starts[i]) - starts[i], min(end, starts[i + 1]) - starts[i])
                for i, part in enumerate(ordered)
                if max(first, starts[i]) < min(end, starts[i + 1])
            ]
            yield Shard(*split, rules.scheme, ranges, pieces, [b - a for a, b in itertools.pairwise(groups)])
            first, groups = end, [end]
    if starts[-1] == 0:
        yield Shard(*split, rules.scheme, ranges, [], [])


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
        reasons: dict[str, str] = {}
        if known is not None:
            reasons = dict(zip(known["evaluation_id"].to_pylist(), known["reason"].to_pylist(), strict=True))
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


def _written(
    store: Store, directory: Path, splits: _Splits, ranges: list[Range], rules: Rules, workers: Team
) -> dict[str, TableFacts]:
    """Write the files of all splits into the archive directory, and find the digests of their tables."""
    shards = {split: list(_shards(split, ordered, ranges, rules)) for split, ordered in splits.items()}
    calls = [
        Call(f"the rows of {'/'.join(split)}, file {i + 1}", partial(write_shard, store, shard))
        for split, parts in shards.items()
        for i, shard in enumerate(parts)
    ]
    found = iter(results(workers, calls))
    facts: dict[tuple[str, str], list[ShardFacts]] = {}
    digests: dict[str, list[Stored]] = {}
    for split, parts in shards.items():
        for i, shard in enumerate(parts):
            file, lines = next(found)
            name = shard_name(*split, i, len(parts))
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if store.remote:
                store.fetch(file, directory / name)
            else:
                shutil.move(store.path(file.name), directory / name)
            rows = ShardFacts(path=name, rows=sum(shard.groups), bytes=file.bytes, sha256=file.sha256)
            facts.setdefault(split, []).append(rows)
            digests.setdefault(split[0], []).append(lines)
    return {
        table: TableFacts(
            splits={split: facts[table, split] for split in TABLES[table].splits}, logical_digest=_digest(store, files)
        )
        for table, files in digests.items()
    }


def _digest(store: Store, files: Sequence[Stored]) -> str:
    """The logical digest of a table, from files of sorted lines (:func:`write_shard`)."""
    total = hashlib.sha256()
    with ExitStack() as stack:
        streams = [stack.enter_context(stack.enter_context(store.reading(file)).open("rb")) for file in files]
        for line in heapq.merge(*(iter(partial(stream.read, LINE_BYTES), b"") for stream in streams)):
            total.update(line)
    return f"sha256:{total.hexdigest()}"


def _references(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """One row per problem and reference: of several statements the one with the most facts, then the first search's."""
    stated: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.references:
            stated.setdefault((row["problem"], row["reference_id"]), []).append(row)
    return [max(rows, key=lambda row: sum(v is not None for v in row.values())) for _, rows in sorted(stated.items())]


def _gpu_row(name: str, stated: Mapping[str, GpuFacts]) -> dict[str, Any]:
    ours = next((facts for other, facts in stated.items() if same_gpu(name, other)), None)
    facts = ours or gpu_facts(name)
    return {
        "gpu": name,
        "known": ours is not None or is_known(name),
        **{f: getattr(facts, f) for f in GpuFacts.__struct_fields__},
    }


def consolidate(
    runs: Sequence[StagedRun],
    store: Store,
    directory: Path,
    *,
    rules: Rules,
    gpus: Mapping[str, GpuFacts],
    workers: Team,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive, from runs sorted by search id; facts per table, and counts for the manifest.

    Raises:
        LogError: a single run takes more memory than there is for all.
        KernelArchiveError: the disk or the memory is full.
    """
    store.clear("merge")  # what a build that failed left there
    searches = [
        Search(str(row["search_id"]), run.fragment, row["n_evaluations"]) for run in runs for row in run.searches
    ]
    ranges = merge.ranges_of(store, searches, PART_ROWS)
    splits, report, names = _merged(store, ranges, rules, workers)
    small = {
        "searches": sorted((row for run in runs for row in run.searches), key=lambda row: str(row["search_id"])),
        "references": _references(runs),
        "gpus": [_gpu_row(name, gpus) for name in names],
    }
    tables = {}
    for name, rows in small.items():
        table = pa.Table.from_pylist([{**row, "canary": CANARY} for row in rows], schema=TABLES[name].schema)
        tables[name] = write_table(directory, name, {"train": table})
    tables |= _written(store, directory, splits, ranges, rules, workers)
    store.clear("merge")
    flags = {flag.name: report.pop(flag.name) for flag in FLAGS}
    return tables, {**report, "flags": flags}
