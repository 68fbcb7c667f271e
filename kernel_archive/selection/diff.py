"""What changed between two archive versions, or between frozen splits: rows added, removed, relabelled, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import digest_rows
from kernel_archive.errors import UsageError, printable
from kernel_archive.schema import TABLES
from kernel_archive.selection.base import VALUE_COLUMN
from kernel_archive.selection.definitions import DERIVED_TABLES
from kernel_archive.selection.freeze import read_frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kernel_archive.archive.manifest import SplitFacts

__all__ = ["Change", "Difference", "Snapshot", "TableDifference", "changelog", "diff", "snapshot"]

#: Columns that say nothing new: texts follow from the ids, the canary is one text, the scheme is a fact of the table.
_ASIDE: Final = frozenset(
    {"code", "reference_code", "candidate_code", "parent_code", "child_code", "anchor_code", "canary"}
)
_VALUES: Final = {
    "kernels": ("speedup", "n_measurements"),
    **{name: (column,) for name, column in VALUE_COLUMN.items()},
}


class _Row(msgspec.Struct, frozen=True):
    """What is compared of a row: its split, label, measured values, and a digest of everything else."""

    split: str
    bin: int | None
    values: tuple[float | int, ...]
    rest: bytes | None


class Snapshot:
    """One side of a comparison.

    Attributes:
        label: what it is called: version or file.
        digest: logical digest of the archive.
        digests: logical digest per table.
        splits: facts of the derived tables.
    """

    def __init__(
        self,
        label: str,
        digest: str,
        digests: dict[str, str],
        splits: dict[str, SplitFacts],
        source: Archive | Mapping[str, dict[str, _Row]],
    ) -> None:
        """An archive, or rows per table."""
        self.label = label
        self.digest = digest
        self.digests = digests
        self.splits = splits
        self._source = source

    def rows(self, table: str, *, rest: bool) -> dict[str, _Row]:
        """Rows of a table by id.

        Args:
            table: its name.
            rest: also a digest of all other columns, where the source has them.
        """
        if not isinstance(self._source, Archive):
            return self._source[table]
        return {key: row for split in TABLES[table].splits for key, row in self._read(table, split, rest=rest)}

    @property
    def whole(self) -> bool:
        """Whether every column can be compared."""
        return isinstance(self._source, Archive)

    def _read(self, table: str, split: str, *, rest: bool) -> Iterator[tuple[str, _Row]]:
        archive = self._source
        assert isinstance(archive, Archive)  # noqa: S101 - see rows()
        if split not in archive.manifest.tables[table].splits:
            return
        spec = TABLES[table]
        names = [c.name for c in spec.columns if c.name not in _ASIDE]
        values = _VALUES.get(table, ())
        needed = names if rest else [n for n in names if n in {spec.key, "problem", "bin", *values}]
        rows = archive.arrow(table, split, columns=needed)
        keys = rows[spec.key].to_pylist()
        if table == "references":
            keys = [f"{key} {problem}" for key, problem in zip(keys, rows["problem"].to_pylist(), strict=True)]
        bins = rows["bin"].to_pylist() if "bin" in needed else [None] * len(keys)
        columns = [rows[n].to_pylist() for n in values]
        measured: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * len(keys)
        digests: list[bytes | None] = [None] * len(keys)
        if rest:
            others = rows.select([n for n in needed if n not in {"bin", "bin_scheme", *values}])
            digests = [digest for _, digest in digest_rows(table, others)]
        for key, bin_, value, digest in zip(keys, bins, measured, digests, strict=True):
            yield key, _Row(split, bin_, value, digest)


class Change(msgspec.Struct, frozen=True):
    """One row that changed: its id, what it was, what it is."""

    id: str
    old: Any
    new: Any


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one table. A row can be measured again and relabelled at once.

    Attributes:
        table: its name.
        rows_old: rows before.
        rows_new: rows now.
        added: ids of rows that are new.
        removed: ids of rows that are gone.
        relabelled: bin before and now.
        remeasured: speedup (and number of measurements) before and now.
        moved: split before and now.
        changed: ids of rows that were not measured again and of which anything else changed; ``None`` where one side does
            not have the other columns.
        facts_changed: facts of a split that are others now, as ``name: [old, new]``.
    """

    table: str
    rows_old: int
    rows_new: int
    added: list[str]
    removed: list[str]
    relabelled: list[Change]
    remeasured: list[Change]
    moved: list[Change]
    changed: list[str] | None
    facts_changed: dict[str, list[Any]]

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        lists = (
            self.added,
            self.removed,
            self.relabelled,
            self.remeasured,
            self.moved,
            self.changed,
            self.facts_changed,
        )
        return not any(lists)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two versions.

    Attributes:
        old: version before.
        new: version now.
        old_digest: logical digest before.
        new_digest: logical digest now.
        tables: every table that both sides have.
        only_old: tables that only the old side has.
        only_new: tables that only the new side has.
    """

    old: str
    new: str
    old_digest: str
    new_digest: str
    tables: list[TableDifference]
    only_old: list[str]
    only_new: list[str]

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return all(t.same for t in self.tables) and not self.only_old and not self.only_new


def snapshot(path: str | Path) -> Snapshot:
    """One side of a comparison: an archive directory, a folder of frozen splits, or one frozen split.

    Raises:
        ArchiveNotFoundError: an empty or missing directory.
        ArchiveMismatchError: it is something else.
        UsageError: the folder holds neither.
    """
    place = Path(path)
    if place.is_file():
        files = [place]
    elif place.is_dir() and not (place / MANIFEST_NAME).exists():
        files = [p for name in DERIVED_TABLES if (p := place / f"{name}.json").is_file()]
    else:
        files = []
    if place.is_dir() and not files and not (place / MANIFEST_NAME).exists():
        raise UsageError(f"{printable(str(place), 300)} is neither an archive directory nor a folder of frozen splits")
    if not files:
        archive = open_archive(place)
        manifest = archive.manifest
        digests = {name: facts.logical_digest for name, facts in manifest.tables.items()}
        return Snapshot(manifest.version, manifest.logical_digest, digests, manifest.splits, archive)
    frozen = [read_frozen(p) for p in files]
    return Snapshot(
        frozen[0].version,
        frozen[0].archive_digest,
        {f.table: f.facts.logical_digest for f in frozen},
        {f.table: f.facts for f in frozen},
        {f.table: {r[0]: _Row(TABLES[f.table].splits[0], r[2], (r[3],), None) for r in f.rows} for f in frozen},
    )


def _facts_changed(old: SplitFacts | None, new: SplitFacts | None) -> dict[str, list[Any]]:
    if old is None or new is None:
        return {}
    names = ("name", "origin", "scheme", "parameters")
    found = {n: [getattr(old, n), getattr(new, n)] for n in names if getattr(old, n) != getattr(new, n)}
    ends = ("m_1", "m_8")
    found |= {n: [old.facts.get(n), new.facts.get(n)] for n in ends if old.facts.get(n) != new.facts.get(n)}
    return found


def _one(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _compare(table: str, old: Snapshot, new: Snapshot) -> TableDifference:
    facts = _facts_changed(old.splits.get(table), new.splits.get(table))
    rest = old.whole and new.whole
    if old.digests[table] == new.digests[table]:
        # The same digest: the same rows, whatever the files look like. It says nothing of the split that a row is in.
        rows = old.rows(table, rest=False)
        others = new.rows(table, rest=False) if len(TABLES[table].splits) > 1 else rows
        moved = [Change(k, rows[k].split, others[k].split) for k in sorted(rows) if rows[k].split != others[k].split]
        return TableDifference(
            table=table, rows_old=len(rows), rows_new=len(rows), added=[], removed=[], relabelled=[], remeasured=[],
            moved=moved, changed=[], facts_changed=facts,
        )  # fmt: skip
    before, now = old.rows(table, rest=rest), new.rows(table, rest=rest)
    both = sorted(key for key in before if key in now)
    pairs = [(key, before[key], now[key]) for key in both]
    return TableDifference(
        table=table,
        rows_old=len(before),
        rows_new=len(now),
        added=sorted(key for key in now if key not in before),
        removed=sorted(key for key in before if key not in now),
        relabelled=[Change(k, a.bin, b.bin) for k, a, b in pairs if a.bin != b.bin],
        remeasured=[Change(k, _one(a.values), _one(b.values)) for k, a, b in pairs if a.values != b.values],
        moved=[Change(k, a.split, b.split) for k, a, b in pairs if a.split != b.split],
        changed=[k for k, a, b in pairs if a.rest != b.rest and a.values == b.values] if rest else None,
        facts_changed=facts,
    )


def diff(old: str | Path, new: str | Path) -> Difference:
    """Compare two archive directories, folders of frozen splits, or frozen splits.

    Args:
        old: the side before.
        new: the side now.

    Raises:
        ArchiveNotFoundError: there is nothing at one of the paths.
        ArchiveMismatchError: something there can't be read.
        UsageError: the two have no table in common.
    """
    a, b = snapshot(old), snapshot(new)
    names = [name for name in TABLES if name in a.digests and name in b.digests]
    if not names:
        raise UsageError("the two have no table in common")
    # A frozen split holds one or three tables by its nature: that is no change.
    partial = not (a.whole and b.whole)
    return Difference(
        old=a.label,
        new=b.label,
        old_digest=a.digest,
        new_digest=b.digest,
        tables=[_compare(name, a, b) for name in names],
        only_old=[] if partial else [n for n in TABLES if n in a.digests and n not in b.digests],
        only_new=[] if partial else [n for n in TABLES if n in b.digests and n not in a.digests],
    )


def _plural(n: int, what: str) -> str:
    return f"{n:,} {what}"


def _line(table: TableDifference) -> str:
    parts = [
        _plural(len(rows), what)
        for rows, what in (
            (table.added, "added"),
            (table.removed, "removed"),
            (table.remeasured, "measured again"),
            (table.relabelled, "relabelled"),
            (table.moved, "moved to another split"),
            (table.changed or [], "changed otherwise"),
        )
        if rows
    ]
    changes = ", ".join(parts) if parts else "unchanged"
    return f"- `{table.table}`: {changes} ({table.rows_old:,} to {table.rows_new:,} rows)."


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def changelog(difference: Difference) -> str:
    """A changelog entry of the data, as Markdown: what a user of the old version must know of the new one."""
    lines = [
        f"## {difference.new}",
        "",
        f"Against {difference.old}; content `{difference.old_digest[:19]}…` became `{difference.new_digest[:19]}…`."
        if difference.old_digest != difference.new_digest
        else f"Against {difference.old}; the measured content is the same (`{difference.new_digest[:19]}…`).",
        "",
    ]
    lines.extend(_line(table) for table in difference.tables if not table.same)
    same = [f"`{t.table}`" for t in difference.tables if t.same]
    if same:
        lines.append(f"- Unchanged: {', '.join(same)}.")
    lines.extend(f"- `{name}` is new." for name in difference.only_new)
    lines.extend(f"- `{name}` is gone." for name in difference.only_old)
    for table in difference.tables:
        for name, (old, new) in table.facts_changed.items():
            if name != "parameters":
                lines.append(f"- `{table.table}`: {name} was {_shown(old)}, is {_shown(new)}.")
            else:
                keys = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
                lines.append(f"- `{table.table}`: selected with another {', '.join(keys)}.")
        if table.table in ("eval", "discovery_pairs") and not table.same:
            kept = table.rows_old - len(table.removed)
            touched = {c.id for c in (*table.relabelled, *table.remeasured)}
            lines.append(
                f"- Forecasts for `{table.table}` of {difference.old} name {kept:,} of its {table.rows_new:,} rows, "
                f"{len(touched):,} of them with another speedup or label: scores of the two versions can't be compared."
            )
    return "\n".join(lines) + "\n"
