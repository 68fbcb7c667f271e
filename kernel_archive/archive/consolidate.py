"""From the fragments of all searches to the finished tables: merge them, then write the rows.

Only columns without texts and cases are looked at together, and those only by parts (:mod:`kernel_archive.archive.merge`);
texts and cases are read again, a few fragments at a time, when rows are written (:mod:`kernel_archive.archive.wide`).
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kernel_archive.archive import labels, merge
from kernel_archive.archive.calls import Call, results
from kernel_archive.archive.labels import FACTS, FLAGS, SPLIT_ROWS, Rules
from kernel_archive.archive.manifest import ShardFacts, TableFacts
from kernel_archive.archive.merge import Ordered, Range, Search
from kernel_archive.archive.shards import SHARD_ROWS, group_ends, write_table
from kernel_archive.archive.wide import Piece, Shard, write_shard
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known, same_gpu
from kernel_archive.ids import CANARY, ID_LENGTH
from kernel_archive.schema import TABLES, shard_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.calls import Team
    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.store import Store, Stored

#: An archive of more evaluations is merged in parts: ranges of searches and partitions of programs of about so many.
PART_ROWS: Final = 500_000
#: Keys and digests of so many rows are sorted together.
DIGESTS_AT_ONCE: Final = 1_000_000
#: A key and a digest.
_LINE: Final = np.dtype([("key", f"S{ID_LENGTH}"), ("digest", "V32")])

_Splits = dict[tuple[str, str], list[Ordered]]


def _whole(store: Store, ranges: Sequence[Range], rules: Rules) -> tuple[_Splits, dict[str, int], list[str]]:
    """The merge of an archive of one part, here."""
    searches = merge.searches_of(store, ranges[0])
    fragments = [(s.search_id, store.path(s.fragment.name)) for s in searches]
    scratch = store.path("spill")
    with merge.faults_named(fragments, scratch), merge.connected(scratch) as connection:
        merge.view(connection, [path for _, path in fragments])
        labels.settle(connection)
        labels.decide(connection, rules)
        report, gpus = labels.counted(connection)
        keys = connection.sql(merge.KEYS).to_arrow_table()
        splits: _Splits = {}
        for split, query in SPLIT_ROWS.items():
            rows = connection.sql(query).to_arrow_table()
            if split[0] == "evaluations":
                splits[split] = [merge.evaluations_in_order(store, keys, rows)]
            else:
                splits[split] = [merge.in_order(store, split, rows)]
    return splits, report, gpus


def _parted(
    store: Store, ranges: list[Range], rules: Rules, workers: Team
) -> tuple[_Splits, dict[str, int], list[str]]:
    """The merge of a large archive, by as many as there are."""
    parts = -(-sum(r.rows for r in ranges) // PART_ROWS)
    names = [f"the searches from {r.first}" for r in ranges]

    def of_ranges(function: Any, *more: Any) -> list[Call[Any]]:
        return [Call(f"{name}", partial(function, store, r, *more)) for name, r in zip(names, ranges, strict=True)]

    timed = results(workers, of_ranges(merge.times_of, parts))
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.register("source", pa.concat_tables([sources for _, sources in timed]))
        survivors = [key for (key,) in connection.sql(FACTS["survivors"]).fetchall()]
    medians = results(
        workers,
        [
            Call(f"medians, part {i}", partial(merge.medians_of, store, [times[i] for times, _ in timed]))
            for i in range(parts)
        ],
    )
    logged = results(workers, of_ranges(merge.logged_of, medians, parts))
    starts = [r.first for r in ranges]
    merged = results(
        workers,
        [
            Call(
                f"programs, part {i}",
                partial(merge.merged, store, [rows[i] for rows, _ in logged], survivors, rules, starts),
            )
            for i in range(parts)
        ],
    )
    calls = [
        Call(
            f"the order of {'/'.join(split)} from {starts[i]}",
            partial(merge.ordered, store, split, [m.rows[split][i] for m in merged]),
        )
        for split in SPLIT_ROWS
        for i in range(len(ranges))
    ]
    found = iter(results(workers, calls))
    splits = {split: [next(found) for _ in ranges] for split in SPLIT_ROWS}
    for i, (_, evaluations) in enumerate(logged):
        reasons = splits["evaluations", "train"][i]
        splits["evaluations", "train"][i] = Ordered(reasons.rows, evaluations.count, evaluations.cuts)
    report: Counter[str] = Counter()
    for part in merged:
        report.update(part.report)
    return splits, dict(report), sorted({gpu for part in merged for gpu in part.gpus})


def _shards(split: tuple[str, str], ordered: list[Ordered], ranges: list[Range], rules: Rules) -> Iterator[Shard]:
    """The files of a split: row groups cut by content, whoever writes them, and files that end with a group."""
    starts = [0]
    for part in ordered:
        starts.append(starts[-1] + part.count)
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
    tables: dict[str, TableFacts] = {}
    digests: dict[str, list[Stored]] = {}
    facts: dict[tuple[str, str], list[ShardFacts]] = {}
    for split, parts in shards.items():
        table = split[0]
        facts[split] = []
        for i, shard in enumerate(parts):
            file, lines = next(found)
            name = shard_name(*split, i, len(parts))
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if store.remote:
                store.fetch(file, directory / name)
            else:
                shutil.move(store.path(file.name), directory / name)
            facts[split].append(ShardFacts(path=name, rows=sum(shard.groups), bytes=file.bytes, sha256=file.sha256))
            digests.setdefault(table, []).append(lines)
    for table in dict.fromkeys(table for table, _ in splits):
        by_split = {split: facts[table, split] for split in TABLES[table].splits}
        tables[table] = TableFacts(splits=by_split, logical_digest=_digest(store, digests[table]))
    return tables


def _digest(store: Store, files: Sequence[Stored]) -> str:
    """The logical digest of a table from sorted keys and digests, by beginnings of keys: no more of them than fit."""
    total = hashlib.sha256()
    with ExitStack() as stack:
        paths = [stack.enter_context(store.reading(file)) for file in files if file.bytes]
        parts = [np.memmap(path, dtype=_LINE, mode="r") for path in paths]
        steps = max(1, -(-sum(map(len, parts)) // DIGESTS_AT_ONCE))
        marks = [f"{(65536 * i) // steps:04x}".encode() for i in range(1, steps)]
        cuts = [[0, *part["key"].searchsorted(marks), len(part)] for part in parts]
        for i in range(steps if parts else 0):
            rows = np.concatenate([part[cut[i] : cut[i + 1]] for part, cut in zip(parts, cuts, strict=True)])
            flat = rows[np.argsort(rows["key"], kind="stable")].view(np.uint8).reshape(-1, _LINE.itemsize)
            # As logical_digest has them: id, NUL, digest.
            total.update(np.insert(flat, ID_LENGTH, 0, axis=1).tobytes())
    return f"sha256:{total.hexdigest()}"


def _references(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """One row per problem and reference: of several statements the one with the most facts, then the first search's."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        for row in run.references:
            key = (row["problem"], row["reference_id"])
            if key not in best or _filled(row) > _filled(best[key]):
                best[key] = row
    return [best[key] for key in sorted(best)]


