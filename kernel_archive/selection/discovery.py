"""Discovery pairs: the parent-child edges of search trees, with g = speedup(child) / speedup(parent).

g is made from the kernels' speedups, which are medians over all measurements of a program, not from the two
evaluations of the edge: every number of the table can then be recomputed from ``kernels`` alone, the same two programs
have one g wherever they meet, and a slow moment of one evaluation's reference does not decide a label. How far the
edges' own measurements differ from that is counted in the facts.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.selection.definitions import DiscoveryDefinition, canonical_definition, variant_name
from kernel_archive.selection.edges import Kernel, find_edges, kernels_by_id
from kernel_archive.selection.selected import Selection, counted, pair_id, row_table, select, split_row, together

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Split

#: Significant digits of g_cases: logarithms may differ in the last bits between machines, measurements mean far fewer.
DIGITS: Final = 12
#: exp of more than this, or of its negative, is no number of 64 bits.
_LARGEST_LOG: Final = 700

CaseSum = tuple[tuple[str, ...], float]


def case_sums(kernel_ids: Sequence[str], cases: pa.ChunkedArray) -> dict[str, CaseSum]:
    """Kernel id -> shapes of its cases (sorted) and the sum of the logarithms of their times.

    Kernels without cases, with a case that has no time, or with a shape twice are left out.
    """
    found: dict[str, CaseSum] = {}
    for name, listed in zip(kernel_ids, cases.to_pylist(), strict=True):
        shapes = [f"#{i}" if case["shape"] is None else case["shape"] for i, case in enumerate(listed or ())]
        times = [case["runtime_us"] for case in listed or ()]
        timed = all(time is not None and 0 < time < math.inf for time in times)
        if shapes and timed and len(set(shapes)) == len(shapes):
            found[name] = (tuple(sorted(shapes)), math.fsum(map(math.log, times)))
    return found


def case_ratio(parent: CaseSum | None, child: CaseSum | None) -> float | None:
    """Geometric mean over the cases of parent time / child time, x; ``None`` unless both have the same cases.

    Also ``None`` where the mean is too large or too small for a number.

    >>> case_ratio((("a", "b"), math.log(8.0)), (("a", "b"), math.log(2.0)))
    2.0
    """
    if parent is None or child is None or parent[0] != child[0]:
        return None
    mean = (parent[1] - child[1]) / len(parent[0])
    return float(f"{math.exp(mean):.{DIGITS}g}") if abs(mean) < _LARGEST_LOG else None


def cutoff_counts(ratios: Iterable[float], families: Iterable[str], cutoffs: Sequence[float]) -> dict[str, Any]:
    """Pairs and positives (g at or above a cutoff) per family and in all: ``{family: {rows, "1.25": n, ...}}``."""
    found: dict[str, dict[str, int]] = {}
    for ratio, family in zip(ratios, families, strict=True):
        for name in ("all", family):
            counts = found.setdefault(name, {"rows": 0, **{f"{c:g}": 0 for c in cutoffs}})
            counts["rows"] += 1
            for cutoff in cutoffs:
                counts[f"{cutoff:g}"] += ratio >= cutoff
    return dict(sorted(found.items()))


def _agreement(values: Sequence[float], others: Sequence[float | None], scheme: Scheme) -> dict[str, Any]:
    """How far a second measure of g is from g: in how many pairs there is one, their distance, and labels that differ."""
    both = [
        (a, b)
        for a, b in zip(values, others, strict=True)
        if b is not None and math.isfinite(a / b) and math.isfinite(b / a)
    ]
    if not both:
        return {"pairs": 0}
    a, b = np.array(both, np.float64).T
    factors = np.maximum(a / b, b / a)
    return {
        "pairs": len(both),
        "median_factor": round(float(np.median(factors)), 6),
        "p90_factor": round(float(np.quantile(factors, 0.9)), 6),
        "largest_factor": round(float(factors.max()), 6),
        "label_differences": int(np.count_nonzero(assign_bins(a, scheme) != assign_bins(b, scheme))),
    }


def select_discovery(split: Split, tables: ArchiveTables, rule: DiscoveryDefinition) -> Selection:
    """Select the discovery pairs (docs/splits.md).

    The edges of :func:`~kernel_archive.selection.edges.find_edges` in searches of the definition's methods and roles.
    ``row_id`` is made from the two kernel ids; rows are sorted by problem, GPU, search and row id, so that
    those of a search stand together.

    Raises:
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("DiscoveryDefinition", canonical_definition(split, tables))
    allowed = tables.searches_of(natural=rule.natural, builders=rule.builders)
    finished = {
        row["search_id"]: row["finished"]
        for row in tables.searches.to_pylist()
        if row["role"] in rule.roles
        and row["search_id"] in allowed
        and row["generation_method"] in rule.methods
        and (rule.unfinished or row["finished"] is not False)
    }
    dropped: Counter[str] = Counter()
    found = []
    for rows, without in tables.results(partial(_edges_of, split=split, rule=rule, searches=finished)):
        found.append(rows)
        dropped += without
    rows = together(found, split.task)
    ratios = rows[split.value].to_pylist()
    searches = counted(rows, "search_id")
    facts: dict[str, Any] = {
        "cutoffs": cutoff_counts(ratios, rows["family"].to_pylist(), rule.cutoffs),
        "excluded": dict(sorted(dropped.items())),
        "searches": {
            "with_edges": len(searches),
            "edges_of_stopped": sum(n for (search,), n in searches.items() if finished[search] is False),
        },
        "near_duplicates": pc.sum(pc.equal(rows["anchor_token"], rows["candidate_token"])).as_py() or 0,
        "own_measurements": _agreement(ratios, rows["own_ratio"].to_pylist(), rule.scheme),
        "case_times": _agreement(ratios, rows["g_cases"].to_pylist(), rule.scheme),
    }
    return select(
        split,
        rows,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(split, rule, standard),
        parameters=msgspec.to_builtins(rule),
        counts=facts,
    )


def _edges_of(
    tables: ArchiveTables, *, split: Split, rule: DiscoveryDefinition, searches: Collection[str]
) -> tuple[pa.Table, Counter[str]]:
    """The pairs of a part of the archive in their order, with the ratio of their own measurements, and why others are none."""
    flags = set(rule.exclude_flags)

    def keep(parent: Kernel, child: Kernel) -> str | None:
        return "flagged" if flags.intersection(parent.flags + child.flags) else None

    edges, dropped = find_edges(tables.evaluations, searches, kernels_by_id(tables.kernels), keep=keep)
    named = [(e, pair_id("discovery", e.parent.kernel_id, e.child.kernel_id)) for e in edges]
    named.sort(key=lambda item: (item[0].child.problem, item[0].child.gpu, item[0].search_id, item[1]))
    used = {k.kernel_id for e in edges for k in (e.parent, e.child)}
    narrow = tables.kernels.select(["kernel_id", "cases"])
    chosen = narrow.filter(pc.is_in(narrow["kernel_id"], pa.array(sorted(used), pa.string())))
    sums = case_sums(chosen["kernel_id"].to_pylist(), chosen["cases"])
    rows = [
        split_row(
            split,
            e.parent.side,
            e.child.side,
            e.ratio,
            row_id=row_id,
            own_ratio=e.own_ratio,
            **{**e.child.place, "search_id": e.search_id},
            g_cases=case_ratio(sums.get(e.parent.kernel_id), sums.get(e.child.kernel_id)),
            parent_speedup=e.parent.speedup,
            parent_language=e.parent.language,
            child_language=e.child.language,
        )
        for e, row_id in named
    ]
    return row_table(split, rows, own_ratio=pa.float64()), dropped
