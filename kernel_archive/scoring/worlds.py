"""Recorded searches as worlds to search again: programs, who was made from whom, and how fast each turned out.

A world is what a search could have found: the programs that were proposed and measured in held-out searches, each below the
one that it was made from. Chains of programs that were written one by one for the same problem and GPU are one world
below the reference, of which every author started anew; a search over templates is one of its own, below its root. What
nobody proposed is in no world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME
from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring.target import Target, TargetFacts, forecast_split, split_facts
from kernel_archive.splits import REPLAY, split_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Bools, Floats, Ints

#: Which searches: those whose programs were written one by one, or those of programs that a generator made.
Made = Literal["natural", "generated"]
#: Speedup that stands for a program which failed, where a label is needed: the slowest bin.
FAILED = 0.1


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """One world; node 0 is where a search starts, and a parent stands before its children.

    Attributes:
        name: problem, or id of the search.
        rows: shape (n,), position of each node among the rows that are forecast; -1 where nobody is asked about it.
        parents: shape (n,), -1 for the start.
        speedups: shape (n,), x; NaN for a program that failed.
        scales: shape (n,), what a forecast of a node is relative to, x: 1, or the speedup of its parent.
    """

    name: str
    rows: Ints
    parents: Ints
    speedups: Floats
    scales: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def free(self) -> Bools:
        """What is measured before the search begins: its start, and what nobody is asked about."""
        return self.rows < 0

    def children(self) -> list[list[int]]:
        """Of every node, in recorded order."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                found[parent].append(node)
        return found

    def without(self, hidden: Bools) -> World:
        """The same world had some programs never been proposed; with them goes what was made from them."""
        gone = hidden.copy()
        for node, parent in enumerate(self.parents.tolist()):
            gone[node] |= parent >= 0 and gone[parent]
        at = np.cumsum(~gone) - 1
        kept = np.flatnonzero(~gone)
        parents = self.parents[kept]
        return World(
            name=self.name, rows=self.rows[kept], parents=np.where(parents < 0, -1, at[parents]),
            speedups=self.speedups[kept], scales=self.scales[kept],
        )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """The worlds of an archive.

    Attributes:
        row_ids: n rows that are forecast; kernel ids, or ids of discovery pairs.
        kernels: their kernel ids.
        problems: their problems.
        gpus: their GPUs.
        speedups: shape (n,), x, against the reference; NaN for programs that failed.
        worlds: what is searched.
        split: whose rows these are.
        made: which searches.
    """

    row_ids: tuple[str, ...]
    kernels: tuple[str, ...]
    problems: tuple[str, ...]
    gpus: tuple[str, ...]
    speedups: Floats
    worlds: tuple[World, ...]
    split: str
    made: Made
    source: tuple[str, str, str] = field(default=("", "", ""))

    def target(self) -> Target:
        """The rows as something that a forecast file can be read against; a failed program counts as slow."""
        name, version, digest = self.source
        facts = TargetFacts(
            archive_name=name, archive_version=version, archive_digest=digest, table=REPLAY.table, split_name="canonical",
            split_digest="", origin="selected", gpus=tuple(sorted(set(self.gpus))), n_rows=len(self.row_ids),
        )  # fmt: skip
        return Target.from_arrays(
            row_ids=self.row_ids, tasks=self.problems, speedups=np.nan_to_num(self.speedups, nan=FAILED),
            split=split_of(self.split).name, scheme=DEFAULT_SCHEME, facts=facts,
        )  # fmt: skip


