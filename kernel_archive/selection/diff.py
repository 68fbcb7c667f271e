"""What changed between two archives: rows added, removed, relabelled, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

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


def _read_rows(archive: Archive, table: str) -> pl.DataFrame:
    """Read id, split, bin and measured values of the rows of a table, by id."""
    key = "reference_id || ' ' || problem" if table == "references" else TABLES[table].key
    label = "bin" if "bin" in TABLES[table].schema.names else "NULL"
    values = ", ".join(_VALUES.get(table, []))
    query = (
        f'SELECT {key} AS id, split, {label} AS bin, [{values}]::DOUBLE[] AS value FROM "{table}"'
    )
    return pl.DataFrame(archive.sql(query)).unique("id", keep="last").sort("id")


def _compare(table: str, old: Archive, new: Archive) -> dict[str, Any]:
    """Compare the rows of one table; a row can be measured again and relabelled at once."""
    before, after = _read_rows(old, table), _read_rows(new, table)
    rows = before.join(after, on="id", how="full", coalesce=True, suffix="_new").sort("id")
    is_old, is_new = pl.col("split").is_not_null(), pl.col("split_new").is_not_null()

    def ids(chosen: pl.Expr) -> list[str]:
        return rows.filter(chosen)["id"].to_list()

    def differ(column: str) -> list[str]:
        return ids(is_old & is_new & pl.col(column).ne_missing(pl.col(f"{column}_new")))

    digests = {archive.manifest.tables[table].logical_digest for archive in (old, new)}
    return {
        "table": table,
        "rows_old": len(before),
        "rows_new": len(after),
        "added": ids(~is_old),
        "removed": ids(~is_new),
        "relabelled": differ("bin"),
        "remeasured": differ("value"),
        # A digest does not tell whether a row is in train or test.
        "changed": len(digests) > 1 or bool(differ("split")),
    }


def diff(old: str | Path, new: str | Path) -> dict[str, Any]:
    """Compare two archive directories: ids of changed rows, and tables that only one has.

    Raises:
        ArchiveNotFoundError: there is no archive at one of the paths.
        ArchiveMismatchError: something there can't be read.
    """
    before, after = open_archive(old), open_archive(new)
    # Inputs repeat the splits that they are of.
    of_old, of_new = ([n for n in side.tables if n not in INPUTS] for side in (before, after))
    return {
        "old": before.manifest.version,
        "new": after.manifest.version,
        "tables": [_compare(name, before, after) for name in of_old if name in of_new],
        "only_old": [name for name in of_old if name not in of_new],
        "only_new": [name for name in of_new if name not in of_old],
    }
