"""Hidden labels: those of the evaluation splits in a folder of their own.

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

from kernel_archive.archive.manifest import SplitFacts, read_manifest, write_manifest
from kernel_archive.archive.open import Archive
from kernel_archive.archive.shards import digest_rows, write_table
from kernel_archive.archive.swap import replaced_directory
from kernel_archive.errors import ArchiveMismatchError, Finding, TargetExistsError, UsageError
from kernel_archive.ids import logical_digest
from kernel_archive.schema import OUTCOMES, TABLES
from kernel_archive.selection.leakage import present_members
from kernel_archive.selection.make import locked_archive, make_splits
from kernel_archive.selection.selected import hashed_order, name_rows
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES
from kernel_archive.storage import write_atomically

#: Columns of an evaluation row that are withheld, and what the public part has in their place.
LABELS: Final[dict[str, Any]] = {
    **dict.fromkeys(["speedup", "bin", "n_measurements", "speedup_min", "speedup_max"]),
    "search_id": "",
}
#: What authors were told, which says nearly as much as a label: a public part has none of it.
GOALS: Final = ("goal_bin", "aim")
#: Facts of a split that say nothing of its labels.
_OPEN_FACTS: Final = {"gpus"}


class WithheldLabels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Labels of one split by row id, its facts, and the digest of the archive with its rows."""

    table: str
    public_digest: str
    facts: SplitFacts
    rows: dict[str, tuple[float, int, int | None, float | None, float | None, str]]


def labelled(archive: Archive, table: str, folder: Path) -> tuple[pa.Table, SplitFacts]:
    """Join the labels in a folder to the rows of a withheld split; return its facts, too.

    Raises:
        ArchiveMismatchError: there are no labels, or they belong to another archive.
    """
    path = folder / f"{table}.labels.json"
    try:
        labels = msgspec.json.decode(path.read_bytes(), type=WithheldLabels)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"no labels of {table}: {error}"
        raise ArchiveMismatchError.of(code="bad-labels", file=str(path), message=message) from None
    rows = archive.arrow(table)
    ids = rows["row_id"].to_pylist()
    if labels.public_digest == archive.manifest.logical_digest and set(ids) == labels.rows.keys():
        for i, name in enumerate(LABELS):
            rows = with_column(rows, name, [labels.rows[row_id][i] for row_id in ids])
        if logical_digest(digest_rows(table, rows)) == labels.facts.logical_digest:
            return rows, labels.facts
    message = f"the labels belong to the archive {labels.public_digest[:19]}…, or were changed"
    fix = "Name the folder that was written with this archive"
    raise ArchiveMismatchError.of(code="other-labels", file=str(path), message=message, fix=fix)


def with_column(rows: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """Replace the values of a column, keeping its type and place."""
    place = rows.schema.get_field_index(name)
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array(values, field.type))


