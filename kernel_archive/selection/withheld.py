"""Hidden labels: the evaluation splits as they were, in an archive of their own.

The public part keeps the programs of the evaluation rows and what a trainer may see, and nothing
else that held-out searches ran: what an author's other programs measured says much of the one that
is asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl
import pyarrow as pa

from kernel_archive.archive.manifest import (
    WITHHELD_SUFFIX,
    SplitFacts,
    read_manifest,
    write_manifest,
)
from kernel_archive.archive.open import Archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.swap import replaced_directory
from kernel_archive.errors import ArchiveMismatchError, Finding, TargetExistsError, UsageError
from kernel_archive.ids import program_id
from kernel_archive.schema import OUTCOMES, TABLES
from kernel_archive.selection.make import locked_archive, make_splits
from kernel_archive.selection.selected import by_hash, name_rows
from kernel_archive.splits import REFERENCE_SPLITS, SPLIT_TABLES

#: Columns of an evaluation row that are withheld, and what the public part has in their place.
LABELS: Final[dict[str, Any]] = {
    **dict.fromkeys(["speedup", "bin", "n_measurements", "speedup_min", "speedup_max"]),
    "search_id": "",
}
#: What authors were told, which says nearly as much as a label: a public part has none of it.
GOALS: Final = ("goal_bin", "aim")
#: Facts of a split that say nothing of its labels.
_OPEN_FACTS: Final = {"gpus"}
#: Tables of which the public part keeps the rows of training kernels.
_PUBLIC: Final = {"kernels", "failures", "evaluations", "launches"}


def labelled(archive: Archive, table: str, folder: Path) -> tuple[pa.Table, SplitFacts]:
    """Read the rows of a withheld split with their labels, and its facts.

    Raises:
        ArchiveMismatchError: the labels belong to another archive, or were changed.
        ArchiveNotFoundError: the labels are missing.
    """
    whole = Archive(folder, read_manifest(folder))  # which open_archive refuses
    facts, public = whole.manifest.splits.get(table), archive.arrow(table)
    if facts is not None and whole.content_digests[table] == facts.logical_digest:
        rows = whole.arrow(table)
        if rows.drop_columns([*LABELS]).equals(public.drop_columns([*LABELS])):
            return rows, facts
    message = f"the labels of {table} belong to another archive, or were changed"
    fix = "Name the folder that was written with this archive"
    raise ArchiveMismatchError.of(code="other-labels", file=str(folder), message=message, fix=fix)


@contextmanager
def withheld_labels(directory: Path, folder: Path) -> Iterator[Path]:
    """Move the labels of every evaluation split, and what tells them, into a new folder.

    The folder becomes an archive of these splits, which only ``--labels`` takes. The archive is
    replaced by its public part at the end of the block, which gets the new directory for a card to
    be written. Its version has ``-withheld`` behind it.

    Raises:
        UsageError: labels are withheld already, a split was published by others, or the folder
            is inside the archive.
        TargetExistsError: there is something in the folder.
    """
    if folder.resolve().is_relative_to(directory.resolve()):
        raise UsageError(f"{folder} is inside the archive {directory}. Name a folder outside it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} is not an empty folder: labels are not written over anything"
        raise TargetExistsError(message)
    with locked_archive(directory) as archive:
        splits = archive.manifest.splits
        hidden = [
            s.table for s in REFERENCE_SPLITS.values() if s.kind == "eval" and s.table in splits
        ]
        wrong = [f"{n} is {splits[n].origin}" for n in hidden if splits[n].origin != "selected"]
        if wrong or not hidden:
            states = ", ".join(wrong) or "the archive has none"
            raise UsageError(f"withheld can be splits that build-eval made ({states})")
        with replaced_directory(directory, copy=True) as new, replaced_directory(folder) as labels:
            _write_public(archive, new, labels, hidden)
            yield new


def _write_public(archive: Archive, new: Path, labels: Path, hidden: Sequence[str]) -> None:
    """Write the public part of an archive, and the archive of the hidden splits."""
    manifest = archive.manifest
    tables, splits = dict(manifest.tables), dict(manifest.splits)
    public = _public_rows(archive, hidden)
    for name, shown in public.items():
        parts = {part: shown.clear() for part in manifest.tables[name].splits} | {"train": shown}
        tables[name] = write_table(new, name, {part: r.to_arrow() for part, r in parts.items()})
    blank = [pl.lit(value).alias(name) for name, value in LABELS.items()]
    moved = {}
    for name in hidden:
        # In an archive of before data version 2026.12.0 the order of the rows tells their bins.
        rows = by_hash(archive.polars(name))
        moved[name] = write_table(labels, name, {"test": rows.to_arrow()})
        tables[name] = write_table(new, name, {"test": rows.with_columns(blank).to_arrow()})
        splits[name] = msgspec.structs.replace(
            splits[name],
            origin="withheld",
            logical_digest=tables[name].logical_digest,
            facts={key: value for key, value in splits[name].facts.items() if key in _OPEN_FACTS},
        )
    stated = {name: manifest.splits[name] for name in hidden}
    marked = msgspec.structs.replace(manifest, kind="labels", tables=moved, splits=stated)
    write_manifest(labels, marked)
    searches = set(public["searches"]["search_id"])
    manifest = msgspec.structs.replace(
        manifest,
        version=f"{manifest.version}{WITHHELD_SUFFIX}" if manifest.released else manifest.version,
        tables=tables,
        splits=splits,
        inputs=[run for run in manifest.inputs if run.search_id in searches],
        findings={**manifest.findings, "first": []},
    )
    others = [name for name in SPLIT_TABLES if name not in hidden]
    manifest = make_splits(new, manifest, split_tables=others)
    counts = [{n: s.rows for n, s in m.splits.items()} for m in (archive.manifest, manifest)]
    emptied = [name for name in others if counts[0].get(name) and not counts[1].get(name)]
    reports = {**manifest.reports, "withheld": {"splits": list(hidden), "emptied": emptied}}
    write_manifest(new, msgspec.structs.replace(manifest, reports=reports))


def _public_rows(archive: Archive, hidden: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Select what a trainer may see: training kernels, and what was measured of them, by table.

    Goals, and parents that are gone, are null. Searches are counted anew.
    """
    rows = {
        name: archive.polars(name, "train").filter(_is_shown(archive, name, hidden))
        for name in archive.manifest.tables.keys() & _PUBLIC
    }
    evaluations, outcome = rows["evaluations"], pl.col("outcome")
    has_parent = pl.col("parent_kernel_id").is_in(evaluations["kernel_id"].implode())
    lineage = pl.col("parent_kernel_id", "parent_distance")
    changes = [pl.when(has_parent).then(lineage), *(pl.lit(None).alias(name) for name in GOALS)]
    for name in ("kernels", "evaluations"):
        rows[name] = rows[name].with_columns(changes)
    counts = evaluations.group_by("search_id").agg(
        n_evaluations=pl.len(),
        n_successes=(outcome == "success").sum(),
        n_kernels=pl.col("kernel_id").filter(outcome == "success").n_unique(),
        **{f"n_{name}": (outcome == name).sum() for name in OUTCOMES if name != "success"},
        best_speedup=pl.col("speedup").max(),
        gpu_seconds=pl.lit(None),
    )
    searches = archive.polars("searches").drop(counts.columns[1:])
    return {**rows, "searches": searches.join(counts, on="search_id", maintain_order="left")}


