"""What changed between two archive versions, or between frozen splits.

Rows added, removed, moved, relabelled and measured again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError, printable
from kernel_archive.schema import TABLES
from kernel_archive.selection.freeze import read_frozen
from kernel_archive.selection.inputs import INPUTS
from kernel_archive.splits import FORECAST_SPLITS, SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.selection.freeze import FrozenSplit

#: The measured columns of a table.
_VALUES: Final = {
    "kernels": ["speedup", "n_measurements"],
    **{name: [split.value] for name, split in SPLIT_TABLES.items()},
}
#: Kinds of changes of a row, as :class:`TableDifference` lists them, in words.
KINDS: Final = {
    "added": "added",
    "removed": "removed",
    "remeasured": "measured again",
    "relabelled": "relabelled",
    "moved": "moved to another split",
}


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: an archive, or frozen splits; ``rows`` gives id, split, bin and value of rows."""

    label: str
    digest: str
    digests: dict[str, str]
    splits: dict[str, SplitFacts]
    whole: bool
    rows: Callable[[str], pl.DataFrame]


class Change(msgspec.Struct, frozen=True):
    """One row that changed: its id, what it was, what it is."""

    id: str
    old: Any
    new: Any


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one table. A row can be measured again and relabelled at once.

    ``content`` says whether the logical digests differ; ``facts_changed`` are facts of a split as
    ``name: [old, new]``.
    """

    table: str
    rows_old: int
    rows_new: int
    added: list[str]
    removed: list[str]
    relabelled: list[Change]
    remeasured: list[Change]
    moved: list[Change]
    content: bool
    facts_changed: dict[str, list[Any]]

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not any(getattr(self, name) for name in (*KINDS, "content", "facts_changed"))


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in the tables that both versions have, and which tables only one has."""

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


def _archive_rows(archive: Archive, table: str) -> pl.DataFrame:
    spec, values = TABLES[table], _VALUES.get(table, [])
    ids = [spec.key, "problem"] if table == "references" else [spec.key]
    labels = ["bin"] if "bin" in spec.schema.names else []
    parts = [
        archive.polars(table, part, columns=[*ids, *labels, *values]).select(
            pl.concat_str(ids, separator=" ").alias("id"),
            pl.lit(part).alias("split"),
            (pl.col("bin") if labels else pl.lit(None)).cast(pl.Int64).alias("bin"),
            value=pl.concat_list(pl.col(values).cast(pl.Float64) if values else pl.lit(0.0)),
        )
        for part in archive.manifest.tables[table].splits
    ]
    return pl.concat(parts)


def _frozen_rows(frozen: dict[str, FrozenSplit], table: str) -> pl.DataFrame:
    names = {"id": pl.String, "problem": pl.String, "bin": pl.Int64, "value": pl.Float64}
    rows = pl.DataFrame(frozen[table].rows, schema=names, orient="row")
    part, value = pl.lit(TABLES[table].splits[0]), pl.concat_list("value")
    return rows.select("id", part.alias("split"), "bin", value.alias("value"))


def _side(path: str | Path) -> _Side:
    """Read an archive directory, a folder of frozen splits, or one frozen split."""
    place = Path(path)
    folder = place.is_dir() and not (place / MANIFEST_NAME).exists()
    listed = [place / f"{name}.json" for name in SPLIT_TABLES] if folder else [place]
    files = [file for file in listed if file.is_file()]
    if folder and not files:
        shown = printable(str(place), 300)
        raise UsageError(f"{shown} is neither an archive directory nor a folder of frozen splits")
    if not files:
        archive = open_archive(place)
        manifest = archive.manifest
        return _Side(
            label=manifest.version,
            digest=manifest.logical_digest,
            # Inputs repeat the splits that they are of.
            digests={n: t.logical_digest for n, t in manifest.tables.items() if n not in INPUTS},
            splits=manifest.splits,
            whole=True,
            rows=partial(_archive_rows, archive),
        )
    frozen = {split.table: split for split in map(read_frozen, files)}
    first = next(iter(frozen.values()))
    return _Side(
        label=first.version,
        digest=first.archive_digest,
        digests={name: split.facts.logical_digest for name, split in frozen.items()},
        splits={name: split.facts for name, split in frozen.items()},
        whole=False,
        rows=partial(_frozen_rows, frozen),
    )


