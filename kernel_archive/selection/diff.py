"""What changed between two archive versions, or between frozen splits: rows added, removed, relabelled, measured again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import digest_rows
from kernel_archive.errors import UsageError, printable
from kernel_archive.schema import TABLES
from kernel_archive.selection.freeze import read_frozen
from kernel_archive.selection.selected import INPUTS
from kernel_archive.splits import FORECAST_SPLITS, SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive

#: Columns that say nothing new: texts follow from the ids, the canary is one text, the scheme is a fact of the table.
_ASIDE: Final = {"code", "canary", "bin_scheme"} | {c for s in SPLIT_TABLES.values() for c in (s.anchor, s.candidate)}
_VALUES: Final = {
    "kernels": ("speedup", "n_measurements"),
    **{name: (split.value,) for name, split in SPLIT_TABLES.items()},
}
#: The kinds of changes of a row, as :class:`TableDifference` lists them, and how a sentence says them.
KINDS: Final = {
    "added": "added",
    "removed": "removed",
    "remeasured": "measured again",
    "relabelled": "relabelled",
    "moved": "moved to another split",
    "changed": "changed otherwise",
}


class _Row(msgspec.Struct, frozen=True):
    """What is compared of a row: its split, label, measured values, and a digest of everything else."""

    split: str
    bin: int | None
    values: tuple[float | int, ...]
    rest: bytes | None


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: a ``whole`` archive, of which every column can be compared, or frozen splits.

    ``rows`` gives the rows of a table by id; with a digest of all other columns where that is asked for.
    """

    label: str
    digest: str
    digests: dict[str, str]
    splits: dict[str, SplitFacts]
    whole: bool
    rows: Callable[[str, bool], dict[str, _Row]]


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
        return not any(getattr(self, name) for name in (*KINDS, "facts_changed"))


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two versions: in the tables that both sides have, and which tables only one has."""

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


def _archive_rows(archive: Archive, table: str, rest: bool) -> dict[str, _Row]:
    spec = TABLES[table]
    names = [c.name for c in spec.columns if c.name not in _ASIDE]
    values = _VALUES.get(table, ())
    needed = names if rest else [n for n in names if n in {spec.key, "problem", "bin", *values}]
    found: dict[str, _Row] = {}
    for split in archive.manifest.tables[table].splits:
        rows = archive.arrow(table, split, columns=needed)
        n = rows.num_rows
        keys = rows[spec.key].to_pylist()
        if table == "references":
            keys = [f"{key} {problem}" for key, problem in zip(keys, rows["problem"].to_pylist(), strict=True)]
        bins = rows["bin"].to_pylist() if "bin" in needed else [None] * n
        measured = list(zip(*(rows[v].to_pylist() for v in values), strict=True)) if values else [()] * n
        others = rows.select([name for name in needed if name not in {"bin", *values}])
        digests = [digest for _, digest in digest_rows(table, others)] if rest else [None] * n
        for key, bin_, value, digest in zip(keys, bins, measured, digests, strict=True):
            found[key] = _Row(split, bin_, value, digest)
    return found


def _side(path: str | Path) -> _Side:
    """One side of a comparison: an archive directory, a folder of frozen splits, or one frozen split.

    Raises:
        ArchiveNotFoundError: a missing directory.
        ArchiveMismatchError: it is something else.
        UsageError: the folder holds neither.
    """
    place = Path(path)
    folder = place.is_dir() and not (place / MANIFEST_NAME).exists()
    files = [p for name in SPLIT_TABLES if (p := place / f"{name}.json").is_file()] if folder else [place]
    if not files:
        raise UsageError(f"{printable(str(place), 300)} is neither an archive directory nor a folder of frozen splits")
    if not folder and not place.is_file():
        archive = open_archive(place)
        manifest = archive.manifest
        return _Side(
            label=manifest.version,
            digest=manifest.logical_digest,
            # The rows without labels repeat the evaluation splits.
            digests={name: facts.logical_digest for name, facts in manifest.tables.items() if name != INPUTS},
            splits=manifest.splits,
            whole=True,
            rows=partial(_archive_rows, archive),
        )
    frozen = {f.table: f for f in map(read_frozen, files)}
    first = next(iter(frozen.values()))
    return _Side(
        label=first.version,
        digest=first.archive_digest,
        digests={name: f.facts.logical_digest for name, f in frozen.items()},
        splits={name: f.facts for name, f in frozen.items()},
        whole=False,
        rows=lambda table, _: {
            row_id: _Row(TABLES[table].splits[0], bin_, (value,), None) for row_id, _, bin_, value in frozen[table].rows
        },
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


def _compare(table: str, old: _Side, new: _Side) -> TableDifference:
    # The same digest: the same rows, whatever the files look like. It says nothing of the split that a row is in.
    same = old.digests[table] == new.digests[table]
    rest = old.whole and new.whole and not same
    before, now = old.rows(table, rest), new.rows(table, rest)
    pairs = [(key, before[key], now[key]) for key in sorted(before.keys() & now.keys())]
    return TableDifference(
        table=table,
        rows_old=len(before),
        rows_new=len(now),
        added=sorted(now.keys() - before.keys()),
        removed=sorted(before.keys() - now.keys()),
        relabelled=[Change(k, a.bin, b.bin) for k, a, b in pairs if a.bin != b.bin],
        remeasured=[Change(k, _one(a.values), _one(b.values)) for k, a, b in pairs if a.values != b.values],
        moved=[Change(k, a.split, b.split) for k, a, b in pairs if a.split != b.split],
        changed=[k for k, a, b in pairs if a.rest != b.rest and a.values == b.values] if rest or same else None,
        facts_changed=_facts_changed(old.splits.get(table), new.splits.get(table)),
    )


def diff(old: str | Path, new: str | Path) -> Difference:
    """Compare two archive directories, folders of frozen splits, or frozen splits.

    Raises:
        ArchiveNotFoundError: there is nothing at one of the paths.
        ArchiveMismatchError: something there can't be read.
        UsageError: the two have no table in common.
    """
    a, b = _side(old), _side(new)
    names = [name for name in TABLES if name in a.digests and name in b.digests]
    if not names:
        raise UsageError("the two have no table in common")
    # A frozen split holds one or a few tables by its nature: that is no change.
    whole = a.whole and b.whole
    return Difference(
        old=a.label,
        new=b.label,
        old_digest=a.digest,
        new_digest=b.digest,
        tables=[_compare(name, a, b) for name in names],
        only_old=[n for n in TABLES if n in a.digests and n not in b.digests and whole],
        only_new=[n for n in TABLES if n in b.digests and n not in a.digests and whole],
    )


def _line(table: TableDifference) -> str:
    counts = {said: len(getattr(table, kind) or ()) for kind, said in KINDS.items()}
    changes = ", ".join(f"{n:,} {said}" for said, n in counts.items() if n) or "unchanged"
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
    forecast = {split.table for split in FORECAST_SPLITS.values()}
    for table in difference.tables:
        for name, (old, new) in table.facts_changed.items():
            if name != "parameters":
                lines.append(f"- `{table.table}`: {name} was {_shown(old)}, is {_shown(new)}.")
            else:
                keys = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
                lines.append(f"- `{table.table}`: selected with another {', '.join(keys)}.")
        if table.table in forecast and not table.same:
            kept = table.rows_old - len(table.removed)
            touched = {c.id for c in (*table.relabelled, *table.remeasured)}
            lines.append(
                f"- Forecasts for `{table.table}` of {difference.old} name {kept:,} of its {table.rows_new:,} rows, "
                f"{len(touched):,} of them with another speedup or label: scores of the two versions can't be compared."
            )
    return "\n".join(lines) + "\n"
