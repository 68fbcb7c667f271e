"""Hidden labels: an archive whose evaluation rows have no measurements anywhere, and the labels in a folder of their own.

The public part keeps the programs of the evaluation rows. It holds nothing else of the searches that found them: no
kernel, failure or evaluation of any of their programs, whoever measured it, no row of ``searches``, no discovery pair.
For what an author's other programs measured says much of the one that is asked about. The labels' folder names the
digest of the public part that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernel_archive.archive.manifest import SplitFacts, read_manifest, write_manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import digest_rows, write_table
from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import ArchiveMismatchError, Finding, TargetExistsError, UsageError, printable
from kernel_archive.ids import logical_digest
from kernel_archive.schema import OUTCOMES, TABLES
from kernel_archive.selection.leakage import present_members
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.selected import frame, named
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES
from kernel_archive.storage import content_path, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

#: Columns of an evaluation row that are withheld, and what the public part has in their place.
LABELS: Final[dict[str, Any]] = {
    "speedup": None, "bin": None, "n_measurements": None, "speedup_min": None, "speedup_max": None, "search_id": "",
}  # fmt: skip
FORMAT: Final = 1
#: Facts of a split that say nothing of its labels.
_OPEN_FACTS: Final = ("gpus", "references")
_MEASURED: Final = ("kernels", "failures", "evaluations", "searches")


class Labels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The labels of one split: the archive that holds the rows, the facts as they were before, id and labels of every row."""

    format: int
    table: str
    public_digest: str
    facts: SplitFacts
    columns: tuple[str, ...]
    rows: list[tuple[str, float, int, int | None, float | None, float | None, str]]


def _file(folder: Path, table: str) -> Path:
    return folder / f"{table}.labels.json"


def read_labels(folder: Path, table: str) -> Labels:
    """Read the labels of a split.

    Raises:
        ArchiveMismatchError: there are none, or the file is not one of labels.
    """
    path = _file(folder, table)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Labels)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"no labels of {table}: {printable(str(error), 300)}"
        raise ArchiveMismatchError.of(code="bad-labels", file=str(path), message=message) from None
    if (found.format, found.table, found.columns) != (FORMAT, table, tuple(LABELS)):
        message = "is of another layout or split than it should be"
        raise ArchiveMismatchError.of(code="bad-labels", file=str(path), message=message)
    return found


def labelled(archive: Archive, table: str, folder: Path) -> tuple[pa.Table, SplitFacts]:
    """The rows of a withheld split with their labels, and the facts that it had with them.

    Raises:
        ArchiveMismatchError: the labels belong to another archive, or are not those that were withheld.
    """
    labels = read_labels(folder, table)
    path = str(_file(folder, table))
    digest = archive.manifest.logical_digest
    if labels.public_digest != digest:
        raise ArchiveMismatchError.of(
            code="other-labels",
            file=path,
            field="public_digest",
            message=f"these labels belong to the archive {labels.public_digest[:19]}…, this one is {digest[:19]}…",
            fix="Name the folder that was written with this archive",
        )
    rows = archive.arrow(table)
    if rows["row_id"].to_pylist() != [row[0] for row in labels.rows]:
        message = "the labels are of other rows"
        raise ArchiveMismatchError.of(code="other-labels", file=path, field="rows", message=message)
    for i, name in enumerate(LABELS, start=1):
        rows = with_column(rows, name, [row[i] for row in labels.rows])
    if logical_digest(digest_rows(table, rows)) != labels.facts.logical_digest:
        message = "the labels are not those that were withheld: with them the split has another digest"
        raise ArchiveMismatchError.of(code="wrong-digest", file=path, field="rows", message=message)
    return rows, labels.facts


def with_column(rows: pa.Table, name: str, values: Sequence[Any] | pa.ChunkedArray) -> pa.Table:
    """The rows with other values in a column, of its own type and in its own place."""
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(at)
    return rows.set_column(at, field, values if isinstance(values, pa.ChunkedArray) else pa.array(values, field.type))


def _taken(archive: Archive) -> tuple[set[str], set[str]]:
    """Searches that found an evaluation row, and every program that they ran, with near duplicates."""
    tables = [split.table for split in EVALUATIONS.values() if split.table in archive.manifest.tables]
    rows = pl.concat([archive.polars(name, columns=["search_id", "kernel_id"]) for name in tables])
    searches = {*rows["search_id"]} - {""}
    ran = archive.polars("evaluations", columns=["search_id", "program_id", "kernel_id"])
    found = pl.col("search_id").is_in(searches) | pl.col("kernel_id").is_in({*rows["kernel_id"]})
    programs = {*ran.filter(found)["program_id"]}
    known = pl.concat([archive.polars(name, columns=["program_id", "token_id"]) for name in ("kernels", "failures")])
    tokens = {*known.filter(pl.col("program_id").is_in(programs))["token_id"]}
    return searches, programs | {*known.filter(pl.col("token_id").is_in(tokens))["program_id"]}


