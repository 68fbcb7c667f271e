"""Read recorded searches as worlds to search again: programs, their parents and their speedups.

A world holds the programs that were proposed and measured in held-out searches, each below the one
that it was made from. Chains of programs that were written one by one for the same problem and GPU
are one world below the reference, from which every author started. A search over templates is a
world of its own, below its root. A program that nobody proposed is in no world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME
from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring.split import Split, TargetFacts, forecast_split, split_facts
from kernel_archive.splits import REPLAY, split_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Bools, Floats, Ints

#: Searches whose programs were written one by one, or those whose programs a generator made.
Made = Literal["natural", "generated"]
#: Speedup that stands for a program which failed, where a label is needed: the slowest bin.
FAILED = 0.1


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """Hold one world; node 0 is where a search starts, and a parent stands before its children."""

    #: Problem and GPU, or id of the search.
    name: str
    #: Shape (n,), position of each node among the rows that are forecast; -1 where it is none.
    rows: Ints
    #: Shape (n,), -1 for the start.
    parents: Ints
    #: Shape (n,), x; NaN for a program that failed.
    speedups: Floats
    #: Shape (n,), what a forecast of a node is relative to, x: 1, or the speedup of its parent.
    scales: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def free(self) -> Bools:
        """Nodes that are measured before the search begins: its start, and those not forecast."""
        return self.rows < 0

    def children(self) -> list[list[int]]:
        """List the children of every node, in recorded order."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                children[parent].append(node)
        return children


@dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """Hold the worlds of an archive and the n rows of them that are forecast."""

    #: Kernel ids, or ids of discovery pairs.
    row_ids: tuple[str, ...]
    kernels: tuple[str, ...]
    problems: tuple[str, ...]
    gpus: tuple[str, ...]
    #: Shape (n,), x, against the reference; NaN for programs that failed.
    speedups: Floats
    worlds: tuple[World, ...]
    #: The split that the rows are of.
    split: str
    made: Made
    #: Name, version and digest of the archive.
    source: tuple[str, str, str] = field(default=("", "", ""))

    def target(self) -> Split:
        """Make a split of the rows, for reading forecasts; a failed program is slow in it."""
        name, version, digest = self.source
        facts = TargetFacts(
            archive_name=name,
            archive_version=version,
            archive_digest=digest,
            table=REPLAY.table,
            split_name="canonical",
            split_digest="",
            origin="selected",
            gpus=tuple(sorted(set(self.gpus))),
            n_rows=len(self.row_ids),
        )
        return Split.from_arrays(
            row_ids=self.row_ids,
            tasks=self.problems,
            speedups=np.nan_to_num(self.speedups, nan=FAILED),
            split=split_of(self.split).name,
            scheme=DEFAULT_SCHEME,
            facts=facts,
        )


class _Step(NamedTuple):
    """One program of a search, as a row of the evaluations; its fields are their columns."""

    search_id: str
    node_id: str
    parent_node_id: str
    kernel_id: str
    problem: str
    gpu: str
    is_root: bool
    excluded: str
    source_line: int | None


class _Builder:
    """Collect the nodes of one world."""

    def __init__(self, name: str, start: float | None) -> None:
        self.name = name
        #: Search and node id -> place in the world; kernel id -> the same.
        self.nodes: dict[tuple[str, str], int] = {}
        self.places: dict[str, int] = {}
        self.kernels = [""]
        #: Row, parent, speedup and scale of every node.
        self.values: list[tuple[int, int, float, float]] = [
            (-1, -1, np.nan if start is None else start, 1.0)
        ]

    def add(self, kernel: str, above: int, row: int, speedup: float, scale: float) -> int:
        """Add a program below another one; return its place."""
        place = self.places[kernel] = len(self.kernels)
        self.kernels.append(kernel)
        self.values.append((row, above, speedup, scale))
        return place

    def build(self) -> World:
        """Make the world."""
        rows, parents, speedups, scales = (np.array(v) for v in zip(*self.values, strict=True))
        scales = np.nan_to_num(scales, nan=FAILED)
        return World(name=self.name, rows=rows, parents=parents, speedups=speedups, scales=scales)


