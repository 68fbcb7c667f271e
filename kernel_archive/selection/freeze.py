"""Frozen splits: ids, labels and facts of a released archive's splits, kept in ``splits/frozen/<version>/``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.manifest import SplitFacts  # noqa: TC001 - msgspec needs the type at run time
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.errors import ArchiveMismatchError, Finding, UsageError, printable
from kernel_archive.selection.selected import CANONICAL, named
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.splits import Split

#: Version of the files' layout.
FROZEN_FORMAT: Final = 1


class FrozenSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen split of an archive: id, problem, bin and speedup (x) of every row, in order.

    Attributes:
        archive_digest: logical digest of the archive's measured tables.
        columns: names of the fields of a row.
    """

    format: int
    table: str
    archive: str
    version: str
    archive_digest: str
    facts: SplitFacts
    columns: tuple[str, ...]
    rows: list[tuple[str, str, int, float]]

    def encode(self) -> bytes:
        """The file's bytes: one row a line, so that a change reads well in a diff."""
        head = msgspec.to_builtins(self)
        rows = head.pop("rows")
        text = msgspec.json.format(msgspec.json.encode(head, order="deterministic"), indent=1).rstrip(b"\n}")
        lines = b",\n  ".join(msgspec.json.encode(row) for row in rows)
        return text + b',\n "rows": [\n  ' + lines + b"\n ]\n}\n"


def frozen_folder(version: str) -> Path:
    """Where the frozen splits of a version are.

    Raises:
        UsageError: no version can be named like that.
    """
    if not version or version.startswith(".") or "/" in version or "\\" in version:
        raise UsageError(f"{printable(version)!r} can't be the name of a version")
    return content_path("splits") / "frozen" / version


def frozen_columns(split: Split) -> tuple[str, str, str, str]:
    """The columns of a split that are frozen: id, problem, bin and speedup."""
    return ("row_id", split.task, "bin", split.value)


def frozen_split(archive: Archive, table: str) -> FrozenSplit:
    """The frozen form of a split of an archive.

    Raises:
        UsageError: the archive has no such split.
    """
    manifest = archive.manifest
    facts = manifest.splits.get(table)
    if facts is None:
        raise UsageError(f"the archive has no split {table!r}; it has: {', '.join(manifest.splits) or 'none'}")
    names = frozen_columns(SPLIT_TABLES[table])
    rows = archive.arrow(table, columns=names)
    return FrozenSplit(
        format=FROZEN_FORMAT,
        table=table,
        archive=manifest.name,
        version=manifest.version,
        archive_digest=manifest.measured_digest,
        facts=facts,
        columns=names,
        rows=list(zip(*(rows[n].to_pylist() for n in names), strict=True)),
    )


def freeze(archive: Archive | str | Path, folder: Path | None = None) -> list[Path]:
    """Write the frozen form of every split of an archive; into ``splits/frozen/<version>`` of this package when no folder is named.

    Returns:
        The files.

    Raises:
        UsageError: a split is a variant: only canonical ones are frozen.
    """
    opened = archive if isinstance(archive, Archive) else open_archive(archive)
    hidden = [name for name, facts in opened.manifest.splits.items() if facts.origin == "withheld"]
    if hidden:
        raise UsageError(f"splits without labels are not frozen: {', '.join(hidden)}")
    variants = [name for name, facts in opened.manifest.splits.items() if facts.name != CANONICAL]
    if variants:
        raise UsageError(f"only canonical splits are frozen; make these again without options: {', '.join(variants)}")
    place = frozen_folder(opened.manifest.version) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for table in SPLIT_TABLES:
        if table in opened.manifest.splits:
            path = place / f"{table}.json"
            path.write_bytes(frozen_split(opened, table).encode())
            written.append(path)
    return written


