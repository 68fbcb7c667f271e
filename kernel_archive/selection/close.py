"""Close pairs: two programs of one task that their authors were told to make equally fast.

Between programs of one goal the author's intention says nothing, and within a factor of two most
cues say little. What is left is whether a forecaster sees which program is faster.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import polars as pl

from kernel_archive.selection.definitions import (
    CloseDefinition,
    canonical_definition,
    variant_name,
)
from kernel_archive.selection.evaluation import (
    choose_gpu,
    gpu_part,
    near_training,
    read_token_sets,
    with_reasons,
)
from kernel_archive.selection.selected import Selection, count_values, label_rows, pair_id
from kernel_archive.selection.similarity import near_copy_classes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec

_COLUMNS = (
    "kernel_id",
    "program_id",
    "token_id",
    "problem",
    "gpu",
    "search_id",
    "speedup",
)


def standard_errors(tables: ArchiveTables, kernels: pl.DataFrame) -> pl.DataFrame:
    """Compute ``standard_error`` of every kernel from its measurements, relative to its speedup.

    Kernels with a single measurement are left out.
    """
    columns = ["kernel_id", "speedup", "outcome", "excluded"]
    measured = tables.read("evaluations", columns).filter(
        pl.col("outcome") == "success", pl.col("excluded").is_null()
    )
    errors = measured.group_by("kernel_id").agg(
        spread=pl.col("speedup").std(), measurements=pl.len()
    )
    rows = kernels.join(errors, on="kernel_id", maintain_order="left")
    error = pl.col("spread") / pl.col("measurements").sqrt() / pl.col("speedup")
    return rows.with_columns(standard_error=error).filter(pl.col("measurements") > 1)


def find_pairs(kernels: pl.DataFrame, rule: CloseDefinition) -> pl.DataFrame:
    """Find all pairs that a definition allows, by pair id.

    Args:
        kernels: of one problem and reference, with ``goal_bin``, ``parent_kernel_id`` and
            ``standard_error``.
        rule: the definition.

    Returns:
        ``row_id``, ``ratio`` (second / first) and ``noise``, and the columns of both kernels as
        ``first_...`` and ``second_...``. A hash of the two ids says which is the first.
    """
    kernels = kernels.sort("kernel_id")
    low, high = np.triu_indices(len(kernels), 1)
    goals, searches = kernels["goal_bin"].to_numpy(), kernels["search_id"].to_numpy()
    parents = kernels["parent_kernel_id"].fill_null("").to_numpy()
    siblings = (searches[low] == searches[high]) & (parents[low] == parents[high])
    alike = (goals[low] == goals[high]) | (siblings & (parents[low] != ""))
    low, high = low[alike], high[alike]
    speedups, errors = kernels["speedup"].to_numpy(), kernels["standard_error"].to_numpy()
    slower, faster = np.sort([speedups[low], speedups[high]], axis=0)
    ratio, noise = faster / slower, np.hypot(errors[low], errors[high])
    fits = (rule.closest <= ratio) & (ratio <= rule.farthest)
    fits &= ratio - 1 >= rule.standard_errors * noise
    names = kernels["kernel_id"].to_list()
    pairs = [(i, j) for i, j in zip(low[fits].tolist(), high[fits].tolist(), strict=True)]
    ids = [pair_id(rule.selection_key, names[i], names[j]) for i, j in pairs]
    # The last digit of the id knows nothing of the speedups.
    pairs = [
        pair[:: 1 if int(name[-1], 16) % 2 else -1] for name, pair in zip(ids, pairs, strict=True)
    ]
    sides = [
        kernels[[pair[side] for pair in pairs]].select(pl.col(_COLUMNS).name.prefix(f"{name}_"))
        for side, name in enumerate(("first", "second"))
    ]
    rows = pl.concat(sides, how="horizontal").with_columns(
        pl.Series("row_id", ids, pl.String),
        pl.Series("noise", noise[fits], pl.Float64),
        ratio=pl.col("second_speedup") / pl.col("first_speedup"),
    )
    return rows.sort("row_id")


def draw_pairs(
    pairs: dict[str, pl.DataFrame], classes: dict[str, str], rule: CloseDefinition
) -> list[str]:
    """Draw pairs, the tasks in turn; return their ids.

    Args:
        pairs: pairs by task, those to be taken first in front.
        classes: class of near copies of every kernel.
        rule: the definition.
    """
    uses: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()

    def next_pairs(rows: pl.DataFrame) -> Iterator[str]:
        columns = ("row_id", "first_kernel_id", "second_kernel_id")
        for row_id, *kernels in rows.select(columns).iter_rows():
            both = tuple(sorted(classes.get(name, name) for name in kernels))
            if both not in seen and all(uses[name] < rule.pairs_per_program for name in kernels):
                seen.add(both)
                uses.update(kernels)
                yield row_id

    turns = zip_longest(*(next_pairs(rows) for _, rows in sorted(pairs.items())))
    drawn: list[str] = []
    while len(drawn) < rule.pairs and (turn := next(turns, None)) is not None:
        drawn += [row_id for row_id in turn if row_id is not None]
    return drawn[: rule.pairs]


def select_close(
    split: SplitSpec, tables: ArchiveTables, rule: CloseDefinition, *, gpu: str | None = None
) -> Selection:
    """Select the close pairs (docs/splits.md); rows stand in the order of a hash of their ids.

    Raises:
        UsageError: the GPU asked for has no kernel here.
        AmbiguousGpuError: the GPU must be named.
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("CloseDefinition", canonical_definition(split, tables))
    kernels = with_reasons(tables, rule, tables.kernels("test"))
    told = tables.read("kernels", ["kernel_id", "goal_bin", "parent_kernel_id"], "test")
    kernels = kernels.join(told.unique("kernel_id", keep="last"), on="kernel_id")
    no_goal = pl.when(pl.col("goal_bin").is_null()).then(pl.lit("no_goal"))
    kernels = kernels.with_columns(reason=pl.coalesce("reason", no_goal))
    dropped = count_values(kernels["reason"].drop_nulls())
    allowed = kernels.filter(pl.col("reason").is_null())
    per_gpu = count_values(allowed["gpu"])
    chosen_gpu = choose_gpu(per_gpu, rule.gpu, gpu)
    allowed = standard_errors(tables, allowed.filter(pl.col("gpu") == (chosen_gpu or "")))
    empty = find_pairs(allowed.head(0), rule)
    pairs: dict[str, pl.DataFrame] = {}
    classes: dict[str, str] = {}
    for (problem,), group in allowed.group_by("problem"):
        if rule.near_copy is not None:
            sets = read_token_sets(tables, group)
            near = near_training(tables, group, sets, rule.near_copy)
            group = group.filter(~pl.col("kernel_id").is_in(near))  # noqa: PLW2901
            classes |= near_copy_classes(list(sets.values()), rule.near_copy)
        parts = [find_pairs(part, rule) for part in group.partition_by("reference_id")]
        pairs[str(problem)] = pl.concat([empty, *parts]).sort("row_id")
    drawn = draw_pairs(pairs, classes, rule)
    rows = pl.concat([empty, *pairs.values()]).filter(pl.col("row_id").is_in(drawn))
    rows = rows.with_columns(
        task="second_problem",
        gpu="second_gpu",
        search_id="second_search_id",
        anchor_program="first_program_id",
        anchor_token="first_token_id",
        candidate_program="second_program_id",
        candidate_token="second_token_id",
    )
    labelled, counts = label_rows(split, rows, rule.scheme)
    facts: dict[str, Any] = {
        "available": {problem: len(found) for problem, found in sorted(pairs.items())},
        "excluded": dropped,
        "programs": len({*rows["first_kernel_id"], *rows["second_kernel_id"]}),
    }
    return Selection(
        split=split,
        rows=labelled,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(
            split, rule, standard, gpu=gpu_part(rule, chosen_gpu, standard, per_gpu)
        ),
        parameters={**msgspec.to_builtins(rule), "preferred_gpu": rule.gpu, "gpu": chosen_gpu},
        counts=counts | facts,
    )