def _rows(
    archive: Archive, table: str, *names: str, searches: Iterable[str] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Read some columns of a table row by row; of certain searches alone, when they are given."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = archive.arrow(table, columns=list(names))
    if searches is not None:
        rows = rows.filter(pc.is_in(rows["search_id"], pa.array(list(searches), pa.string())))
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _chains(archive: Archive, made: Made) -> dict[str, bool]:
    """Held-out searches for speed (not bin filling) -> whether they are chains."""
    natural = {str(b["name"]) for b in archive.manifest.builders if b.get("natural") is True}
    columns = ("search_id", "role", "builder", "generation_method")
    return {
        search: method == "agentic"
        for search, role, builder, method in _rows(archive, "searches", *columns)
        if role == "held_out"
        and (builder in natural) == (made == "natural")
        and method != "bin_filling"
    }


def load_worlds(archive: Archive, *, split: str = REPLAY.name, made: Made = "natural") -> Worlds:
    """Load the worlds of an archive's held-out searches.

    Args:
        archive: an opened archive.
        split: ``replay``: every recorded program; the name of a split: only its rows, as if nobody
            had proposed the others. What was made from a program that is left out is below the
            nearest one that is not.
        made: which searches.

    Raises:
        UsageError: the archive has no such searches or split, or its labels are withheld.
    """
    chains = _chains(archive, made)
    row_ids = _split_rows(archive, split)
    pairs = split == "discovery"
    columns = _Step._fields
    steps = [_Step(*row) for row in _rows(archive, "evaluations", *columns, searches=chains)]
    if any(step.excluded == "withheld" for step in steps):
        raise UsageError(f"the labels of {archive.path} are withheld: it cannot be replayed")
    speedups = dict(_rows(archive, "kernels", "kernel_id", "speedup"))
    builders: dict[str, _Builder] = {}
    asked: dict[str, _Step] = {}
    numbers: dict[str, int] = {}
    for step in sorted(steps, key=lambda s: (s.search_id, s.source_line or 0, s.node_id)):
        chain, kernel = chains[step.search_id], step.kernel_id
        name = f"{step.problem} on {step.gpu}" if chain else step.search_id
        start = 1.0 if chain or not step.is_root else speedups.get(kernel)
        world = builders.setdefault(name, _Builder(name, start))
        node = (step.search_id, step.node_id)
        if step.is_root and not chain:
            world.nodes[node] = 0
            continue
        above = world.nodes.get((step.search_id, step.parent_node_id), 0)
        edge = (kernel, world.kernels[above] if pairs else "")
        row_id = kernel if row_ids is None else row_ids.get(edge)
        if kernel in world.places:
            world.nodes[node] = world.places[kernel]
        elif row_id is None and not pairs:
            world.nodes[node] = above
        else:
            row, scale = -1, 1.0
            if row_id is not None:
                asked.setdefault(row_id, step)
                row = numbers.setdefault(row_id, len(numbers))
                scale = world.values[above][2] if pairs else 1.0
            world.nodes[node] = world.add(kernel, above, row, speedups.get(kernel, np.nan), scale)
    if not asked:
        what = f"the archive in {archive.path} has no held-out searches with {made} programs"
        raise UsageError(f"{what} to replay")
    kernels = tuple(step.kernel_id for step in asked.values())
    manifest = archive.manifest
    return Worlds(
        row_ids=tuple(asked),
        kernels=kernels,
        problems=tuple(step.problem for step in asked.values()),
        gpus=tuple(step.gpu for step in asked.values()),
        speedups=np.array([speedups.get(kernel, np.nan) for kernel in kernels], dtype=np.float64),
        worlds=tuple(w.build() for _, w in sorted(builders.items()) if len(w.kernels) > 1),
        split=split,
        made=made,
        source=(manifest.name, manifest.version, manifest.logical_digest),
    )


def _split_rows(archive: Archive, split: str) -> Mapping[tuple[str, str], str] | None:
    """Kernel and (for discovery pairs) parent -> row id; ``None`` for every recorded program."""
    spec = split_of(split)
    if spec.name == REPLAY.name:
        return None
    split_facts(archive, forecast_split(split))
    if spec.kind == "eval":
        rows = _rows(archive, spec.table, spec.kernel, "row_id")
        return {(kernel, ""): row_id for kernel, row_id in rows}
    edges = _rows(archive, spec.table, spec.kernel, "parent_kernel_id", "row_id")
    return {(kernel, parent): row_id for kernel, parent, row_id in edges}


def replay_texts(archive: Archive, worlds: Worlds) -> list[tuple[str, str]]:
    """Reference and program of every row.

    Raises:
        DataError: the archive lacks a program.
    """
    references = dict(_rows(archive, "references", "reference_id", "code"))
    texts = {
        kernel: (references.get(reference, ""), code)
        for table in ("kernels", "failures")
        for kernel, code, reference in _rows(archive, table, "kernel_id", "code", "reference_id")
    }
    missing = [kernel for kernel in worlds.kernels if kernel not in texts]
    if missing:
        what = f"the archive in {archive.path} has no program of kernel {missing[0]}"
        raise DataError(f"{what}, which a search measured")
    return [texts[kernel] for kernel in worlds.kernels]
