"""Discovery pairs: parent-child edges of search trees, g = speedup(child) / speedup(parent).

g is made from the kernels' speedups, which are medians over all measurements of a program, not from
the two evaluations of the edge. So every number of the table can be recomputed from ``kernels``
alone, and the same two programs have one g wherever they meet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kernel_archive.selection.edges import EDGE_COLUMNS, find_edges
from kernel_archive.selection.selected import Choice, with_pair_ids
from kernel_archive.selection.tables import has_flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.selection.definitions import DiscoveryDefinition
    from kernel_archive.selection.tables import ArchiveTables

#: Significant digits of g_cases: logarithms may differ in the last bits between machines,
#: measurements mean far fewer.
DIGITS: Final = 12
#: exp of more than this, or of its negative, is no number of 64 bits.
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


def select_discovery(tables: ArchiveTables, rule: DiscoveryDefinition) -> Choice:
    """Select the discovery pairs (docs/splits.md); ``row_id`` is made from the two kernel ids."""
    searches = tables.searches_with(*rule.roles, natural=rule.natural, builders=rule.builders)
    searches = searches.filter(
        pl.col("generation_method").is_in(rule.methods),
        pl.col("finished").ne_missing(pl.lit(value=False)) | rule.unfinished,
    )
    evaluations = tables.read("evaluations", EDGE_COLUMNS).filter(
        pl.col("search_id").is_in(searches["search_id"].implode())
    )
    flags = [has_flag(rule.exclude_flags, f"{side}_flags") for side in ("parent", "child")]
    edges, dropped = find_edges(
        evaluations, tables.kernels(), {"flagged": pl.any_horizontal(flags)}
    )
    used = pl.concat([edges["parent_kernel_id"], edges["child_kernel_id"]]).implode()
    cases = tables.read("kernels", ["kernel_id", "cases"])
    cases = cases.filter(pl.col("kernel_id").is_in(used))
    times = {name: case_times(listed) for name, listed in cases.iter_rows()}
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
    cutoffs = cutoff_counts(rows, "g", rule.cutoffs)
    return Choice(rows, {"cutoffs": cutoffs, "excluded": dict(sorted(dropped.items()))})
