"""Check that nothing published beside the programs orders the labels of an asked table.

The row number and every column but texts and labels are held against the speedup by Spearman's
rank correlation, task by task and over all tasks (ranks within each). A correlation is too large
where its Fisher transform is beyond :data:`LARGEST_Z` standard errors of chance: 0.97 of 8 rows,
0.76 of 25, 0.48 of 80. Of the some 300 correlations of the shipped archive chance alone exceeds
that once in 500 archives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

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
_LABELS: Final = {"bin", "speedup_min", "speedup_max", "g_cases", "parent_speedup"}
_NUMBER: Final = "row number"


class Correlation(NamedTuple):
    """A rank correlation of a column with the label, and the largest one that chance explains.

    ``task`` is ``all tasks`` for that over all of them.
    """

    task: str
    column: str
    value: float
    limit: float

    @property
    def excess(self) -> float:
        """How many times as large as chance gives it is."""
        return abs(self.value) / self.limit


def largest_correlation(rows: float) -> float:
    """Return the largest rank correlation that chance explains.

    >>> round(largest_correlation(80), 2)
    0.48
    """
    # The variance of Spearman's correlation after Fisher's transform (Fieller, 1957).
    return math.tanh(LARGEST_Z * math.sqrt(1.06 / (rows - 3)))


def label_correlations(split: SplitSpec, rows: pl.DataFrame) -> Iterator[Correlation]:
    """Yield the correlations of every column, task by task and over all tasks.

    Tasks with few rows and columns with one value are left out.
    """
    aside = {*_LABELS, split.task, split.value, split.anchor, split.candidate}
    rows = rows.with_row_index(_NUMBER)
    names = [name for name in rows.columns if name not in aside]
    middle = (pl.len().over(split.task) + 1) / 2
    ranked = rows.select(
        split.task,
        pl.col(split.value, *names).rank("average").over(split.task) - middle,
    )
    groups = {str(task): group for (task,), group in ranked.group_by(split.task)}
    n_tasks = len(groups)
    # A rank in a large task weighs as much as one in a small one.
    size = pl.len().over(split.task)
    groups["all tasks"] = ranked.with_columns(pl.col(split.value, *names) / size)
    for task, group in sorted(groups.items()):
        count = len(group) - (n_tasks - 1 if task == "all tasks" else 0)
        if count >= LEAST_ROWS:
            values = group.select(pl.corr(name, split.value).alias(name) for name in names)
            for name, value in values.row(0, named=True).items():
                if value is not None and math.isfinite(value):
                    yield Correlation(task, name, value, largest_correlation(count))


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
        worst: dict[str, Correlation] = {}
        for correlation in label_correlations(split, archive.polars(name, columns=columns)):
            other = worst.get(correlation.column, correlation)
            worst[correlation.column] = max(correlation, other, key=lambda c: c.excess)
        for task, column, value, limit in worst.values():
            if abs(value) > limit:
                ours = column == _NUMBER or (column == "row_id" and facts.origin == "selected")
                yield Finding(
                    code="ordered-labels",
                    severity="error" if ours else "warning",
                    message=f"the {column} orders the labels of {task}: rank correlation "
                    f"{value:.2f}, chance gives up to {limit:.2f}",
                    field=f"{name}.{column}",
                    fix="Make the split again, or leave the column out",
                )
