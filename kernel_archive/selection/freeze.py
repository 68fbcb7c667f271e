"""Frozen splits: ids, labels and facts of a released archive's splits.

They are kept in ``splits/frozen/<version>/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.manifest import SplitFacts  # noqa: TC001 - msgspec needs the type at run time
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.errors import ArchiveMismatchError, Finding, UsageError, printable
from kernel_archive.selection.selected import CANONICAL, name_rows
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.splits import SplitSpec

#: Version of the files' layout.
FROZEN_FORMAT: Final = 1
#: Id, problem, bin and speedup (x) of a row.
FrozenRow = tuple[str, str, int, float]


class FrozenSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen split of an archive, its rows in order.

    ``archive_digest`` is the logical digest of the archive's measured tables, ``columns`` the
    names of the fields of a row.
    """

    format: int
    table: str
    archive: str
    version: str
    archive_digest: str
    facts: SplitFacts
    columns: tuple[str, ...]
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


def frozen_split(archive: Archive, table: str) -> FrozenSplit:
    """Make the frozen form of a split of an archive.

    Raises:
        UsageError: the archive has no such split.
    """
    manifest = archive.manifest
    if table not in manifest.splits:
        present = ", ".join(manifest.splits) or "none"
        raise UsageError(f"the archive has no split {table!r}; it has: {present}")
    names = frozen_columns(SPLIT_TABLES[table])
    return FrozenSplit(
        format=FROZEN_FORMAT,
        table=table,
        archive=manifest.name,
        version=manifest.version,
        archive_digest=manifest.measured_digest,
        facts=manifest.splits[table],
        columns=names,
        rows=archive.polars(table, columns=names).rows(),
    )


def freeze(archive: Archive | str | Path, folder: Path | None = None) -> list[Path]:
    """Write the frozen form of every split of an archive; return the files.

    Into ``splits/frozen/<version>`` of this package when no folder is named.

    Raises:
        UsageError: a split is a variant, or its labels are withheld.
    """
    opened = archive if isinstance(archive, Archive) else open_archive(archive)
    splits = opened.manifest.splits
    if hidden := [name for name, facts in splits.items() if facts.origin == "withheld"]:
        raise UsageError(f"splits whose labels are withheld can't be frozen: {', '.join(hidden)}")
    if variants := [name for name, facts in splits.items() if facts.name != CANONICAL]:
        raise UsageError(
            "only canonical splits are frozen; make these again without options: "
            f"{', '.join(variants)}"
        )
    place = frozen_folder(opened.manifest.version) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    files = {place / f"{table}.json": table for table in SPLIT_TABLES if table in splits}
    for path, table in files.items():
        path.write_bytes(frozen_split(opened, table).encode())
    return list(files)


def read_frozen(path: Path) -> FrozenSplit:
    """Read a frozen split.

    Raises:
        ArchiveMismatchError: the file is none, or of another layout.
    """
    try:
        frozen = msgspec.json.decode(path.read_bytes(), type=FrozenSplit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"not a frozen split: {error}"
    else:
        if (frozen.format, frozen.table in SPLIT_TABLES) == (FROZEN_FORMAT, True):
            return frozen
        message = (
            f"freezes {printable(frozen.table)} in layout {frozen.format}: this version reads "
            f"layout {FROZEN_FORMAT} of {', '.join(SPLIT_TABLES)}"
        )
    raise ArchiveMismatchError.of(code="bad-frozen-split", file=str(path), message=message)


def differences(
    wanted: list[FrozenRow], present: list[FrozenRow], table: str, what: str
) -> Iterator[Finding]:
    """Find rows that are missing, too many, labelled or measured otherwise, or in another order."""
    want, have = {row[0]: row for row in wanted}, {row[0]: row for row in present}
    both = [i for i in want if i in have]
    kinds = {
        ("split-row-missing", f"rows that {what} has are missing"): want.keys() - have.keys(),
        ("split-row-added", f"rows that {what} does not have"): have.keys() - want.keys(),
        ("split-relabelled", f"rows labelled otherwise than {what}"): [
            i for i in both if want[i][2] != have[i][2]
        ],
        ("split-remeasured", f"rows with another speedup than {what}"): [
            i for i in both if want[i][3] != have[i][3]
        ],
    }
    for (code, message), ids in kinds.items():
        if ids:
            value = name_rows(sorted(ids), 120)
            yield Finding(
                code=code, message=f"{message}: {len(ids)} rows", field=table, value=value
            )
    if not any(kinds.values()) and list(want) != list(have):
        message = f"the rows stand in another order than {what}"
        yield Finding(code="split-order", message=message, field=table)


def check_frozen(archive: Archive) -> list[Finding]:
    """Compare an archive's splits with the frozen ones of its version, where there are some.

    Variants and published splits are not compared.
    """
    manifest = archive.manifest
    try:
        files = sorted(frozen_folder(manifest.version).glob("*.json"))
    except UsageError:
        return []
    findings: list[Finding] = []
    for path in files:
        try:
            frozen = read_frozen(path)
        except ArchiveMismatchError as error:
            findings.extend(error.findings)
            continue
        if (frozen.archive, frozen.archive_digest) != (manifest.name, manifest.measured_digest):
            message = (
                f"the archive is called {manifest.version}, but its content is not that of the "
                f"release: {manifest.measured_digest[:19]}…, not {frozen.archive_digest[:19]}…"
            )
            fix = "Build it with --version and a name of its own, or freeze the new release"
            place: dict[str, Any] = {"field": "logical_digest", "fix": fix}
            return [*findings, Finding(code="not-the-release", message=message, **place)]
        facts = manifest.splits.get(frozen.table)
        if facts is None:
            message = "the release has this split"
            findings.append(Finding(code="split-missing", message=message, field=frozen.table))
        elif (facts.name, facts.origin) == (frozen.facts.name, frozen.facts.origin):
            what = f"the frozen split of {frozen.version}"
            present = frozen_split(archive, frozen.table)
            listed = list(differences(frozen.rows, present.rows, frozen.table, what))
            findings += listed or changed_facts(facts, frozen.facts, frozen.table, what)
    return findings


def changed_facts(a: SplitFacts, b: SplitFacts, table: str, what: str) -> list[Finding]:
    """Find facts of a split that are not those of another one."""
    one, other = ({**msgspec.structs.asdict(f), **f.facts} for f in (a, b))
    names = [n for n in one | other if one.get(n) != other.get(n) and n != "facts"]
    if not names:
        return []
    message = f"facts differ from those of {what}: {', '.join(sorted(names))}"
    fix = "Make the split again"
    return [Finding(code="split-facts", message=message, field=table, fix=fix)]
