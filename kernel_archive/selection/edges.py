"""Parent-child edges of searches: which evaluations were made by editing which other one, and both ran."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.selected import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

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
    """One edge: the two kernels, the search, and the ratio of its own two measurements.

    Attributes:
        parent: the edited kernel.
        child: what came of it.
        search_id: the search.
        own_ratio: speedup(child) / speedup(parent) of the two evaluations of this edge alone, x; ``None`` where that is
            no number.
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


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; where few texts repeat, every row has the same object, not a copy of its own."""
    import pyarrow.types as pt

    found: list[Any] = []
    if not pt.is_string(column.type):
        found.extend(column.to_pylist())
        return found
    for chunk in column.dictionary_encode().chunks:
        names = [*chunk.dictionary.to_pylist(), None]
        found += [names[i] for i in chunk.indices.fill_null(len(names) - 1).to_pylist()]
    return found


def kernels_by_id(*tables: pa.Table) -> dict[str, Kernel]:
    """Kernels of these tables by id."""
    names = Kernel.__struct_fields__
    found: dict[str, Kernel] = {}
    for table in tables:
        columns = [_values(table.column(name)) for name in names]
        columns[-1] = [tuple(flags) for flags in columns[-1]]
        for values in zip(*columns, strict=True):
            found[values[0]] = Kernel(*values)
    return found


def _columns(evaluations: pa.Table, searches: Collection[str]) -> Iterable[tuple[Any, ...]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = evaluations.filter(pc.is_in(evaluations["search_id"], pa.array(sorted(searches), pa.string())))
    return zip(*(_values(chosen.column(name)) for name in EDGE_COLUMNS), strict=True)


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
    rows = sorted(_columns(evaluations, searches), key=lambda r: (r[2], r[10] or 0, r[11] or 0, r[0]))
    nodes = {(row[2], row[3]): row for row in rows}
    dropped: Counter[str] = Counter()
    edges: list[Edge] = []
    seen: set[tuple[str, str]] = set()
    for _, child_id, search, _, parent_node, distance, is_root, outcome, speedup, excluded, _, _ in rows:
        if is_root or parent_node is None:
            dropped["root"] += 1
            continue
        if outcome != "success":
            dropped["child_failed"] += 1
            continue
        parent_row = nodes.get((search, parent_node)) if distance == 1 else None
        if parent_row is None:
            dropped["parent_not_in_log"] += 1
            continue
        if parent_row[7] != "success":
            dropped["parent_failed"] += 1
            continue
        reasons = {excluded, parent_row[9]}
        if None in reasons and reasons & OVERRULED:
            dropped["overruled_on_one_side"] += 1
            continue
        if not reasons <= {None} | OVERRULED:
            dropped["excluded"] += 1
            continue
        child, parent = kernels.get(child_id), kernels.get(parent_row[1])
        if child is None or parent is None:
            dropped["not_in_kernels"] += 1
        elif child.kernel_id == parent.kernel_id:
            dropped["self_edge"] += 1
        elif (child.problem, child.gpu) != (parent.problem, parent.gpu):
            dropped["other_problem_or_gpu"] += 1
        elif child.reference_id != parent.reference_id:
            dropped["cross_reference"] += 1
        elif speedup_ratio(child.speedup, parent.speedup) is None:
            dropped["ratio_out_of_range"] += 1
        elif keep is not None and (reason := keep(parent, child)) is not None:
            dropped[reason] += 1
        else:
            first, second = sorted((parent.kernel_id, child.kernel_id))
            if (first, second) in seen:
                dropped["repeat"] += 1
                continue
            seen.add((first, second))
            edges.append(Edge(parent, child, search, speedup_ratio(speedup, parent_row[8])))
    return edges, dropped
