"""Search recorded worlds again: what a policy finds when forecasts choose what is measured.

A world holds the programs that were proposed and measured in held-out searches, each below the one
that it was made from. Chains of programs that were written one by one for the same problem and GPU
are one world below the reference, from which every author started. A search over templates is a
world of its own, below its root. A program that nobody proposed is in no world.

At each step the fastest measured programs that still have unmeasured recorded children are the
parents. The policy sees these children with their forecasts and measures a share of them; what it
leaves out is seen again when its parent is chosen again. So every policy measures the whole world
in the end, and is judged by how early the fast programs come.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from kernel_archive.bins import representatives
from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring.split import Split, TargetFacts
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.forecasts import Forecasts

Policy = Literal["random", "expected", "oracle"]
#: What a step measures: a random share of the children that it sees, that with the largest
#: expected speedups, or the fastest one.
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
#: A program this near to the best one counts as having found it.
NEAR: Final = 0.95
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
    first_steps: dict[str, _Step] = {}
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
            first_steps.setdefault(kernel, step)
            row = numbers.setdefault(kernel, len(numbers))
            parent = nodes.get((step.search_id, step.parent_node_id), 0)
            places[name, kernel] = world.add(row, parent, speedups.get(kernel, np.nan))
        nodes[step.search_id, step.node_id] = places[name, kernel]
    if not first_steps:
        raise UsageError(f"the archive in {archive.path} has no held-out searches to replay")
    gpus, manifest = tuple(step.gpu for step in first_steps.values()), archive.manifest
    facts = TargetFacts(
        archive_name=manifest.name,
        archive_version=manifest.version,
        archive_digest=manifest.logical_digest,
        table=REPLAY.table,
        split_name="canonical",
        split_digest="",
        origin="selected",
        gpus=tuple(sorted(set(gpus))),
        n_rows=len(first_steps),
    )
    target = Split.from_arrays(
        row_ids=list(first_steps),
        tasks=[step.problem for step in first_steps.values()],
        speedups=[speedups.get(kernel, FAILED) for kernel in first_steps],
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


class ReplayFigure(msgspec.Struct, frozen=True):
    """Hold a mean over worlds, with its 95 % interval from draws of worlds."""

    mean: float
    low: float
    high: float


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how one policy did; all figures in percent."""

    policy: Policy
    area: ReplayFigure  # best speedup so far over the best of the world, mean over all measurements
    rescaled: ReplayFigure  # the area, 0 for random and 100 for oracle
    to_near: ReplayFigure  # share of a world's measurements until 95 % of the best


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """State how worlds are searched.

    Raises:
        UsageError: a share is not above 0 and at most 1, or fewer than one parent or repeat.
    """

    share: float = 0.25  # share of the children seen in a step that is measured, at least one
    parents: int = 4  # parents per step
    #: Runs of each policy, with other ties and random choices; figures are their means.
    repeats: int = 8
    seed: int = 0
    draws: int = 2000  # draws of worlds, for the intervals

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0.0 < self.share <= 1.0 or self.parents < 1 or self.repeats < 1:
            raise UsageError(
                "replay needs a share above 0 and at most 1, and at least one parent and one repeat"
            )


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the figures of one forecaster, replayed."""

    name: str  # the forecaster; empty for the policies that need none
    coverage: float  # share of the rows with a forecast; others count as uniform
    n_worlds: int
    n_edges: int  # recorded children
    options: ReplayOptions
    policies: list[PolicyFigures]


def replay_order(world: World, scores: Floats, options: ReplayOptions, seed: int) -> list[int]:
    """Order the nodes of a world as a policy measures them, without its start.

    ``scores``, shape (n,), are of every node: the largest are measured first. ``seed`` is that of
    the order of ties.
    """
    ties = np.random.default_rng([seed, len(world)]).random(len(world))
    places = np.empty(len(world), dtype=np.intp)
    places[np.lexsort((ties, -scores))] = np.arange(len(world))
    place_of = places.tolist().__getitem__
    speedups: list[float] = np.nan_to_num(world.speedups, nan=0.0).tolist()
    left = world.children()
    heap = [(-speedups[0], 0)]
    order: list[int] = []
    while heap:
        parents = [heapq.heappop(heap)[1] for _ in range(min(options.parents, len(heap)))]
        candidates = [node for parent in parents for node in left[parent]]
        count = math.ceil(options.share * len(candidates) - 1e-9)
        measured = sorted(candidates, key=place_of)[:count]
        chosen = set(measured)
        for parent in parents:
            left[parent] = [node for node in left[parent] if node not in chosen]
        for node in (*parents, *measured):
            if left[node]:
                heapq.heappush(heap, (-speedups[node], node))
        order += measured
    return order


def _scores(forecasts: Forecasts | None, world: World, policy: Policy, repeat: int) -> Floats:
    """Score every node for a policy: shape (n,); nodes without a forecast count as uniform."""
    if policy == "random":
        return np.zeros(len(world))
    if policy == "oracle":
        return np.asarray(np.nan_to_num(world.speedups, nan=-1.0))
    probabilities = np.full((len(world), 8), 0.125)
    if forecasts is not None:
        of_repeat = forecasts.probabilities[repeat % forecasts.n_repeats]
        probabilities[1:] = of_repeat[world.rows[1:]]
    # An open end bin counts as one octave, since the speedups in it are not known to a search.
    return np.asarray(probabilities @ representatives([], []))


def _run(
    forecasts: Forecasts | None, worlds: Sequence[World], policy: Policy, options: ReplayOptions
) -> Floats:
    """Area, and share until near the best, of every world in percent: shape (2, worlds)."""
    out = np.zeros((2, len(worlds)))
    for w, world in enumerate(worlds):
        speedups = np.nan_to_num(world.speedups, nan=0.0)
        for repeat in range(options.repeats):
            scores = _scores(forecasts, world, policy, repeat)
            order = replay_order(world, scores, options, options.seed + repeat)
            speeds = np.concatenate([speedups[:1], speedups[order]])
            curve = np.maximum.accumulate(speeds)[1:] / speedups.max()
            near = int(np.argmax(curve >= NEAR)) + 1
            out[:, w] += curve.mean(), near / len(curve)
    return 100.0 * out / options.repeats


def _rescaled(area: Floats, low: Floats, high: Floats) -> Floats:
    """Means over worlds (the last axis), 0 for random and 100 for oracle."""
    span = high.mean(axis=-1) - low.mean(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(100.0 * (area.mean(axis=-1) - low.mean(axis=-1)) / span)


def _figure(value: Floats, drawn: Floats) -> ReplayFigure:
    finite = drawn[np.isfinite(drawn)]
    low, high = np.percentile(finite, [2.5, 97.5]) if len(finite) else (math.nan, math.nan)
    return ReplayFigure(float(value), float(low), float(high))


def replay(
    worlds: Worlds, forecasts: Forecasts | None = None, options: ReplayOptions | None = None
) -> Replay:
    """Replay policies with one forecaster's forecasts of the rows of the worlds, in their order.

    Without forecasts only random and oracle are run.
    """
    options = options or ReplayOptions()
    runs = {
        policy: _run(forecasts, worlds.worlds, policy, options)
        for policy in POLICIES
        if policy != "expected" or forecasts is not None
    }
    n = len(worlds.worlds)
    rows = np.random.default_rng(options.seed).integers(0, n, (options.draws, n))
    low, high = runs["random"][0], runs["oracle"][0]
    policies = []
    for policy, (area, near) in runs.items():
        drawn = _rescaled(area[rows], low[rows], high[rows])
        figures = PolicyFigures(
            policy=policy,
            area=_figure(area.mean(), area[rows].mean(axis=1)),
            rescaled=_figure(_rescaled(area, low, high), drawn),
            to_near=_figure(near.mean(), near[rows].mean(axis=1)),
        )
        policies.append(figures)
    return Replay(
        name=forecasts.name if forecasts is not None else "",
        coverage=forecasts.coverage if forecasts is not None else 0.0,
        n_worlds=n,
        n_edges=int(sum(len(w) - 1 for w in worlds.worlds)),
        options=options,
        policies=policies,
    )