def _without(rows: pa.Table, column: str, values: set[str]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows[column], pa.array(sorted(values), pa.string()))))


def _recounted(searches: pa.Table, evaluations: pa.Table, lost: set[str]) -> pa.Table:
    """The rows of searches, those that have lost evaluations with counts over what is left."""
    outcome, passed = pl.col("outcome"), pl.col("outcome") == "success"
    left = frame(evaluations).group_by("search_id").agg(
        **{f"n_{name}": (outcome == name).sum() for name in OUTCOMES if name != "success"},
        n_evaluations=pl.len(),
        n_successes=passed.sum(),
        n_kernels=pl.col("kernel_id").filter(passed).n_unique(),
        best_speedup=pl.col("speedup").max(),
    )  # fmt: skip
    counts = {row.pop("search_id"): row for row in left.to_dicts()}
    nothing = dict.fromkeys(left.columns[1:], 0) | {"best_speedup": None}
    out = [
        row | counts.get(row["search_id"], nothing) | {"gpu_seconds": None} if row["search_id"] in lost else row
        for row in searches.to_pylist()
    ]
    return pa.Table.from_pylist(out, schema=TABLES["searches"].schema)


def _public_tables(archive: Archive) -> dict[str, dict[str, pa.Table]]:
    """The measured tables without anything of the withheld searches and their programs, by split."""
    searches, programs = _taken(archive)
    out: dict[str, dict[str, pa.Table]] = {}
    for name in ("kernels", "failures", "evaluations"):
        out[name] = {}
        for split in archive.manifest.tables[name].splits:
            rows = _without(archive.arrow(name, split), "search_id", searches)
            out[name][split] = _without(rows, "program_id", programs)
    (before, after) = (archive.arrow("evaluations"), out["evaluations"]["train"])
    old, new = (Counter(t["search_id"].to_pylist()) for t in (before, after))
    lost = {name for name, n in old.items() if name not in searches and new[name] != n}
    listed = _without(archive.arrow("searches"), "search_id", searches)
    out["searches"] = {"train": _recounted(listed, after, lost)}
    present = set(after["kernel_id"].to_pylist())
    for name in ("kernels", "failures", "evaluations"):
        out[name] = {split: _without_parents(rows, present) for split, rows in out[name].items()}
    return out


def _without_parents(rows: pa.Table, present: set[str]) -> pa.Table:
    """Rows whose parent is gone have none."""
    gone = pc.invert(pc.is_in(rows["parent_kernel_id"], pa.array([*sorted(present), None], pa.string())))
    for name in ("parent_kernel_id", "parent_distance"):
        rows = with_column(rows, name, pc.if_else(gone, pa.scalar(None, rows[name].type), rows[name]))
    return rows


def _blank(rows: pa.Table) -> pa.Table:
    for name, value in LABELS.items():
        rows = with_column(rows, name, [value] * rows.num_rows)
    return rows


