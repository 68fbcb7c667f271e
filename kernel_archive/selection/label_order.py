"""Check that nothing published beside the programs orders the labels of an asked table.

The row number and every column but texts and labels are held against the speedup by Spearman's
rank correlation, task by task and over all tasks (ranks within each). A correlation is too large
where its Fisher transform is beyond :data:`LARGEST_Z` standard errors of chance: 0.97 of 8 rows,
0.76 of 25, 0.48 of 80. Of the some 300 correlations of the shipped archive chance alone exceeds
that once in 500 archives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import polars as pl

from kernel_archive.errors import Finding
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import SplitSpec

#: A rank correlation is chance up to this many standard errors of its Fisher transform.
LARGEST_Z: Final = 4.5
#: Fewer rows have no correlation that chance could not give.
LEAST_ROWS: Final = 8
#: The labels, and what the documentation says to tell of them: the measured speed of the parent.
_LABELS: Final = {
    "bin",
    "speedup_min",
    "speedup_max",
    "g_cases",
    "parent_speedup",
}
_NUMBER: Final = "row number"


def largest_correlation(rows: float) -> float:
    """Return the largest rank correlation that chance explains.

    >>> round(largest_correlation(80), 2)
    0.48
    """
    # The variance of Spearman's correlation after Fisher's transform (Fieller, 1957).
    return math.tanh(LARGEST_Z * math.sqrt(1.06 / (rows - 3)))


def label_correlations(
    split: SplitSpec, rows: pl.DataFrame
) -> Iterator[tuple[str, str, float, float]]:
    """Yield task (empty for all), column, rank correlation with the label, and what chance gives.

    Tasks with few rows and columns with one value are left out.
    """
    aside = {*_LABELS, split.task, split.value, split.anchor, split.candidate}
    rows = rows.with_row_index(_NUMBER)
    names = [name for name in rows.columns if name not in aside]
    flat = rows.select(split.task, split.value, pl.col(names).map_batches(_sortable))
    ranked = flat.select(
        pl.col(split.task),
        pl.col(split.value, *names).rank("average").over(split.task)
        - (pl.len().over(split.task) + 1) / 2,
    )
    groups = {str(task): group for (task,), group in ranked.group_by(split.task)}
    # A rank in a large task weighs as much as one in a small one.
    size = pl.len().over(split.task)
    groups[""] = ranked.with_columns(pl.col(split.value, *names) / size)
    for task, group in sorted(groups.items()):
        count = len(group) - (len(groups) - 2 if not task else 0)
        if count >= LEAST_ROWS:
            correlations = group.select(pl.corr(name, split.value).alias(name) for name in names)
            for name, value in correlations.row(0, named=True).items():
                if value is not None and math.isfinite(value):
                    yield task, name, value, largest_correlation(count)


def _sortable(column: pl.Series) -> pl.Series:
    """Make a column of lists one of texts, since lists have no rank."""
    if column.dtype.is_nested():
        return pl.Series(column.name, [repr(value) for value in column.to_list()], pl.String)
    return column


def check_label_order(archive: Archive) -> Iterator[Finding]:
    """Find columns, and an order of rows, that tell the labels of an asked table.

    The order of rows and the ids of selected ones are ours, so that is an error. What else tells
    (a language, a search) may be so in the data: a warning.
    """
    for name, facts in archive.manifest.splits.items():
        split = SPLIT_TABLES.get(name)
        if split is None or split.kind == "train" or facts.origin == "withheld":
            continue
        texts = {split.anchor, split.candidate, "canary"}
        columns = [c for c in TABLES[name].schema.names if c not in texts]
        rows = archive.polars(name, columns=columns)
        worst: dict[str, tuple[float, float, float, str]] = {}
        for task, column, correlation, limit in label_correlations(split, rows):
            found = (abs(correlation) / limit, correlation, limit, task or "all tasks")
            worst[column] = max(found, worst.get(column, found))
        for column, (excess, correlation, limit, task) in worst.items():
            if excess > 1:
                ours = column == _NUMBER or (column == "row_id" and facts.origin == "selected")
                yield Finding(
                    code="ordered-labels",
                    severity="error" if ours else "warning",
                    message=f"the {column} orders the labels of {task}: rank correlation "
                    f"{correlation:.2f}, chance gives up to {limit:.2f}",
                    field=f"{name}.{column}",
                    fix="Make the split again, or leave the column out",
                )