def _filled(row: dict[str, Any]) -> int:
    return sum(value is not None for value in row.values())


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
    gpus: Mapping[str, GpuFacts] | None = None,
    workers: Team,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive.

    Args:
        runs: what is kept beside the fragments, sorted by search id.
        store: where the fragments are.
        directory: the archive directory being made.
        rules: what the recipes say of each other, and the bin scheme.
        gpus: facts of GPUs that recipes state.
        workers: who merges and writes.

    Returns:
        Facts per table, and counts for the manifest.

    Raises:
        LogError: a single run takes more memory than there is for all.
        KernelArchiveError: the disk or the memory is full.
    """
    store.clear("merge")  # what a build that failed left there
    searches = [
        Search(str(row["search_id"]), run.fragment, row["n_evaluations"]) for run in runs for row in run.searches
    ]
    ranges = merge.ranges_of(store, searches, PART_ROWS)
    if len(ranges) == 1 and not store.remote:
        splits, report, names = _whole(store, ranges, rules)
    else:
        splits, report, names = _parted(store, ranges, rules, workers)
    small = {
        "searches": sorted((row for run in runs for row in run.searches), key=lambda row: str(row["search_id"])),
        "references": _references(runs),
        "gpus": [_gpu_row(name, gpus or {}) for name in names],
    }
    tables = {}
    for name, rows in small.items():
        table = pa.Table.from_pylist([{**row, "canary": CANARY} for row in rows], schema=TABLES[name].schema)
        tables[name] = write_table(directory, name, {"train": table})
    tables |= _written(store, directory, splits, ranges, rules, workers)
    store.clear("merge")
    flags = {flag.name: report.pop(flag.name) for flag in FLAGS}
    return tables, {**report, "flags": flags}