def _is_shown(archive: Archive, table: str, hidden: Sequence[str]) -> pl.Expr:
    """Whether a row is of a training kernel; launches are also shown of programs asked about."""
    key = "program_id" if table == "launches" else "kernel_id"
    shown = {*archive.polars("kernels", "train", [key])[key]}
    for name in hidden if table == "launches" else ():
        shown.update(map(program_id, archive.polars(name)["candidate_code"]))
    return pl.col(key).is_in(shown)


def check_withheld(archive: Archive) -> Iterator[Finding]:
    """Find what the public part holds of rows whose labels are withheld.

    That no training kernel is asked about, the check of leaks finds.
    """
    splits = archive.manifest.splits
    hidden = [name for name, facts in splits.items() if facts.origin == "withheld"]
    telling: dict[str, list[str]] = {}
    for name in hidden:
        labels = archive.polars(name, columns=["row_id", *LABELS])
        shown = [pl.col(column).ne_missing(pl.lit(blank)) for column, blank in LABELS.items()]
        telling[name] = labels.filter(pl.any_horizontal(shown))["row_id"].to_list()
        telling[f"{name} facts"] = sorted(splits[name].facts.keys() - _OPEN_FACTS)
    for name in archive.manifest.tables.keys() & _PUBLIC if hidden else ():
        rows = archive.polars(name).filter(~_is_shown(archive, name, hidden))
        telling[name] = rows[TABLES[name].key].to_list()
    for name, ids in telling.items():
        if ids:
            yield Finding(
                code="withheld-label",
                message=f"the public part tells withheld labels: {len(ids)}, {name_rows(ids, 100)}",
                field=name,
                value=ids[0][:200],
                fix="Build the archive again from its logs, and withhold once more: "
                "build-eval --withhold",
            )