def _facts_changed(old: SplitFacts | None, new: SplitFacts | None) -> dict[str, list[Any]]:
    if old is None or new is None:
        return {}
    before, now = (
        {n: getattr(s, n) for n in ("name", "origin", "scheme", "parameters")}
        | {n: s.facts.get(n) for n in ("m_1", "m_8")}
        for s in (old, new)
    )
    return {name: [before[name], now[name]] for name in before if before[name] != now[name]}


def _compare(table: str, old: _Side, new: _Side) -> TableDifference:
    before, now = (s.rows(table).unique("id", keep="last").sort("id") for s in (old, new))
    both = before.join(now, on="id", suffix="_new", maintain_order="left")

    def changes(column: str) -> list[Change]:
        differ = both.filter(pl.col(column).ne_missing(pl.col(f"{column}_new")))
        return [Change(*row) for row in differ.select("id", column, f"{column}_new").rows()]

    return TableDifference(
        table=table,
        rows_old=len(before),
        rows_new=len(now),
        added=now.join(before, on="id", how="anti")["id"].sort().to_list(),
        removed=before.join(now, on="id", how="anti")["id"].sort().to_list(),
        relabelled=changes("bin"),
        remeasured=changes("value"),
        moved=changes("split"),
        content=old.digests[table] != new.digests[table],
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
    # Frozen splits lack tables by their nature: that is no change.
    alone = [n for n in TABLES if (n in a.digests) != (n in b.digests) and a.whole and b.whole]
    return Difference(
        old=a.label,
        new=b.label,
        old_digest=a.digest,
        new_digest=b.digest,
        tables=[_compare(name, a, b) for name in names],
        only_old=[name for name in alone if name in a.digests],
        only_new=[name for name in alone if name in b.digests],
    )


def _lines(table: TableDifference, old: str) -> list[str]:
    name = f"`{table.table}`"
    changed = {text: len(getattr(table, kind)) for kind, text in KINDS.items()}
    counts = [f"{n:,} {text}" for text, n in changed.items() if n]
    other = ["other columns changed"] if table.content and not counts else []
    changes = ", ".join([*counts, *other]) or "unchanged rows"
    lines = [f"- {name}: {changes} ({table.rows_old:,} to {table.rows_new:,} rows)."]
    for fact, (before, now) in table.facts_changed.items():
        if fact == "parameters":
            keys = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
            lines.append(f"- {name}: selected with another {', '.join(keys)}.")
        else:
            lines.append(f"- {name}: {fact} was {before}, is {now}.")
    if table.table in {split.table for split in FORECAST_SPLITS.values()}:
        touched = len({change.id for change in (*table.relabelled, *table.remeasured)})
        kept = table.rows_old - len(table.removed)
        lines.append(
            f"- Forecasts for {name} of {old} name {kept:,} of its {table.rows_new:,} rows, "
            f"{touched:,} of them with another speedup or label: scores of the two versions can't "
            "be compared."
        )
    return lines


def changelog(difference: Difference) -> str:
    """Write a changelog entry of the data, as Markdown."""
    old, new = f"{difference.old_digest:.19}…", f"{difference.new_digest:.19}…"
    change = f"; the measured content is the same (`{new}`)."
    if difference.old_digest != difference.new_digest:
        change = f"; content `{old}` became `{new}`."
    lines = [f"## {difference.new}", "", f"Against {difference.old}{change}", ""]
    for table in difference.tables:
        lines += [] if table.same else _lines(table, difference.old)
    if unchanged := [f"`{t.table}`" for t in difference.tables if t.same]:
        lines.append(f"- Unchanged: {', '.join(unchanged)}.")
    lines += [f"- `{name}` is new." for name in difference.only_new]
    lines += [f"- `{name}` is gone." for name in difference.only_old]
    return "\n".join(lines) + "\n"
