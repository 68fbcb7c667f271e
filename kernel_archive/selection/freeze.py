"""Frozen splits: ids, labels and facts of a release, kept in ``splits/frozen/<version>/``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.recipe import load_recipes, recipe_facts
from kernel_archive.errors import ArchiveMismatchError, Finding, UsageError, printable
from kernel_archive.ids import canonical_json
from kernel_archive.selection.selected import name_rows
from kernel_archive.splits import SPLIT_TABLES, SplitSpec
from kernel_archive.storage import content_path

#: Id, problem, bin and speedup (x) of a row.
FrozenRow = tuple[str, str, int, float]


class FrozenSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen split of an archive, its rows in order."""

    format: Literal[1]  # version of the layout
    table: str
    archive: str
    version: str
    archive_digest: str  # logical digest of the archive's measured tables
    whole_digest: str = ""  # logical digest of the archive; older files do not state it
    facts: SplitFacts
    columns: tuple[str, ...]  # names of the fields of a row
    rows: list[FrozenRow]

    def encode(self) -> bytes:
        """Encode the file: one row a line, so that a change reads well in a diff."""
        head = msgspec.to_builtins(self)
        rows = b",\n  ".join(msgspec.json.encode(row) for row in head.pop("rows"))
        text = msgspec.json.format(msgspec.json.encode(head, order="deterministic"), indent=1)
        return text.rstrip(b"\n}") + b',\n "rows": [\n  ' + rows + b"\n ]\n}\n"


def frozen_folder(version: str) -> Path:
    """Return the folder of the frozen splits of a version.

    Raises:
        UsageError: no version can be named like that.
    """
    if not version or version.startswith(".") or "/" in version or "\\" in version:
        raise UsageError(f"{printable(version)!r} can't be the name of a version")
    return content_path("splits") / "frozen" / version


def frozen_columns(split: SplitSpec) -> tuple[str, str, str, str]:
    """Name the columns of a split that are frozen: id, problem, bin and speedup."""
    return ("row_id", split.task, "bin", split.value)


def frozen_rows(archive: Archive, table: str) -> list[FrozenRow]:
    """Read what is frozen of the rows of a split."""
    return archive.polars(table, columns=frozen_columns(SPLIT_TABLES[table])).rows()


def freeze(archive: str | Path) -> list[Path]:
    """Freeze every split of an archive that was just built, in ``splits/frozen/<version>``.

    Its kernels are counted there, too.
    """
    opened = open_archive(archive)
    manifest = opened.manifest
    target = frozen_folder(manifest.version)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for table, facts in manifest.splits.items():
        frozen = FrozenSplit(
            format=1,
            table=table,
            archive=manifest.name,
            version=manifest.version,
            archive_digest=manifest.measured_digest,
            whole_digest=manifest.logical_digest,
            facts=facts,
            columns=frozen_columns(SPLIT_TABLES[table]),
            rows=frozen_rows(opened, table),
        )
        files.append(target / f"{table}.json")
        files[-1].write_bytes(frozen.encode())
    files.append(target / "kernels.txt")  # for the README
    files[-1].write_text(f"{opened.arrow('kernels', columns=['kernel_id']).num_rows}\n")
    return files


def read_frozen(path: Path) -> FrozenSplit:
    """Read a frozen split.

    Raises:
        ArchiveMismatchError: the file isn't one, or has another layout.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=FrozenSplit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"not a frozen split of this layout ({error}). Copy the file anew from a release"
        raise ArchiveMismatchError.of(
            code="bad-frozen-split", file=str(path), message=message
        ) from None


def _frozen_splits(archive: Archive) -> list[FrozenSplit]:
    """Read the frozen splits of an archive's version; a name for no version has none."""
    try:
        folder = frozen_folder(archive.manifest.version)
    except UsageError:
        return []
    return [*map(read_frozen, sorted(folder.glob("*.json")))]


