"""What changed between two archives: rows added, removed, moved, relabelled, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.schema import TABLES
from kernel_archive.selection.inputs import INPUTS
from kernel_archive.splits import SPLIT_TABLES

#: The measured columns of a table.
_VALUES: Final = {
    "kernels": ["speedup", "n_measurements"],
    **{name: [split.value] for name, split in SPLIT_TABLES.items()},
}
#: Kinds of changes of a row, as :class:`TableDifference` lists them.
KINDS: Final = ("added", "removed", "remeasured", "relabelled", "moved")


class Change(msgspec.Struct, frozen=True):
    """One row that changed: its id, what it was, what it is."""

    id: str
    old: Any
    new: Any


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one table; a row can be measured again and relabelled at once."""

    table: str
    rows_old: int
    rows_new: int
    added: list[str]
    removed: list[str]
    relabelled: list[Change]
    remeasured: list[Change]
    moved: list[Change]
    content: bool  # whether the logical digests differ

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not any(getattr(self, name) for name in (*KINDS, "content"))


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


def _read_rows(archive: Archive, table: str) -> pl.DataFrame:
    """Read id, split, bin and measured values of the rows of a table, by id."""
    key = "reference_id || ' ' || problem" if table == "references" else TABLES[table].key
    label = "bin" if "bin" in TABLES[table].schema.names else "NULL"
    values = ", ".join(_VALUES.get(table, []))
    query = (
        f'SELECT {key} AS id, split, {label} AS bin, [{values}]::DOUBLE[] AS value FROM "{table}"'
    )
    return pl.DataFrame(archive.sql(query)).unique("id", keep="last").sort("id")


def _compare(table: str, old: Archive, new: Archive) -> TableDifference:
    """Compare the rows of one table."""
    before, after = _read_rows(old, table), _read_rows(new, table)
    joined = before.join(after, on="id", suffix="_new", maintain_order="left")
    digests = [archive.manifest.tables[table].logical_digest for archive in (old, new)]

    def changes(column: str) -> list[Change]:
        differ = joined.filter(pl.col(column).ne_missing(pl.col(f"{column}_new")))
        return [Change(*row) for row in differ.select("id", column, f"{column}_new").rows()]

    return TableDifference(
        table=table,
        rows_old=len(before),
        rows_new=len(after),
        added=sorted({*after["id"]} - {*before["id"]}),
        removed=sorted({*before["id"]} - {*after["id"]}),
        relabelled=changes("bin"),
        remeasured=changes("value"),
        moved=changes("split"),
        content=digests[0] != digests[1],
    )


def diff(old: str | Path, new: str | Path) -> Difference:
    """Compare two archive directories.

    Raises:
        ArchiveNotFoundError: there is no archive at one of the paths.
        ArchiveMismatchError: something there can't be read.
    """
    before, after = open_archive(old), open_archive(new)
    # Inputs repeat the splits that they are of.
    of_old, of_new = ([n for n in side.tables if n not in INPUTS] for side in (before, after))
    return Difference(
        old=before.manifest.version,
        new=after.manifest.version,
        old_digest=before.manifest.logical_digest,
        new_digest=after.manifest.logical_digest,
        tables=[_compare(name, before, after) for name in of_old if name in of_new],
        only_old=[name for name in of_old if name not in of_new],
        only_new=[name for name in of_new if name not in of_old],
    )