@contextmanager
def withheld_labels(directory: Path, folder: Path) -> Iterator[Path]:
    """Move the labels of every evaluation split, and what tells them, into a new folder.

    The archive is replaced by its public part at the end of the block, which gets the new
    directory for a card to be written. Its version has ``-withheld`` behind it.

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
        hidden = [s.table for s in EVALUATIONS.values() if s.kind == "eval" and s.table in splits]
        wrong = [f"{n} is {splits[n].origin}" for n in hidden if splits[n].origin != "selected"]
        if wrong or not hidden:
            states = ", ".join(wrong) or "the archive has none"
            raise UsageError(f"withheld can be splits that build-eval made ({states})")
        with replaced_directory(directory, copy=True) as new:
            _write_public(archive, new, hidden)
            yield new
            folder.mkdir(parents=True, exist_ok=True)
            digest = read_manifest(new).logical_digest
            for name in hidden:
                rows = archive.polars(name, columns=["row_id", *LABELS]).iter_rows()
                labels = WithheldLabels(
                    table=name,
                    public_digest=digest,
                    facts=splits[name],
                    rows={row_id: (*values,) for row_id, *values in rows},
                )
                data = msgspec.json.encode(labels) + b"\n"
                write_atomically(folder / f"{name}.labels.json", data)


def _write_public(archive: Archive, new: Path, hidden: Sequence[str]) -> None:
    """Write the public part of an archive."""
    manifest = archive.manifest
    tables, splits = dict(manifest.tables), dict(manifest.splits)
    public = _public_rows(archive)
    if "launches" in tables:
        unseen = _launches_to_hide(archive, _hidden_rows(archive, hidden), public["kernels"])
        public["launches"] = archive.polars("launches").join(unseen, on="launch_id", how="anti")
    for name, rows in public.items():
        parts = {part: rows.clear() for part in manifest.tables[name].splits} | {"train": rows}
        tables[name] = write_table(new, name, {part: r.to_arrow() for part, r in parts.items()})
    blank = [pl.lit(value).alias(name) for name, value in LABELS.items()]
    for name in hidden:
        # In an archive of before data version 2026.12.0 the order of the rows tells their bins.
        rows = archive.polars(name)
        rows = rows[hashed_order(rows["row_id"].to_list())].with_columns(blank)
        tables[name] = write_table(new, name, {"test": rows.to_arrow()})
        splits[name] = msgspec.structs.replace(
            splits[name],
            origin="withheld",
            logical_digest=tables[name].logical_digest,
            facts={key: value for key, value in splits[name].facts.items() if key in _OPEN_FACTS},
        )
    searches = set(public["searches"]["search_id"])
    manifest = msgspec.structs.replace(
        manifest,
        version=f"{manifest.version}-withheld" if manifest.released else manifest.version,
        tables=tables,
        splits=splits,
        inputs=[run for run in manifest.inputs if run.search_id in searches],
        findings={**manifest.findings, "first": []},
        reports={**manifest.reports, "withheld": {"splits": list(hidden)}},
    )
    others = [name for name in SPLIT_TABLES if name not in hidden]
    write_manifest(new, make_splits(new, manifest, names=others))


def _public_rows(archive: Archive) -> dict[str, pl.DataFrame]:
    """Select what a trainer may see: training kernels, and what was measured of them, by table.

    Goals, and parents that are gone, are null. Searches are counted anew.
    """
    kernels = archive.polars("kernels", "train")
    shown = pl.col("kernel_id").is_in(kernels["kernel_id"].implode())
    evaluations = archive.polars("evaluations").filter(shown)
    has_parent = pl.col("parent_kernel_id").is_in(evaluations["kernel_id"].implode())
    lineage = pl.col("parent_kernel_id", "parent_distance")
    changes = [pl.when(has_parent).then(lineage), *(pl.lit(None).alias(name) for name in GOALS)]
    outcome = pl.col("outcome")
    counts = evaluations.group_by("search_id").agg(
        n_evaluations=pl.len(),
        n_successes=(outcome == "success").sum(),
        n_kernels=pl.col("kernel_id").filter(outcome == "success").n_unique(),
        **{f"n_{name}": (outcome == name).sum() for name in OUTCOMES if name != "success"},
        best_speedup=pl.col("speedup").max(),
        gpu_seconds=pl.lit(None),
    )
    searches = archive.polars("searches").drop(counts.columns[1:])
    return {
        "kernels": kernels.with_columns(changes),
        "failures": archive.polars("failures").clear(),
        "evaluations": evaluations.with_columns(changes),
        "searches": searches.join(counts, on="search_id", maintain_order="left"),
    }


def _hidden_rows(archive: Archive, hidden: Sequence[str]) -> pl.DataFrame:
    """Read the rows of the withheld splits, with the ids of their texts."""
    return pl.concat(present_members(ArchiveTables(archive), hidden).values())


def _launches_to_hide(archive: Archive, asked: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Find the launches of programs that are neither asked about nor among open kernels."""
    shown = [asked["anchor_program"], asked["candidate_program"], kernels["program_id"]]
    launches = archive.polars("launches", columns=["launch_id", "program_id"])
    return launches.filter(~pl.col("program_id").is_in(pl.concat(shown).implode()))


def _telling_rows(archive: Archive, hidden: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each table that can tell withheld labels, and its rows that do."""
    for name in hidden:
        labels = archive.polars(name, columns=["row_id", *LABELS])
        shown = [pl.col(column).ne_missing(pl.lit(blank)) for column, blank in LABELS.items()]
        yield name, labels.filter(pl.any_horizontal(shown))["row_id"].to_list()
        yield f"{name} facts", sorted(archive.manifest.splits[name].facts.keys() - _OPEN_FACTS)
    hidden_rows = _hidden_rows(archive, hidden)
    ids = {"kernel_id": "row_id", "program_id": "candidate_program", "token_id": "candidate_token"}
    for name in ("kernels", "failures", "evaluations"):
        columns = [column for column in ids if column in TABLES[name].schema.names]
        hits = [pl.col(column).is_in(hidden_rows[ids[column]].implode()) for column in columns]
        listed = archive.polars(name, columns=columns).filter(pl.any_horizontal(hits))
        yield name, listed["kernel_id"].to_list()
    if "launches" in archive.manifest.tables:
        kernels = archive.polars("kernels", columns=["program_id"])
        yield "launches", _launches_to_hide(archive, hidden_rows, kernels)["launch_id"].to_list()
    searches = archive.polars("searches", columns=["search_id", "role"])
    ran = archive.polars("evaluations", columns=["search_id"])["search_id"].implode()
    held_out = searches.filter(pl.col("role") == "held_out", pl.col("search_id").is_in(ran))
    yield "searches", held_out["search_id"].to_list()


def check_withheld(archive: Archive) -> Iterator[Finding]:
    """Find what the public part holds of rows whose labels are withheld."""
    splits = archive.manifest.splits
    hidden = [name for name, facts in splits.items() if facts.origin == "withheld"]
    fix = "Build the archive again from its logs, and withhold once more: build-eval --withhold"
    for name, rows in _telling_rows(archive, hidden) if hidden else ():
        if rows:
            message = f"the public part tells withheld labels: {len(rows)}, {name_rows(rows, 100)}"
            code, value = "withheld-label", rows[0][:200]
            yield Finding(code=code, message=message, field=name, value=value, fix=fix)
