"""Close pairs: two programs of one task that their authors were told to make equally fast.

Between programs of one goal the author's intention says nothing, and within a factor of two most
cues say little. What is left is whether a forecaster sees which program is faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest

import numpy as np
import polars as pl

from kernel_archive.selection.definitions import CloseDefinition
from kernel_archive.selection.evaluation import find_eligible, without_near_training
from kernel_archive.selection.selected import ChosenRows, with_pair_ids
from kernel_archive.selection.similarity import near_copy_classes
from kernel_archive.selection.tables import ArchiveTables


def _with_standard_errors(tables: ArchiveTables, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add ``standard_error`` of kernels measured twice or more, relative to the speedup.

    A measurement that two searches share counts twice, so the errors are smaller than those of
    ``Archive.measurements``: the frozen pairs were chosen by them.
    """
    measured = tables.successes(["kernel_id", "speedup"]).group_by("kernel_id")
    error = pl.col("speedup").std() / pl.len().sqrt()
    errors = measured.agg(error=error, measurements=pl.len())
    rows = kernels.join(errors.filter(pl.col("measurements") > 1), on="kernel_id")
    return rows.with_columns(standard_error=pl.col("error") / pl.col("speedup"))


def find_pairs(kernels: pl.DataFrame, definition: CloseDefinition) -> pl.DataFrame:
    """Find all pairs that a definition allows, by pair id.

    ``kernels`` have ``goal_bin``, ``parent_kernel_id`` and ``standard_error``. The pairs have
    ``row_id``, ``ratio`` (second / first) and ``noise``, and the columns of both kernels as
    ``first_...`` and ``second_...``. A hash of the two ids says which is the first.
    """

    def same(column: str) -> pl.Expr:
        return pl.col(f"left_{column}") == pl.col(f"right_{column}")

    left, right = (kernels.select(pl.all().name.prefix(side)) for side in ("left_", "right_"))
    ordered = pl.col("left_kernel_id") < pl.col("right_kernel_id")  # each pair once
    pairs = left.join_where(right, same("problem"), same("reference_id"), ordered)
    siblings = same("search_id") & same("parent_kernel_id")
    pairs = pairs.filter(same("goal_bin") | siblings.fill_null(value=False))
    speedups = ("left_speedup", "right_speedup")
    ratio = pl.max_horizontal(speedups) / pl.min_horizontal(speedups)
    noise = np.hypot(pairs["left_standard_error"], pairs["right_standard_error"])
    pairs = pairs.with_columns(noise=noise).filter(
        ratio.is_between(definition.closest, definition.farthest),
        ratio - 1 >= definition.standard_errors * pl.col("noise"),
    )
    pairs = with_pair_ids(pairs, definition.selection_key, "left_kernel_id", "right_kernel_id")
    # The last digit of the id knows nothing of the speedups.
    is_swapped = pl.col("row_id").str.contains("[02468ace]$")
    sides = {
        f"{side}_{name}": pl.when(is_swapped).then(f"{a}_{name}").otherwise(f"{b}_{name}")
        for side, a, b in (("first", "right", "left"), ("second", "left", "right"))
        for name in kernels.columns
    }
    rows = pairs.select("row_id", "noise", **sides).sort("row_id")
    return rows.with_columns(ratio=pl.col("second_speedup") / pl.col("first_speedup"))


def draw_pairs(
    pairs: pl.DataFrame, classes: Mapping[str, str], definition: CloseDefinition
) -> list[str]:
    """Draw pairs, the tasks in turn, those in front first; return their ids.

    ``classes`` are the classes of near copies; a program that is missing is its own.
    """
    uses: Counter[str] = Counter()
    drawn_classes: set[tuple[str, ...]] = set()

    def next_pairs(rows: pl.DataFrame) -> Iterator[str]:
        kernels = rows.select("first_kernel_id", "second_kernel_id").rows()
        programs = rows.select("first_program_id", "second_program_id").rows()
        for row_id, kernel_ids, program_ids in zip(rows["row_id"], kernels, programs, strict=True):
            key = tuple(sorted(classes.get(name, name) for name in program_ids))
            may_be_used = all(uses[k] < definition.pairs_per_program for k in kernel_ids)
            if may_be_used and key not in drawn_classes:
                drawn_classes.add(key)
                uses.update(kernel_ids)
                yield row_id

    tasks = pairs.sort("first_problem", maintain_order=True).partition_by("first_problem")
    # Lazy: the next pair of a task depends on what all tasks have used until its turn.
    turns = zip_longest(*map(next_pairs, tasks))
    drawn: list[str] = []
    while len(drawn) < definition.pairs and (turn := next(turns, None)) is not None:
        drawn += [row_id for row_id in turn if row_id is not None]
    return drawn[: definition.pairs]


def select_close(tables: ArchiveTables, definition: CloseDefinition, gpu: str | None) -> ChosenRows:
    """Select the close pairs (docs/splits.md)."""
    kernels, excluded, chosen_gpu, gpus = find_eligible(tables, definition, gpu)
    kernels = _with_standard_errors(tables, kernels)
    kernels = without_near_training(tables, kernels, definition.near_copy)
    classes: dict[str, str] = {}
    for group in kernels.partition_by("problem"):
        classes |= near_copy_classes(tables.grams(group["program_id"]), definition.near_copy)
    pairs = find_pairs(kernels, definition)
    rows = pairs.filter(pl.col("row_id").is_in(draw_pairs(pairs, classes, definition)))
    rows = rows.with_columns(
        task="second_problem",
        gpu="second_gpu",
        search_id="second_search_id",
        anchor_program="first_program_id",
        anchor_token="first_token_id",
        candidate_program="second_program_id",
        candidate_token="second_token_id",
    )
    return ChosenRows(rows, {"excluded": dict(sorted(excluded.items()))}, chosen_gpu, gpus)