def read_frozen(path: Path) -> FrozenSplit:
    """Read a frozen split.

    Raises:
        ArchiveMismatchError: the file is none, or of another layout.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=FrozenSplit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"not a frozen split: {error}"
        raise ArchiveMismatchError.of(code="bad-frozen-split", file=str(path), message=message) from None
    if found.format != FROZEN_FORMAT:
        message = f"has layout {found.format}, this version reads {FROZEN_FORMAT}"
        raise ArchiveMismatchError.of(code="bad-frozen-split", file=str(path), message=message)
    if found.table not in SPLIT_TABLES:
        message = f"freezes a table that this version does not know: {printable(found.table)}"
        raise ArchiveMismatchError.of(code="bad-frozen-split", file=str(path), message=message)
    return found


def differences(
    wanted: list[tuple[str, str, int, float]], found: list[tuple[str, str, int, float]], table: str, what: str
) -> Iterator[Finding]:
    """Rows that are missing, too many, labelled or measured otherwise, or in another order."""
    want, have = {row[0]: row for row in wanted}, {row[0]: row for row in found}
    kinds: list[tuple[str, str, list[str]]] = [
        ("split-row-missing", f"rows that {what} has are missing", [i for i in want if i not in have]),
        ("split-row-added", f"rows that {what} does not have", [i for i in have if i not in want]),
        ("split-relabelled", f"rows labelled otherwise than {what}", [i for i in want if i in have and want[i][2] != have[i][2]]),
        ("split-remeasured", f"rows with another speedup than {what}", [i for i in want if i in have and want[i][3] != have[i][3]]),
    ]  # fmt: skip
    clean = True
    for code, message, ids in kinds:
        if ids:
            clean = False
            yield Finding(code=code, message=f"{message}: {len(ids)} rows", field=table, value=named(ids, 120))
    if clean and [row[0] for row in wanted] != [row[0] for row in found]:
        yield Finding(code="split-order", message=f"the rows stand in another order than {what}", field=table)


def check_frozen(archive: Archive) -> list[Finding]:
    """Compare an archive's splits with the frozen ones of its version; nothing to say where there are none.

    An archive that bears a released version's name with another content is an error; a split that is a variant, or a
    published one, is not compared.
    """
    manifest = archive.manifest
    try:
        folder = frozen_folder(manifest.version)
    except UsageError:
        return []
    found: list[Finding] = []
    for path in sorted(folder.glob("*.json")):
        try:
            frozen = read_frozen(path)
        except ArchiveMismatchError as error:
            found.extend(error.findings)
            continue
        if (frozen.archive, frozen.archive_digest) != (manifest.name, manifest.measured_digest):
            found.append(
                Finding(
                    code="not-the-release",
                    message=f"the archive is called {manifest.version}, but its content is not that of the release: "
                    f"{manifest.measured_digest[:19]}…, not {frozen.archive_digest[:19]}…",
                    field="logical_digest",
                    fix="Build it with --version and a name of its own, or freeze the splits of the new release",
                )
            )
            break
        facts = manifest.splits.get(frozen.table)
        if facts is None:
            found.append(Finding(code="split-missing", message="the release has this split", field=frozen.table))
        elif facts.name == frozen.facts.name and facts.origin == frozen.facts.origin:
            found.extend(_against(frozen, archive, facts))
    return found


def _against(frozen: FrozenSplit, archive: Archive, facts: SplitFacts) -> Iterator[Finding]:
    what = f"the frozen split of {frozen.version}"
    rows = list(differences(frozen.rows, frozen_split(archive, frozen.table).rows, frozen.table, what))
    yield from rows
    if not rows and facts != frozen.facts:
        names = _changed_facts(msgspec.to_builtins(frozen.facts), msgspec.to_builtins(facts))
        yield Finding(
            code="split-facts", message=f"facts differ from those of {what}: {', '.join(names)}", field=frozen.table
        )


def _changed_facts(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            both = isinstance(a.get(key), dict) and isinstance(b.get(key), dict)
            names.extend(_changed_facts(a[key], b[key], f"{prefix}{key}.") if both else [f"{prefix}{key}"])
    return names
