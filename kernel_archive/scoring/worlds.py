"""Read recorded searches as worlds to search again: programs, their parents and their speedups.

A world holds the programs that were proposed and measured in held-out searches, each below the one
that it was made from. Chains of programs that were written one by one for the same problem and GPU
are one world below the reference, from which every author started. A search over templates is a
world of its own, below its root. A program that nobody proposed is in no world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring.split import Split, TargetFacts
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.archive.open import Archive

#: Speedup that stands for a program which failed, where a label is needed: the slowest bin.
FAILED = 0.1


@dataclass(eq=False, kw_only=True)
class World:
    """Hold one world of n nodes; node 0 is where a search starts, and a parent precedes a child."""

    name: str  # problem and GPU, or id of the search
    #: Position of each node among the rows that are forecast; -1 for the start.
    rows: list[int]
    parents: list[int]  # -1 for the start
    speedups: list[float]  # x; NaN for a program that failed

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: int, parent: int, speedup: float) -> int:
        """Add a node below a parent, and return its number."""
        self.rows.append(row)
        self.parents.append(parent)
        self.speedups.append(speedup)
        return len(self) - 1

    def children(self) -> list[list[int]]:
        """List the children of every node, in recorded order."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        return children


@dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """Hold the worlds of an archive, and the n rows of them that are forecast."""

    target: Split  # the rows, named by their kernels; a failed program is slow in it
    gpus: tuple[str, ...]  # of the rows
    worlds: tuple[World, ...]


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


def _rows(archive: Archive, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """Read some columns of a table, row by row."""
    rows = archive.arrow(table, columns=list(names))
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _chains(archive: Archive) -> dict[str, bool]:
    """Held-out searches for speed (not bin filling) -> whether they are chains.

    Where some have natural programs, written one by one, the others are left out.
    """
    wrote = {str(b["name"]) for b in archive.manifest.builders if b.get("natural") is True}
    columns = ("search_id", "role", "builder", "generation_method")
    rows = [row for row in _rows(archive, "searches", *columns) if row[1] == "held_out"]
    natural = any(builder in wrote for _, _, builder, _ in rows)
    return {
        search: method == "agentic"
        for search, _, builder, method in rows
        if method != "bin_filling" and (builder in wrote or not natural)
    }


def load_worlds(archive: Archive) -> Worlds:
    """Load the worlds of an archive's held-out searches.

    Raises:
        UsageError: the archive has no such searches, or its labels are withheld.
    """
    chains = _chains(archive)
    steps = [_Step(*row) for row in _rows(archive, "evaluations", *_Step._fields)]
    steps = [step for step in steps if step.search_id in chains]
    if any(step.excluded == "withheld" for step in steps):
        raise UsageError(f"the labels of {archive.path} are withheld: it cannot be replayed")
    speedups = dict(_rows(archive, "kernels", "kernel_id", "speedup"))
    worlds: dict[str, World] = {}
    #: Kernel id -> the step that first measured it; world and kernel id, and search and node id,
    #: -> node of a world.
    asked: dict[str, _Step] = {}
    places: dict[tuple[str, str], int] = {}
    nodes: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    for step in sorted(steps, key=lambda s: (s.search_id, s.source_line or 0, s.node_id)):
        chain, kernel = chains[step.search_id], step.kernel_id
        name = f"{step.problem} on {step.gpu}" if chain else step.search_id
        start = 1.0 if chain or not step.is_root else speedups.get(kernel) or np.nan
        empty = World(name=name, rows=[-1], parents=[-1], speedups=[start])
        world = worlds.setdefault(name, empty)
        if step.is_root and not chain:
            nodes[step.search_id, step.node_id] = 0
            continue
        if (name, kernel) not in places:
            asked.setdefault(kernel, step)
            row = numbers.setdefault(kernel, len(numbers))
            parent = nodes.get((step.search_id, step.parent_node_id), 0)
            places[name, kernel] = world.add(row, parent, speedups.get(kernel, np.nan))
        nodes[step.search_id, step.node_id] = places[name, kernel]
    if not asked:
        raise UsageError(f"the archive in {archive.path} has no held-out searches to replay")
    gpus, manifest = tuple(step.gpu for step in asked.values()), archive.manifest
    facts = TargetFacts(
        archive_name=manifest.name,
        archive_version=manifest.version,
        archive_digest=manifest.logical_digest,
        table=REPLAY.table,
        split_name="canonical",
        split_digest="",
        origin="selected",
        gpus=tuple(sorted(set(gpus))),
        n_rows=len(asked),
    )
    target = Split.from_arrays(
        row_ids=list(asked),
        tasks=[step.problem for step in asked.values()],
        speedups=[speedups.get(kernel, FAILED) for kernel in asked],
        split=REPLAY.name,
        facts=facts,
    )
    recorded = tuple(world for _, world in sorted(worlds.items()) if len(world) > 1)
    return Worlds(target=target, gpus=gpus, worlds=recorded)


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
    missing = [kernel for kernel in worlds.target.row_ids if kernel not in texts]
    if missing:
        what = f"the archive in {archive.path} has no program of kernel {missing[0]}"
        raise DataError(f"{what}, which a search measured")
    return [texts[kernel] for kernel in worlds.target.row_ids]
