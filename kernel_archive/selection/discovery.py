"""Discovery pairs.

The parent-child edges of search trees, with g = speedup(child) / speedup(parent).

g is made from the kernels' speedups, which are medians over all measurements of a program, not from
the two evaluations of the edge. So every number of the table can be recomputed from ``kernels``
alone, and the same two programs have one g wherever they meet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import polars as pl

from kernel_archive.selection.definitions import (
    DiscoveryDefinition,
    canonical_definition,
    variant_name,
)
from kernel_archive.selection.edges import EDGE_COLUMNS, find_edges
from kernel_archive.selection.selected import Selection, label_rows, pair_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec

#: Significant digits of g_cases: logarithms may differ in the last bits between machines,
#: measurements mean far fewer.
DIGITS: Final = 12
#: exp of more than this, or of its negative, is no number of 64 bits.
_LARGEST_LOG: Final = 700

CaseSum = tuple[tuple[str, ...], float]


def case_sum(cases: Sequence[dict[str, Any]] | None) -> CaseSum | None:
    """Return the shapes of a kernel's cases (sorted) and the sum of the logarithms of their times.

    ``None`` without cases, with a case that has no time, or with a shape twice.
    """
    shapes = [f"#{i}" if c["shape"] is None else c["shape"] for i, c in enumerate(cases or ())]
    times = [case["runtime_us"] for case in cases or ()]
    timed = all(time is not None and 0 < time < math.inf for time in times)
    if not shapes or not timed or len(set(shapes)) < len(shapes):
        return None
    return tuple(sorted(shapes)), math.fsum(map(math.log, times))


def case_ratio(parent: CaseSum | None, child: CaseSum | None) -> float | None:
    """Return the geometric mean over the cases of parent time / child time, x.

    ``None`` unless both have the same cases, and where the mean is too large or too small for a
    number.

    >>> case_ratio((("a", "b"), math.log(8.0)), (("a", "b"), math.log(2.0)))
    2.0
    """
    if parent is None or child is None or parent[0] != child[0]:
        return None
    mean = (parent[1] - child[1]) / len(parent[0])
    return float(f"{math.exp(mean):.{DIGITS}g}") if abs(mean) < _LARGEST_LOG else None


def cutoff_counts(
    ratios: Iterable[float], families: Iterable[str], cutoffs: Sequence[float]
) -> dict[str, Any]:
    """Count pairs and positives by family and in all: ``{family: {rows, "1.25": n, ...}}``."""
    counts: dict[str, dict[str, int]] = {}
    for ratio, family in zip(ratios, families, strict=True):
        for name in ("all", family):
            count = counts.setdefault(name, {"rows": 0, **{f"{c:g}": 0 for c in cutoffs}})
            count["rows"] += 1
            for cutoff in cutoffs:
                count[f"{cutoff:g}"] += ratio >= cutoff
    return dict(sorted(counts.items()))


def has_flag(flags: Sequence[str], column: str = "flags") -> pl.Expr:
    """Whether a list of audit flags holds one of these."""
    return (
        pl.col(column).list.eval(pl.element().is_in(list(flags))).list.any().fill_null(value=False)
    )


def select_discovery(
    split: SplitSpec, tables: ArchiveTables, rule: DiscoveryDefinition
) -> Selection:
    """Select the discovery pairs (docs/splits.md).

    ``row_id`` is made from the two kernel ids; rows stand in the order of a hash of it.

    Raises:
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("DiscoveryDefinition", canonical_definition(split, tables))
    searches = tables.searches_with(*rule.roles, natural=rule.natural, builders=rule.builders)
    searches = searches.filter(pl.col("generation_method").is_in(rule.methods))
    if not rule.unfinished:
        searches = searches.filter(pl.col("finished").ne_missing(pl.lit(value=False)))
    evaluations = tables.read("evaluations", EDGE_COLUMNS).filter(
        pl.col("search_id").is_in(searches["search_id"].to_list())
    )
    flags = [has_flag(rule.exclude_flags, f"{side}_flags") for side in ("parent", "child")]
    edges, dropped = find_edges(
        evaluations, tables.kernels(), {"flagged": pl.any_horizontal(flags)}
    )
    rows = _rows(split, edges, _case_sums(tables, edges))
    stopped = searches.filter(~pl.col("finished"))["search_id"].to_list()
    facts: dict[str, Any] = {
        "cutoffs": cutoff_counts(rows[split.value], rows["family"], rule.cutoffs),
        "excluded": dict(sorted(dropped.items())),
        "searches": {
            "with_edges": rows["search_id"].n_unique(),
            "edges_of_stopped": rows["search_id"].is_in(stopped).sum(),
        },
        "near_duplicates": (rows["anchor_token"] == rows["candidate_token"]).sum(),
    }
    labelled, counts = label_rows(split, rows, rule.scheme)
    return Selection(
        split=split,
        rows=labelled,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(split, rule, standard),
        parameters=msgspec.to_builtins(rule),
        counts=counts | facts,
    )


def _case_sums(tables: ArchiveTables, edges: pl.DataFrame) -> dict[str, CaseSum | None]:
    """Sum the case times of the kernels of edges, by kernel id."""
    used = pl.concat([edges["parent_kernel_id"], edges["child_kernel_id"]]).unique().to_list()
    rows = tables.read("kernels", ["kernel_id", "cases"]).filter(pl.col("kernel_id").is_in(used))
    return {name: case_sum(cases) for name, cases in rows.iter_rows()}


def _rows(split: SplitSpec, edges: pl.DataFrame, sums: dict[str, CaseSum | None]) -> pl.DataFrame:
    """Turn edges into rows of the table."""
    pairs = list(edges.select("parent_kernel_id", "child_kernel_id").iter_rows())
    return edges.with_columns(
        pl.Series("row_id", [pair_id("discovery", *pair) for pair in pairs], pl.String),
        pl.Series("g_cases", [case_ratio(sums.get(p), sums.get(c)) for p, c in pairs], pl.Float64),
        pl.col("ratio").alias(split.value),
        problem="child_problem",
        family="child_family",
        gpu="child_gpu",
        anchor_program="parent_program_id",
        anchor_token="parent_token_id",
        candidate_program="child_program_id",
        candidate_token="child_token_id",
    )
