"""Discovery pairs: parent-child edges of search trees, g = speedup(child) / speedup(parent).

g is made from the kernels' speedups, which are medians over all measurements of a program, not from
the two evaluations of the edge. So every number of the table can be recomputed from ``kernels``
alone, and the same two programs have one g wherever they meet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.definitions import DiscoveryDefinition
from kernel_archive.selection.selected import ChosenRows, with_pair_ids
from kernel_archive.selection.tables import ArchiveTables, has_flag, leave_out, pair_key
from kernel_archive.splits import SPLITS

#: Columns of ``evaluations`` that edges are found from.
EDGE_COLUMNS: Final = (
    *("evaluation_id", "kernel_id", "search_id", "node_id", "parent_node_id", "parent_distance"),
    *("is_root", "outcome", "excluded", "step", "source_line"),
)
#: Columns of kernels that edges are made from.
EDGE_ENDS: Final = (
    *("kernel_id", "program_id", "token_id", "reference_id", "problem", "family", "gpu"),
    *("search_id", "speedup"),
)


def find_edges(
    evaluations: pl.DataFrame, kernels: pl.DataFrame, refuse: Mapping[str, pl.Expr]
) -> tuple[pl.DataFrame, Counter[str]]:
    """Find the edges in which parent and child both ran; count why other evaluations give none.

    An edge is one evaluation with its direct parent (``parent_distance`` 1: the log still has it),
    both successful and neither excluded, both kernels in the archive, of the same problem and GPU,
    timed against the same reference, whose text need not be known. An edge from a program to itself
    does not count. The same two programs give one edge, in either direction: the first by search
    id, then in the order of the log. Where another builder has measured both programs again, the
    edge stays with their ratio; where it has measured one of them, there is no edge.

    Args:
        evaluations: of the searches that count, with :data:`EDGE_COLUMNS`.
        kernels: that count.
        refuse: further reasons against an edge, as conditions on its columns.

    Returns:
        Edges in the order of search and evaluation, with ``search_id``, ``ratio`` (child / parent
        speedup of the kernels) and the columns of both kernels, as ``parent_`` and ``child_``
        columns; and counts of the evaluations that gave none.
    """
    logged = evaluations.select(EDGE_COLUMNS).sort(
        "search_id", pl.col("step", "source_line").fill_null(0), "evaluation_id"
    )
    parents = logged.select(
        "search_id",
        pl.col("kernel_id", "outcome", "excluded").name.prefix("parent_"),
        parent_node_id="node_id",
        parent_distance=pl.lit(1, pl.Int32),
    ).unique(["search_id", "parent_node_id"], keep="last")
    keys = ["search_id", "parent_node_id", "parent_distance"]
    rows = logged.rename({"kernel_id": "child_kernel_id"})
    rows = rows.join(parents, on=keys, how="left", maintain_order="left")
    child_excluded, parent_excluded = pl.col("excluded"), pl.col("parent_excluded")
    allowed = pl.all_horizontal(
        each.is_null() | each.is_in(list(OVERRULED)) for each in (child_excluded, parent_excluded)
    )
    reasons_of_evaluation = {
        "root": pl.col("is_root") | pl.col("parent_node_id").is_null(),
        "child_failed": pl.col("outcome") != "success",
        "parent_not_in_log": pl.col("parent_outcome").is_null(),
        "parent_failed": pl.col("parent_outcome") != "success",
        "overruled_on_one_side": allowed & (child_excluded.is_null() != parent_excluded.is_null()),
        "excluded": ~allowed,
    }
    dropped: Counter[str] = Counter()
    rows = leave_out(rows, reasons_of_evaluation, dropped)  # before both kernels are joined
    for side in ("child", "parent"):
        columns = kernels.select(pl.all().name.prefix(f"{side}_"))
        rows = rows.join(columns, on=f"{side}_kernel_id", how="left", maintain_order="left")
    ratio = pl.col("child_speedup") / pl.col("parent_speedup")

    def differ(column: str) -> pl.Expr:
        return pl.col(f"child_{column}").ne_missing(pl.col(f"parent_{column}"))

    reasons_of_edge = {
        "not_in_kernels": pl.col("child_speedup").is_null() | pl.col("parent_speedup").is_null(),
        "self_edge": ~differ("kernel_id"),
        "other_problem_or_gpu": differ("problem") | differ("gpu"),
        "cross_reference": differ("reference_id"),
        "ratio_out_of_range": ~(ratio.is_finite() & (ratio > 0)),
        **refuse,
    }
    rows = leave_out(rows, reasons_of_edge, dropped)
    edges = rows.filter(pair_key("child_kernel_id", "parent_kernel_id").is_first_distinct())
    if len(edges) < len(rows):
        dropped["repeat"] += len(rows) - len(edges)
    return edges.select("search_id", pl.col("^(parent|child)_.*$"), ratio=ratio), dropped


#: Significant digits of g_cases: logarithms may differ in the last bits between machines,
#: measurements mean far fewer.
DIGITS: Final = 12
#: exp of more than this, or of its negative, is beyond 64-bit floats.
_LARGEST_LOG: Final = 700


def case_times(cases: Sequence[dict[str, Any]] | None) -> dict[str, float]:
    """Return the times of a kernel's cases by their shapes.

    Empty where a case has no time, or a shape stands twice.

    >>> case_times([{"shape": "a", "runtime_us": 8.0}, {"shape": None, "runtime_us": 2.0}])
    {'a': 8.0, '#1': 2.0}
    """
    times = {case["shape"] or f"#{i}": case["runtime_us"] for i, case in enumerate(cases or ())}
    timed = all(time is not None and 0 < time < math.inf for time in times.values())
    return times if timed and len(times) == len(cases or ()) else {}


def case_ratio(parent: dict[str, float], child: dict[str, float]) -> float | None:
    """Return the geometric mean over the cases of parent time / child time, x.

    ``None`` unless both have the same cases, and where the mean is too large or too small for a
    number.

    >>> case_ratio({"a": 8.0, "b": 4.0}, {"a": 4.0, "b": 2.0})
    2.0
    """
    if not parent or parent.keys() != child.keys():
        return None
    before, after = (math.fsum(map(math.log, times.values())) for times in (parent, child))
    mean = (before - after) / len(parent)
    return float(f"{math.exp(mean):.{DIGITS}g}") if abs(mean) < _LARGEST_LOG else None


def cutoff_counts(
    rows: pl.DataFrame, value: str, cutoffs: Sequence[float]
) -> dict[str, dict[str, int]]:
    """Count pairs and positives by family and in all: ``{family: {rows, "1.25": n, ...}}``."""
    families = pl.concat([rows.select(value, "family"), rows.select(value, family=pl.lit("all"))])
    positives = [(pl.col(value) >= cutoff).sum().alias(f"{cutoff:g}") for cutoff in cutoffs]
    counts = families.group_by("family").agg(pl.len().alias("rows"), *positives).sort("family")
    return {count.pop("family"): count for count in counts.to_dicts()}


def select_discovery(tables: ArchiveTables, definition: DiscoveryDefinition) -> ChosenRows:
    """Select the discovery pairs (docs/splits.md); ``row_id`` is made from the two kernel ids."""
    is_counted = tables.of_searches(
        pl.col("role").is_in(definition.roles),
        pl.col("generation_method").is_in(definition.methods),
        definition.allows_builder(tables),
    )
    evaluations = tables.read("evaluations", EDGE_COLUMNS, where=is_counted)
    flags = [has_flag(definition.exclude_flags, f"{side}_flags") for side in ("parent", "child")]
    refuse = {
        "flagged": pl.any_horizontal(flags),
        "measured_too_seldom": pl.col("child_n_measurements") < definition.min_measurements,
    }
    kernels = tables.kernels(columns=[*EDGE_ENDS, "language", "flags", "n_measurements"])
    edges, dropped = find_edges(evaluations, kernels, refuse)
    used = {*edges["parent_kernel_id"], *edges["child_kernel_id"]}
    times: dict[str, dict[str, float]] = {}
    for _, group in tables.archive.row_groups("kernels", ["kernel_id", "cases"]):
        names = group["kernel_id"].to_pylist()
        is_used = pa.array([name in used for name in names], pa.bool_())
        cases = group.filter(is_used).to_pylist()
        times |= {row["kernel_id"]: case_times(row["cases"]) for row in cases}
    pairs = edges.select("parent_kernel_id", "child_kernel_id").iter_rows()
    ratios = [case_ratio(times[parent], times[child]) for parent, child in pairs]
    rows = with_pair_ids(edges, "discovery", "parent_kernel_id", "child_kernel_id").with_columns(
        pl.Series("g_cases", ratios, pl.Float64),
        g="ratio",
        problem="child_problem",
        family="child_family",
        gpu="child_gpu",
        anchor_program="parent_program_id",
        anchor_token="parent_token_id",
        candidate_program="child_program_id",
        candidate_token="child_token_id",
    )
    cutoffs = cutoff_counts(rows, "g", SPLITS["discovery"].cutoffs)
    return ChosenRows(rows, {"cutoffs": cutoffs, "excluded": dict(sorted(dropped.items()))})