def _rows(
    archive: Archive, table: str, *names: str, searches: Iterable[str] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Some columns of a table row by row; of certain searches alone, when they are given."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = archive.arrow(table, columns=list(names))
    if searches is not None:
        found = found.filter(pc.is_in(found["search_id"], pa.array(list(searches), pa.string())))
    return zip(*(found[name].to_pylist() for name in names), strict=True)


def _searches(archive: Archive, made: Made) -> dict[str, bool]:
    """The held-out searches for speed (bin filling looks for other speedups), and whether they are chains."""
    natural = {str(b["name"]) for b in archive.manifest.builders if b.get("natural") is True}
    return {
        search: method == "agentic"
        for search, role, builder, method in _rows(
            archive, "searches", "search_id", "role", "builder", "generation_method"
        )
        if role == "held_out" and (builder in natural) == (made == "natural") and method != "bin_filling"
    }


def load_worlds(archive: Archive, *, split: str = REPLAY.name, made: Made = "natural") -> Worlds:
    """The worlds of an archive's held-out searches.

    Args:
        archive: an opened archive.
        split: ``replay``: every recorded program; the name of a split: only its rows, as if nobody had proposed the others.
            What was made from a program that is left out is below the nearest one that is not.
        made: which searches.

    Raises:
        UsageError: the archive has no such searches or split, or its labels are withheld.
    """
    searches = _searches(archive, made)
    wanted = _split_rows(archive, split)
    columns = (
        "search_id",
        "node_id",
        "parent_node_id",
        "kernel_id",
        "problem",
        "gpu",
        "is_root",
        "excluded",
        "source_line",
    )
    recorded = _rows(archive, "evaluations", *columns, searches=searches)
    rows = sorted(recorded, key=lambda row: (row[0], row[8] or 0, row[1]))
    if any(row[7] == "withheld" for row in rows):
        raise UsageError(f"the labels of {archive.path} are withheld: what nobody may know can't be replayed")
    measured = dict(_rows(archive, "kernels", "kernel_id", "speedup"))
    builders: dict[str, _Builder] = {}
    ids: dict[str, int] = {}
    facts: list[tuple[str, str, str]] = []
    for search, node, parent, kernel, problem, gpu, is_root, _, _ in rows:
        chain = searches[search]
        name = f"{problem} on {gpu}" if chain else search
        start = 1.0 if chain or not is_root else measured.get(kernel)
        world = builders.setdefault(name, _Builder(name, start))
        if is_root and not chain:
            world.nodes[search, node] = 0
            continue
        above = world.nodes.get((search, parent), 0)
        parent_kernel = world.kernels[above] if split == "discovery" else ""
        row = kernel if wanted is None else wanted.get((kernel, parent_kernel))
        if kernel in world.places:
            world.nodes[search, node] = world.places[kernel]
        elif row is None and split != "discovery":
            world.nodes[search, node] = above
        else:
            at = -1
            if row is not None:
                at = ids.setdefault(row, len(ids))
                if at == len(facts):
                    facts.append((kernel, problem, gpu))
            relative = split == "discovery" and row is not None
            world.add(search, node, kernel, above, at, measured.get(kernel), relative=relative)
    if not ids:
        raise UsageError(f"the archive in {archive.path} has no held-out searches with {made} programs to replay")
    return Worlds(
        row_ids=tuple(ids), kernels=tuple(f[0] for f in facts), problems=tuple(f[1] for f in facts),
        gpus=tuple(f[2] for f in facts), speedups=np.array([measured.get(f[0], np.nan) for f in facts], dtype=np.float64),
        worlds=tuple(w.done() for _, w in sorted(builders.items()) if len(w.kernels) > 1), split=split, made=made,
        source=(archive.manifest.name, archive.manifest.version, archive.manifest.logical_digest),
    )  # fmt: skip


def _split_rows(archive: Archive, split: str) -> Mapping[tuple[str, str], str] | None:
    """Kernel, and for discovery pairs its parent, to row id; ``None`` for every recorded program."""
    spec = split_of(split)
    if spec.name == REPLAY.name:
        return None
    split_facts(archive, forecast_split(split))
    if spec.kind == "eval":
        return {(kernel, ""): row_id for kernel, row_id in _rows(archive, spec.table, spec.kernel, "row_id")}
    rows = _rows(archive, spec.table, spec.kernel, "parent_kernel_id", "row_id")
    return {(kernel, parent): row_id for kernel, parent, row_id in rows}


class _Builder:
    """A world while its log lines come in."""

    def __init__(self, name: str, start: float | None) -> None:
        self.name = name
        self.nodes: dict[tuple[str, str], int] = {}
        self.places: dict[str, int] = {}
        self.kernels, self.rows, self.parents = [""], [-1], [-1]
        self.speedups, self.scales = [np.nan if start is None else start], [1.0]

    def add(
        self, search: str, node: str, kernel: str, above: int, row: int, speedup: float | None, *, relative: bool
    ) -> None:
        self.places[kernel] = self.nodes[search, node] = len(self.kernels)
        self.kernels.append(kernel)
        self.rows.append(row)
        self.parents.append(above)
        self.speedups.append(np.nan if speedup is None else speedup)
        self.scales.append(self.speedups[above] if relative else 1.0)

    def done(self) -> World:
        return World(
            name=self.name, rows=np.array(self.rows), parents=np.array(self.parents),
            speedups=np.array(self.speedups), scales=np.nan_to_num(np.array(self.scales), nan=FAILED),
        )  # fmt: skip


def replay_texts(archive: Archive, worlds: Worlds) -> list[tuple[str, str]]:
    """Reference and program of every row.

    Raises:
        DataError: the archive lacks a program.
    """
    references = dict(_rows(archive, "references", "reference_id", "code"))
    texts: dict[str, tuple[str, str]] = {}
    for table in ("kernels", "failures"):
        for kernel, code, reference in _rows(archive, table, "kernel_id", "code", "reference_id"):
            texts[kernel] = (references.get(reference, ""), code)
    missing = [k for k in worlds.kernels if k not in texts]
    if missing:
        raise DataError(f"the archive in {archive.path} has no program of kernel {missing[0]}, which a search measured")
    return [texts[k] for k in worlds.kernels]