def withhold(directory: Path, folder: Path, *, finish: Callable[[Path], object] | None = None) -> list[Path]:
    """Take the labels of every evaluation split out of an archive, and everything that tells them, into a folder.

    The archive is replaced by its public part, which is another archive: its version is that of the archive with
    ``-withheld`` behind it.

    ``folder`` is empty or not there yet, and not inside the archive; ``finish`` is called with the new directory before it takes
    its place (the card).

    Returns:
        The files of the labels.

    Raises:
        UsageError: labels are withheld already, a split was published by others, or the folder is inside the archive.
        TargetExistsError: there is something in the folder.
    """
    if folder.resolve().is_relative_to(directory.resolve()):
        raise UsageError(f"the labels can't be kept inside the archive: {folder} is in {directory}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TargetExistsError(f"{folder} is not an empty folder: labels are not written over anything")
    open_archive(directory)
    with locked_stage(stage_directory(directory)):
        archive = open_archive(directory)
        manifest = archive.manifest
        hidden = [split.table for split in EVALUATIONS.values() if split.table in manifest.splits]
        wrong = [name for name in hidden if manifest.splits[name].origin != "selected"]
        if wrong or not hidden:
            states = ", ".join(f"{name} is {manifest.splits[name].origin}" for name in wrong)
            raise UsageError(f"only selected evaluation splits can be withheld: {states or 'there is none'}")
        facts = {name: manifest.splits[name] for name in hidden}
        full = {name: archive.arrow(name) for name in hidden}
        searches, _ = _taken(archive)
        with replaced_directory(directory, copy=True) as new:
            tables, splits = dict(manifest.tables), dict(manifest.splits)
            for name, parts in _public_tables(archive).items():
                tables[name] = write_table(new, name, parts)
            for name in hidden:
                tables[name] = write_table(new, name, {"test": _blank(full[name])})
                open_facts = {key: facts[name].facts[key] for key in _OPEN_FACTS if key in facts[name].facts}
                splits[name] = msgspec.structs.replace(
                    facts[name], origin="withheld", logical_digest=tables[name].logical_digest, facts=open_facts
                )
            public = msgspec.structs.replace(
                manifest,
                version=f"{manifest.version}-withheld" if manifest.released else manifest.version,
                tables=tables,
                splits=splits,
                inputs=[run for run in manifest.inputs if run.search_id not in searches],
                findings={**manifest.findings, "first": []},
                reports={**manifest.reports, "withheld": {"splits": hidden, "searches": sorted(searches)}},
            )
            write_manifest(new, public)
            make_splits(new, [name for name in SPLIT_TABLES if name not in hidden])
            if finish is not None:
                finish(new)
            folder.mkdir(parents=True, exist_ok=True)
            digest = read_manifest(new).logical_digest
            written = []
            for name in hidden:
                rows = full[name].select(["row_id", *LABELS]).to_pylist()
                labels = Labels(
                    format=FORMAT, table=name, public_digest=digest, facts=facts[name], columns=tuple(LABELS),
                    rows=[tuple(row.values()) for row in rows],
                )  # fmt: skip
                write_atomically(_file(folder, name), msgspec.json.encode(labels) + b"\n")
                written.append(_file(folder, name))
    return written


def check_withheld(archive: Archive) -> Iterator[Finding]:
    """Whether the public part holds anything of the rows whose labels are withheld."""
    hidden = [name for name, facts in archive.manifest.splits.items() if facts.origin == "withheld"]
    for name in hidden:
        rows = archive.arrow(name, columns=["row_id", *LABELS])
        for column, blank in LABELS.items():
            values = rows[column].to_pylist()
            shown = [r for r, v in zip(rows["row_id"].to_pylist(), values, strict=True) if v != blank]
            if shown:
                yield _leak(name, f"{column} of withheld rows", shown)
        facts = sorted(set(archive.manifest.splits[name].facts) - set(_OPEN_FACTS))
        if facts:
            yield _leak("manifest.json", f"facts of the withheld labels of {name}", facts)
    if hidden:
        yield from _traces(archive, hidden)
        yield from _shipped(str(s) for s in archive.manifest.reports.get("withheld", {}).get("searches", ()))


def _traces(archive: Archive, hidden: list[str]) -> Iterator[Finding]:
    """Rows of other tables that measure a withheld program, or that belong to a search that found one."""
    tables = ArchiveTables(archive)
    rows = pa.concat_tables(present_members(tables, hidden).values())
    programs, tokens = ({*rows[f"candidate_{kind}"].to_pylist()} for kind in ("program", "token"))
    searches = {str(s) for s in archive.manifest.reports.get("withheld", {}).get("searches", ())}
    told = {
        "kernel_id": {*rows["row_id"].to_pylist()}, "search_id": searches,
        "program_id": programs, "anchor_program": programs, "candidate_program": programs,
        "token_id": tokens, "anchor_token": tokens, "candidate_token": tokens,
    }  # fmt: skip

    def telling(rows: pa.Table, key: str) -> list[str]:
        known = [pl.col(name).is_in(values) for name, values in told.items() if name in rows.column_names]
        return sorted({*frame(rows).filter(pl.any_horizontal(known))[key]})

    for name in _MEASURED:
        key = TABLES[name].key
        columns = [column for column in dict.fromkeys([key, *told]) if column in TABLES[name].schema.names]
        if shown := telling(archive.arrow(name, columns=columns), key):
            yield _leak(name, "rows that measure a withheld program, or of a search that found one", shown)
    for name, others in present_members(tables, [n for n in SPLIT_TABLES if n not in hidden]).items():
        if shown := telling(others, "row_id"):
            yield _leak(name, "rows with a withheld program, or of a search that found one", shown)
    inputs = [run.search_id for run in archive.manifest.inputs if run.search_id in searches]
    if inputs:
        yield _leak("manifest.json", "logs of searches that found a withheld program", inputs)


def _shipped(searches: Iterable[str]) -> Iterator[Finding]:
    """The logs of withheld searches that the package itself ships: the labels are in them."""
    builders = content_path("builders")
    found = []
    for name in sorted(searches):
        builder, _, run = name.partition("/")
        try:
            if run and ".." not in run.split("/") and (builders / builder / "logs" / run).exists():
                found.append(name)
        except (OSError, ValueError):
            continue
    if found:
        yield Finding(
            code="withheld-log",
            severity="warning",
            message=f"the package ships logs of searches whose labels are withheld: {len(found)}",
            field="builders",
            value=printable(found[0], 200),
            fix="Labels are hidden only when those logs are not published either",
        )


def _leak(field: str, what: str, rows: list[str]) -> Finding:
    return Finding(
        code="withheld-label",
        message=f"the public part holds {what}: {len(rows)}, {named(rows, 100)}",
        field=field,
        value=printable(rows[0], 200),
        fix="Build the archive again from its logs, and withhold once more: build-eval --withhold DIR",
    )
