"""Parent-child edges of searches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import polars as pl

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.tables import pair_key, without

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Columns of ``evaluations`` that edges are found from.
EDGE_COLUMNS: Final = (
    *("evaluation_id", "kernel_id", "search_id", "node_id", "parent_node_id", "parent_distance"),
    *("is_root", "outcome", "excluded", "step", "source_line"),
)


def _with_parents(evaluations: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Pair each evaluation with its direct parent, in the order of search and log."""
    rows = evaluations.select(EDGE_COLUMNS).sort(
        "search_id", pl.col("step", "source_line").fill_null(0), "evaluation_id"
    )
    parents = rows.select(
        "search_id",
        pl.col("kernel_id", "outcome", "excluded").name.prefix("parent_"),
        parent_node_id="node_id",
        parent_distance=pl.lit(1, pl.Int32),
    ).unique(["search_id", "parent_node_id"], keep="last")
    keys = ["search_id", "parent_node_id", "parent_distance"]
    both = rows.join(parents, on=keys, how="left", maintain_order="left")
    own, parent = pl.col("excluded"), pl.col("parent_excluded")
    allowed = pl.all_horizontal(e.is_null() | e.is_in(list(OVERRULED)) for e in (own, parent))
    reasons = {
        "root": pl.col("is_root") | pl.col("parent_node_id").is_null(),
        "child_failed": pl.col("outcome") != "success",
        "parent_not_in_log": pl.col("parent_outcome").is_null(),
        "parent_failed": pl.col("parent_outcome") != "success",
        "overruled_on_one_side": allowed & (own.is_null() != parent.is_null()),
        "excluded": ~allowed,
    }
    both = without(both, reasons, dropped)
    return both.select("search_id", "parent_kernel_id", child_kernel_id="kernel_id")


def find_edges(
    evaluations: pl.DataFrame, kernels: pl.DataFrame, refuse: Mapping[str, pl.Expr]
) -> tuple[pl.DataFrame, Counter[str]]:
    """Find the edges in which parent and child both ran, and count why other evaluations are none.

    An edge is one evaluation with its direct parent (``parent_distance`` 1: the log still has it),
    both successful and neither excluded, both kernels in the archive, of the same problem and GPU,
    timed against the same reference, whose text need not be known. An edge from a program to itself
    is none. The same two programs give one edge, in either direction: the first by search id, then
    in the order of the log. Where another builder has measured both programs again, the edge stays
    with their ratio; where it has measured one of them, there is no edge.

    Args:
        evaluations: of the searches that count, with :data:`EDGE_COLUMNS`.
        kernels: that count.
        refuse: further reasons against an edge, as conditions on its columns.

    Returns:
        Edges in the order of search and evaluation, with ``search_id``, ``ratio`` (child / parent
        speedup of the kernels) and the columns of both kernels, as ``parent_`` and ``child_``
        columns; and counts of the evaluations that gave none.
    """
    dropped: Counter[str] = Counter()
    rows = _with_parents(evaluations, dropped)
    for side in ("child", "parent"):
        columns = kernels.select(pl.all().name.prefix(f"{side}_"))
        rows = rows.join(columns, on=f"{side}_kernel_id", how="left", maintain_order="left")
    rows = rows.with_columns(ratio=pl.col("child_speedup") / pl.col("parent_speedup"))

    def differ(column: str) -> pl.Expr:
        return pl.col(f"child_{column}").ne_missing(pl.col(f"parent_{column}"))

    reasons = {
        "not_in_kernels": pl.col("child_speedup").is_null() | pl.col("parent_speedup").is_null(),
        "self_edge": ~differ("kernel_id"),
        "other_problem_or_gpu": differ("problem") | differ("gpu"),
        "cross_reference": differ("reference_id"),
        "ratio_out_of_range": ~(pl.col("ratio").is_finite() & (pl.col("ratio") > 0)),
        **refuse,
    }
    rows = without(rows, reasons, dropped)
    edges = rows.filter(pair_key("child_kernel_id", "parent_kernel_id").is_first_distinct())
    if len(edges) < len(rows):
        dropped["repeat"] += len(rows) - len(edges)
    return edges, dropped
