"""Parent-child edges of searches: which evaluations were made by editing which other one, and both ran."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.selected import Side, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow as pa

#: Columns of ``evaluations`` that edges are found from.
EDGE_COLUMNS: Final = (
    "evaluation_id", "kernel_id", "search_id", "node_id", "parent_node_id", "parent_distance", "is_root", "outcome",
    "speedup", "excluded", "step", "source_line",
)  # fmt: skip


class Kernel(msgspec.Struct, frozen=True, gc=False):
    """What selection knows of a kernel; the text stays where it is."""

    kernel_id: str
    program_id: str
    token_id: str
    problem: str
    family: str
    gpu: str
    reference_id: str
    search_id: str
    speedup: float
    language: str
    n_measurements: int
    speedup_min: float
    speedup_max: float
    flags: tuple[str, ...]

    @property
    def side(self) -> Side:
        """The kernel as one side of a row."""
        return Side(self.program_id, self.token_id, self.kernel_id)

    @property
    def place(self) -> dict[str, str]:
        """Columns of a row that say where the kernel comes from."""
        return {"problem": self.problem, "family": self.family, "gpu": self.gpu, "search_id": self.search_id}


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge: the edited kernel, what came of it, the search, and the ratio of its own two measurements.

    ``own_ratio`` is speedup(child) / speedup(parent) of these two evaluations alone, x; ``None`` where that is no number.
    """

    parent: Kernel
    child: Kernel
    search_id: str
    own_ratio: float | None

    @property
    def ratio(self) -> float:
        """speedup(child) / speedup(parent), x, from the kernels' speedups: the medians over all their measurements."""
        return self.child.speedup / self.parent.speedup


def speedup_ratio(child: float, parent: float) -> float | None:
    """Ratio of two speedups, both above 0, x; ``None`` where it is too large or too small for a number of 64 bits.

    >>> speedup_ratio(3.0, 2.0), speedup_ratio(1e300, 1e-320), speedup_ratio(1e-320, 1e300)
    (1.5, None, None)
    """
    ratio = child / parent
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def kernels_by_id(table: pa.Table) -> dict[str, Kernel]:
    """Kernels of a table by id; of equal values in a column all have the same object, not a copy of their own."""
    columns = [table[name].to_pylist() for name in Kernel.__struct_fields__]
    columns[-1] = map(tuple, columns[-1])
    columns = [[*map({}.setdefault, values, values)] for values in map(list, columns)]
    kernels = (Kernel(*values) for values in zip(*columns, strict=True))
    return {kernel.kernel_id: kernel for kernel in kernels}


def _with_parents(evaluations: pa.Table, searches: Collection[str]) -> pl.DataFrame:
    """Evaluations of these searches in their order, each with its parent and, where the two are no edge already, the reason."""
    rows = frame(evaluations.select(EDGE_COLUMNS)).filter(pl.col("search_id").is_in(searches))
    rows = rows.sort("search_id", pl.col("step", "source_line").fill_null(0), "evaluation_id")
    of_parent = pl.col("kernel_id", "outcome", "excluded", "speedup").name.prefix("parent_")
    parents = rows.select("search_id", of_parent, parent_node_id="node_id", parent_distance=pl.lit(1, pl.Int32))
    parents = parents.unique(["search_id", "parent_node_id"], keep="last")
    both = rows.join(parents, on=["search_id", "parent_node_id", "parent_distance"], how="left", maintain_order="left")
    reasons = [pl.col("excluded"), pl.col("parent_excluded")]
    allowed = pl.all_horizontal(reason.is_null() | reason.is_in(OVERRULED) for reason in reasons)
    why = (
        pl.when(pl.col("is_root") | pl.col("parent_node_id").is_null())
        .then(pl.lit("root"))
        .when(pl.col("outcome") != "success")
        .then(pl.lit("child_failed"))
        .when(pl.col("parent_outcome").is_null())
        .then(pl.lit("parent_not_in_log"))
        .when(pl.col("parent_outcome") != "success")
        .then(pl.lit("parent_failed"))
        .when(allowed & (reasons[0].is_null() != reasons[1].is_null()))
        .then(pl.lit("overruled_on_one_side"))
        .when(~allowed)
        .then(pl.lit("excluded"))
    )
    return both.with_columns(why=why)


def find_edges(
    evaluations: pa.Table,
    searches: Collection[str],
    kernels: dict[str, Kernel],
    *,
    keep: Callable[[Kernel, Kernel], str | None] | None = None,
) -> tuple[list[Edge], Counter[str]]:
    """Edges of these searches in which parent and child both ran, and why the other ones are none.

    An edge is one evaluation with its direct parent (``parent_distance`` 1: the log still has it), both successful and
    neither excluded, both kernels in the archive, of the same problem and GPU, timed against the same reference, whose text
    need not be known: of two programs of one search the ratio of their speedups is the ratio of their times.
    An edge from a program to itself is none, and the same two programs give one edge, in whatever direction they come
    again: the first by search id, then in the order of the log. Two speedups whose ratio is no number are damaged
    measurements: they give no edge either.

    Where another builder has measured both programs again, and these measurements alone count, the edge stays, with
    their ratio; where it has measured one of them, the two speedups come from different ways of measuring, and there is no edge.

    ``keep`` is a further rule: the reason why an edge does not count, or ``None``.

    Returns:
        Edges in the order of search and evaluation, and counts of the evaluations that gave none.
    """
    rows = _with_parents(evaluations, searches)
    dropped: Counter[str] = Counter(rows["why"].drop_nulls())
    columns = ("search_id", "kernel_id", "speedup", "parent_kernel_id", "parent_speedup")
    edges: list[Edge] = []
    seen: set[frozenset[str]] = set()
    for search, child_id, speedup, parent_id, parent_speedup in (
        rows.filter(pl.col("why").is_null()).select(columns).iter_rows()
    ):
        child, parent = kernels.get(child_id), kernels.get(parent_id)
        if child is None or parent is None:
            dropped["not_in_kernels"] += 1
        elif child_id == parent_id:
            dropped["self_edge"] += 1
        elif (child.problem, child.gpu) != (parent.problem, parent.gpu):
            dropped["other_problem_or_gpu"] += 1
        elif child.reference_id != parent.reference_id:
            dropped["cross_reference"] += 1
        elif speedup_ratio(child.speedup, parent.speedup) is None:
            dropped["ratio_out_of_range"] += 1
        elif keep is not None and (reason := keep(parent, child)) is not None:
            dropped[reason] += 1
        elif {child_id, parent_id} in seen:
            dropped["repeat"] += 1
        else:
            seen.add(frozenset((child_id, parent_id)))
            edges.append(Edge(parent, child, search, speedup_ratio(speedup, parent_speedup)))
    return edges, dropped