def compare_split(
    archive: Archive, table: str, wanted: list[FrozenRow], facts: SplitFacts, other_side: str
) -> Iterator[Finding]:
    """Compare a split of an archive with the rows and facts that it should have.

    Facts that only one side states are ignored. ``other_side`` names them in messages.
    """
    finding = partial(Finding, field=table)
    want, have = ({row[0]: row for row in rows} for rows in (wanted, frozen_rows(archive, table)))

    def differ(column: int) -> set[str]:
        return {i for i in want.keys() & have.keys() if want[i][column] != have[i][column]}

    faults = [
        ("split-row-missing", f"rows that {other_side} has are missing", want.keys() - have.keys()),
        ("split-row-added", f"rows that {other_side} does not have", have.keys() - want.keys()),
        ("split-relabelled", f"rows labelled otherwise than {other_side}", differ(2)),
        ("split-remeasured", f"rows with another speedup than {other_side}", differ(3)),
    ]
    for code, message, ids in faults:
        if ids:
            named = name_rows(sorted(ids), 120)
            yield finding(code=code, message=f"{message}: {len(ids)} rows", value=named)
    if any(ids for _, _, ids in faults):
        return
    present = archive.manifest.splits[table]
    present_facts, other_facts = (
        {**msgspec.structs.asdict(f), **f.facts} for f in (present, facts)
    )
    shared = present_facts.keys() & other_facts.keys() - {"facts"}
    names = sorted(name for name in shared if present_facts[name] != other_facts[name])
    if list(want) != list(have):
        yield finding(
            code="split-order", message=f"the rows stand in another order than {other_side}"
        )
    elif "logical_digest" in names:
        message = f"the rows are those of {other_side}, but other columns or texts differ"
        yield finding(code="split-content", message=message)
    elif names == ["name"]:
        message = f"is called {printable(present.name)!r}; {other_side} says {facts.name!r}"
        yield finding(code="split-name", severity="warning", message=message)
    elif names:
        message = f"facts differ from those of {other_side}: {', '.join(names)}"
        yield finding(code="split-facts", message=message, fix="Make the split again")


def is_release(archive: Archive) -> bool:
    """Tell whether an archive is the shipped release, row by row and from the same recipes.

    Its splits need not be selected again: the frozen ones were selected from these very tables,
    which leak nothing (tests/test_pipeline.py does it for every version). This compares all facts,
    and the digests of the rows that the files hold now. Another check looks in which file a row is
    (crosschecks.toml).
    """
    manifest = archive.manifest
    try:
        files = _frozen_splits(archive)
    except ArchiveMismatchError:
        return False
    origin = (manifest.name, manifest.logical_digest)
    if not files or any((file.archive, file.whole_digest) != origin for file in files):
        return False
    frozen = {file.table: file.facts for file in files}
    stated = {name: facts.logical_digest for name, facts in manifest.tables.items()}
    stated |= {name: facts.logical_digest for name, facts in frozen.items()}
    if manifest.splits != frozen or archive.content_digests != stated:
        return False
    # Selection depends on what recipes say of their builders, too.
    recipes = [recipe_facts(recipe) for recipe in load_recipes(())]
    same_recipes = canonical_json(manifest.builders) == canonical_json(recipes)
    return same_recipes and manifest.eval_rules is None


def check_frozen(archive: Archive) -> Iterator[Finding]:
    """Compare an archive's splits with the frozen ones of its version, where there are some.

    Variants, published and withheld splits are not compared.
    """
    manifest = archive.manifest
    try:
        files = _frozen_splits(archive)
    except ArchiveMismatchError as error:
        yield from error.findings
        return
    for frozen in files:
        facts = manifest.splits.get(frozen.table)
        if (frozen.archive, frozen.archive_digest) != (manifest.name, manifest.measured_digest):
            yield Finding(
                code="not-the-release",
                message=f"the archive is called {manifest.version}, but its content is not that of "
                f"the release: {manifest.measured_digest[:19]}…, not {frozen.archive_digest[:19]}…",
                field="logical_digest",
                fix="Build it with --version and a name of its own, or freeze the new release",
            )
            return
        if facts is None:
            message = "the release has this split"
            yield Finding(code="split-missing", message=message, field=frozen.table)
        elif (facts.name, facts.origin) == (frozen.facts.name, frozen.facts.origin):
            release = f"the frozen split of {frozen.version}"
            yield from compare_split(archive, frozen.table, frozen.rows, frozen.facts, release)
