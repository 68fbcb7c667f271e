"""``measurements``: a table of independent measurements that somebody else made.

The recipe says where each of our columns comes from (:mod:`kernel_archive.readers.mapping`); what a row says of itself is
doubted (:mod:`kernel_archive.readers.judged`).
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.errors import Finding, printable, suggestion
from kernel_archive.readers.files import ReaderSpec, RunFiles
from kernel_archive.readers.judged import Judged, whatever_counts
from kernel_archive.readers.mapping import From, Join, columns_of, inside, needed
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import ABSENT, lookup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.records import Record
    from kernel_archive.readers.tables import Row

#: Rows among which every column must be seen.
_HEAD_ROWS: Final = 100


def _joins_of(run: RunFiles) -> list[Join]:
    given = run.settings.get("join") or []
    return [msgspec.convert(msgspec.to_builtins(entry), Join) for entry in given]


def _also(run: RunFiles) -> Iterator[Path]:
    """The further files that a run is read from: joined tables, and programs that the table names."""
    joins = _joins_of(run)
    yield from (run.root / join.path for join in joins if (run.root / join.path).is_file())
    columns = columns_of(run.settings.get("columns"), "", run.settings.get("reference"))
    files = [] if isinstance(columns, Finding) else [rule.file for rule in columns.values() if rule.file is not None]
    if files and run.path.is_file():
        table = Judged(run, run.path, Report())
        table.load_joins(join for join in joins if (run.root / join.path).is_file())
        for _, row in table_rows(run, run.path, Report(), at=run.settings.get("rows")):
            for template in files:
                path = inside(run.root, template, table.joined(row))
                if path is not None and path.is_file():
                    yield path


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per row with code and speedup, the counts of the others, and what was wrong."""
    if not run.path.is_file():
        yield wrong_format(run, MEASUREMENTS)
        return
    columns = columns_of(run.settings.get("columns"), run.name(run.path), run.settings.get("reference"))
    if isinstance(columns, Finding):
        yield columns
        return
    report = Report()
    table = Judged(run, run.path, report)
    table.columns = columns
    table.load_joins(_joins_of(run))
    rows = table_rows(run, run.path, report, at=run.settings.get("rows"))
    head = list(islice(rows, _HEAD_ROWS))
    if not head and any(report.of("wrong-format")):
        yield from report
        return
    if not head:
        yield from nothing_read(run, MEASUREMENTS, run.path, report)
        return
    fault = _missing_column(table, columns, head)
    if fault is not None:
        yield fault
        return
    for number, row in chain(head, rows):
        table.take(number, row)
    table.finish()
    yield from whatever_counts(table)


def _missing_column(table: Judged, columns: dict[str, From], head: list[Row]) -> Finding | None:
    """The first column of the mapping that no row of the head has. Rows of JSON lines may leave a missing value's key out."""
    sample = [row for _, row in head]
    known = {name: next((r for r in rows.values() if r), {}) for (join, rows) in table.joins for name in (join.name,)}
    for ours, theirs in needed(columns):
        if all(lookup({**row, **known}, theirs) is ABSENT for row in sample):
            present = sorted(
                {name for row in sample for name in row} | {f"{j}.{k}" for j, r in known.items() for k in r}
            )
            near = suggestion(theirs, present)
            listed = f"its columns are: {', '.join(printable(c, 40) for c in present[:30])}"
            fix = f"{near} T{listed[1:]}" if near.startswith("Did") else listed
            message = f"the table has no column {printable(theirs)}"
            return Finding(code="wrong-format", message=message, file=table.file, field=f"columns.{ours}", fix=fix)
    return None


MEASUREMENTS: Final = ReaderSpec(
    name="measurements",
    title="A table of independent measurements, with a mapping from our column names to its own",
    expects="files (Parquet, CSV, TSV, JSON or JSON lines); the recipe's columns must name code and a speedup, times or outcomes",
    files=(),
    version=7,
    records=_records,
    also=_also,
    foreign=True,
)
