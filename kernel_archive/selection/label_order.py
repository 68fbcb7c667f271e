"""Check that nothing published beside the programs orders the labels of an asked table.

The row number and every column but texts and labels are held against the speedup by Spearman's
rank correlation, task by task and over all tasks (ranks within each). A correlation is too large
where its Fisher transform is beyond :data:`LARGEST_Z` standard errors of chance: 0.97 of 8 rows,
0.76 of 25, 0.48 of 80. Of the some 300 correlations of the shipped archive chance alone exceeds
that once in 500 archives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import polars as pl

from kernel_archive.archive.open import Archive
from kernel_archive.errors import Finding
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLIT_TABLES, SplitSpec

#: A rank correlation is chance up to this many standard errors of its Fisher transform.
LARGEST_Z: Final = 4.5
#: Fewer rows have no correlation that chance could not give.
LEAST_ROWS: Final = 8
#: Columns that may follow the label: the labels themselves; what was measured, which no question
#: shows; measured speedups that a question shows on purpose; and the language, which the program's
#: text says anyway.
_LABELS: Final = {
    *("bin", "speedup_min", "speedup_max", "n_measurements", "g_cases", "outcome", "canary"),
    *("parent_speedup", "known_speedup", "language", "parent_language", "child_language"),
}
_NUMBER: Final = "row number"


def largest_correlation(rows: float) -> float:
    """Return the largest rank correlation that chance explains.

    >>> round(largest_correlation(80), 2)
    0.48
    """
    # The variance of Spearman's correlation after Fisher's transform (Fieller, 1957).
    return math.tanh(LARGEST_Z * math.sqrt(1.06 / (rows - 3)))


def label_correlations(split: SplitSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Correlate every column with the label: ``task``, ``column``, ``value`` and ``limit``.

    ``limit`` is what chance gives. A column that says no more than a row's search or
    its parent has only that many independent values. The task ``all tasks`` stands for ranks within
    each. Tasks with few rows and columns with one value are left out.
    """
    left_out = {*_LABELS, split.task, split.value, split.anchor, split.candidate}
    rows = rows.with_row_index(_NUMBER)
    names = [name for name in rows.columns if name not in left_out]
    task = pl.col(split.task).alias("task")
    ranks = pl.col(split.value, *names).rank("average").over(split.task)
    size = pl.len().over(split.task)
    shared = {"search_id": "search_id"} if "search_id" in names else {}
    if split.anchor_kernel in names:
        shared |= {name: split.anchor_kernel for name in names if name.startswith("parent_")}
    groups = [pl.col(group).alias(f"group of {name}") for name, group in shared.items()]
    sizes = {"size": size, "degrees": pl.len().over(split.task)}
    ranked = rows.select(task, ranks - (size + 1) / 2, *groups, **sizes)
    # A rank in a large task weighs as much as one in a small one.
    n_tasks = ranked["task"].n_unique()
    overall = ranked.with_columns(
        pl.col(split.value, *names) / pl.col("size"),
        task=pl.lit("all tasks"),
        degrees=(pl.len() - (n_tasks - 1)).cast(pl.UInt32),
    )
    all_ranks = pl.concat([ranked, overall])
    by_task = all_ranks.group_by("task", "degrees")
    parts = []
    for name in names:
        group = pl.col(f"group of {name}").n_unique() if name in shared else pl.len()
        part = by_task.agg(column=pl.lit(name), value=pl.corr(name, split.value), groups=group)
        parts.append(part.with_columns(degrees=pl.min_horizontal("degrees", "groups")))
    values = pl.concat(parts).filter(pl.col("value").is_finite(), pl.col("degrees") >= LEAST_ROWS)
    limit = pl.col("degrees").map_elements(largest_correlation, return_dtype=pl.Float64)
    return values.select("task", "column", "value", limit=limit)


def check_label_order(archive: Archive) -> Iterator[Finding]:
    """Find columns, and an order of rows, that tell the labels of an asked table.

    The order of rows and the ids of selected ones are ours: an error. What else tells (a language,
    a search) may be so in the data: a warning.
    """
    for name, facts in archive.manifest.splits.items():
        split = SPLIT_TABLES.get(name)
        if split is None or split.kind == "train" or facts.origin == "withheld":
            continue
        columns = {*TABLES[name].schema.names} - {split.anchor, split.candidate}
        rows = archive.polars(name, columns=sorted(columns))
        excess = pl.col("value").abs() / pl.col("limit")
        worst = label_correlations(split, rows).filter(excess > 1).sort(excess, descending=True)
        named = worst.unique("column", keep="first").sort("column")
        for task, column, value, limit in named.rows():
            ours = column == _NUMBER or (column == "row_id" and facts.origin == "selected")
            yield Finding(
                code="ordered-labels",
                severity="error" if ours else "warning",
                message=f"the {column} orders the labels of {task}: rank correlation "
                f"{value:.2f}, chance gives up to {limit:.2f}",
                field=f"{name}.{column}",
                fix="Make the split again, or leave the column out",
            )
