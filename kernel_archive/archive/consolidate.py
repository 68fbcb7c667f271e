"""From the fragments of all searches to the finished tables: merge them, then write the rows.

Only columns without texts and cases are looked at together, and those only by parts (:mod:`kernel_archive.archive.merge`);
texts and cases are read again, a few fragments at a time, when rows are written (:mod:`kernel_archive.archive.wide`).
"""

from __future__ import annotations

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

from kernel_archive.archive import labels, merge
from kernel_archive.archive.labels import FLAGS, SPLIT_ROWS, Rules
from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.archive.merge import Ordered, Part, Range, Search
from kernel_archive.archive.shards import SHARD_ROWS, group_ends, write_table
from kernel_archive.archive.team import Call, Team, results
from kernel_archive.archive.wide import LINE_BYTES, Piece, Shard, write_shard
from kernel_archive.errors import KernelArchiveError
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known, same_gpu
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES, shard_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.store import Store, Stored

#: An archive of more evaluations is merged in parts: ranges of searches and partitions of programs of about so many.
PART_ROWS: Final = 500_000

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
    """The logical digest of a table, from files of sorted lines (:func:`~kernel_archive.archive.wide.write_shard`)."""
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
