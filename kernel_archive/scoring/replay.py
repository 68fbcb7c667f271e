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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.bins import N_BINS, representatives
from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.split import Split, SplitIdentity, table_rows
from kernel_archive.splits import REPLAY

Policy = Literal["random", "expected", "oracle"]
#: What a step measures: a random share of the children that it sees, that with the largest
#: expected speedups, or the fastest one.
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
#: A program this near to the best one counts as having found it.
NEAR: Final = 0.95


@dataclass(eq=False, kw_only=True)
class World:
    """One world of n nodes; node 0 is where a search starts, and a parent precedes a child."""

    name: str  # problem and GPU, or id of the search
    #: Position of each node among the rows that are forecast; -1 for the start.
    rows: list[int]
    parents: list[int]  # -1 for the start
    speedups: list[float]  # x; NaN for a program that failed

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """The worlds of an archive, and the n rows of them that are forecast."""

    split: Split  # the rows, named by their kernels, without labels: they are not scored
    gpus: tuple[str, ...]  # of the rows
    worlds: tuple[World, ...]


#: Programs of held-out searches for speed (not bin filling) in the order of their logs. Where some
#: searches have natural programs, written one by one, the others are left out.
_STEPS: Final = """
SELECT e.search_id, e.node_id, e.parent_node_id, e.kernel_id, e.problem, e.gpu, e.is_root,
    k.speedup, s.generation_method = 'agentic' AS is_chain
FROM evaluations e JOIN searches s USING (search_id) LEFT JOIN kernels k USING (kernel_id)
WHERE s.role = 'held_out' AND s.generation_method != 'bin_filling'
    AND (list_contains($1::VARCHAR[], s.builder) OR NOT EXISTS (
        SELECT 1 FROM searches WHERE role = 'held_out' AND list_contains($1::VARCHAR[], builder)))
ORDER BY e.search_id, coalesce(e.source_line, 0), e.node_id
"""


def load_worlds(archive: Archive) -> Worlds:
    """Load the worlds of an archive's held-out searches.

    Raises:
        UsageError: the archive has no such searches, or its labels are withheld.
    """
    manifest = archive.manifest
    if any(facts.origin == "withheld" for facts in manifest.splits.values()):
        raise UsageError(f"the labels of {archive.path} are withheld: it cannot be replayed")
    recorded = {"searches", "evaluations", "kernels"} <= set(archive.tables)
    steps = archive.sql(_STEPS, [manifest.natural_builders]).to_pylist() if recorded else []
    worlds, rows = _grow_worlds(steps)
    if not rows:
        raise UsageError(f"the archive in {archive.path} has no held-out searches to replay")
    first = [step for _, step in rows.values()]
    gpus = tuple(step["gpu"] for step in first)
    split = Split.from_arrays(
        row_ids=list(rows),
        tasks=[step["problem"] for step in first],
        speedups=np.ones(len(first)),
        split=REPLAY.name,
        identity=SplitIdentity(
            archive_name=manifest.name,
            archive_version=manifest.version,
            archive_digest=manifest.logical_digest,
            table=REPLAY.table,
            split_name="canonical",
            gpus=tuple(sorted(set(gpus))),
            n_rows=len(first),
        ),
    )
    with_children = tuple(world for _, world in sorted(worlds.items()) if len(world) > 1)
    return Worlds(split=split, gpus=gpus, worlds=with_children)


def _grow_worlds(
    steps: Sequence[dict[str, Any]],
) -> tuple[dict[str, World], dict[str, tuple[int, dict[str, Any]]]]:
    """Grow the worlds step by step; return them by name, and each kernel's row and first step."""
    worlds: dict[str, World] = {}
    rows: dict[str, tuple[int, dict[str, Any]]] = {}
    #: Node of its world -> by search and node id, and by world and row.
    of_node: dict[tuple[str, str], int] = {}
    of_row: dict[tuple[str, int], int] = {}
    for step in steps:
        search, chain, speedup = step["search_id"], step["is_chain"], step["speedup"]
        name = f"{step['problem']} on {step['gpu']}" if chain else search
        if name not in worlds:
            start = 1.0 if chain or not step["is_root"] else speedup or np.nan
            worlds[name] = World(name=name, rows=[-1], parents=[-1], speedups=[start])
        if step["is_root"] and not chain:
            of_node[search, step["node_id"]] = 0
            continue
        row, _ = rows.setdefault(step["kernel_id"], (len(rows), step))
        world = worlds[name]
        if (name, row) not in of_row:
            of_row[name, row] = len(world)
            world.rows.append(row)
            world.parents.append(of_node.get((search, step["parent_node_id"]), 0))
            world.speedups.append(np.nan if speedup is None else speedup)
        of_node[search, step["node_id"]] = of_row[name, row]
    return worlds, rows


def replay_texts(archive: Archive, worlds: Worlds) -> list[tuple[str, str]]:
    """Read reference and program of every row.

    Raises:
        DataError: the archive lacks a program.
    """
    references = dict(table_rows(archive, "references", "reference_id", "code"))
    columns = ("kernel_id", "code", "reference_id")
    texts = {
        kernel: (references.get(reference, ""), code)
        for table in ("kernels", "failures")
        for kernel, code, reference in table_rows(archive, table, *columns)
    }
    missing = [kernel for kernel in worlds.split.row_ids if kernel not in texts]
    if missing:
        what = f"the archive in {archive.path} has no program of kernel {missing[0]}"
        raise DataError(f"{what}, which a search measured")
    return [texts[kernel] for kernel in worlds.split.row_ids]


class ReplayFigure(msgspec.Struct, frozen=True):
    """A mean over worlds, with its 95 % interval from draws of worlds."""

    mean: float
    low: float
    high: float


class PolicyFigures(msgspec.Struct, frozen=True):
    """How one policy did; all figures in percent."""

    policy: Policy
    area: ReplayFigure  # best speedup so far over the best of the world, mean over all measurements
    rescaled: ReplayFigure  # the area, 0 for random and 100 for oracle
    to_near: ReplayFigure  # share of a world's measurements until 95 % of the best


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How worlds are searched."""

    #: Above 0, at most 1: share of the children seen in a step that is measured, at least one.
    share: float = 0.25
    parents: int = 4  # parents per step
    #: Runs of each policy, with other ties and random choices; figures are their means.
    repeats: int = 8
    seed: int = 0
    draws: int = 2000  # draws of worlds, for the intervals


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one forecaster, replayed."""

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
    unmeasured: list[list[int]] = [[] for _ in world.rows]  # the children of every node
    for node, parent in enumerate(world.parents[1:], 1):
        unmeasured[parent].append(node)
    heap = [(-speedups[0], 0)]
    order: list[int] = []
    while heap:
        parents = [heapq.heappop(heap)[1] for _ in range(min(options.parents, len(heap)))]
        candidates = [node for parent in parents for node in unmeasured[parent]]
        count = math.ceil(options.share * len(candidates) - 1e-9)
        measured = sorted(candidates, key=place_of)[:count]
        chosen = set(measured)
        for parent in parents:
            unmeasured[parent] = [node for node in unmeasured[parent] if node not in chosen]
        for node in (*parents, *measured):
            if unmeasured[node]:
                heapq.heappush(heap, (-speedups[node], node))
        order += measured
    return order


def _scores(forecasts: Forecasts | None, world: World, policy: Policy, repeat: int) -> Floats:
    """Score every node for a policy: shape (n,); nodes without a forecast count as uniform."""
    if policy == "random":
        return np.zeros(len(world))
    if policy == "oracle":
        return np.asarray(np.nan_to_num(world.speedups, nan=-1.0))
    probabilities = np.full((len(world), N_BINS), 1.0 / N_BINS)
    if forecasts is not None:
        probabilities[1:] = forecasts.probabilities[repeat % forecasts.n_repeats][world.rows[1:]]
    # An open end bin counts as one octave, since the speedups in it are not known to a search.
    return np.asarray(probabilities @ representatives([], []))


def _replay_policy(
    forecasts: Forecasts | None, worlds: Sequence[World], policy: Policy, options: ReplayOptions
) -> Floats:
    """Replay every world: its area, and its share until near the best, in percent: (2, worlds)."""
    figures = np.zeros((2, len(worlds)))
    for w, world in enumerate(worlds):
        speedups = np.nan_to_num(world.speedups, nan=0.0)
        for repeat in range(options.repeats):
            scores = _scores(forecasts, world, policy, repeat)
            order = replay_order(world, scores, options, options.seed + repeat)
            curve = np.maximum.accumulate(speedups[[0, *order]])[1:] / speedups.max()
            near = int(np.argmax(curve >= NEAR)) + 1
            figures[:, w] += curve.mean(), near / len(curve)
    return 100.0 * figures / options.repeats


def _figure(means: Floats) -> ReplayFigure:
    """Make a figure of the mean over all worlds, which comes first, and of those over draws."""
    drawn = means[1:][np.isfinite(means[1:])]
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (math.nan, math.nan)
    return ReplayFigure(float(means[0]), float(low), float(high))


def replay(
    worlds: Worlds, forecasts: Forecasts | None = None, options: ReplayOptions | None = None
) -> Replay:
    """Replay policies with one forecaster's forecasts of the rows of the worlds, in their order.

    Without forecasts only random and oracle are run.
    """
    options = options or ReplayOptions()
    n = len(worlds.worlds)
    drawn = np.random.default_rng(options.seed).integers(0, n, (options.draws, n))
    picks = np.vstack([np.arange(n), drawn])
    means = {
        policy: _replay_policy(forecasts, worlds.worlds, policy, options)[:, picks].mean(axis=-1)
        for policy in POLICIES
        if policy != "expected" or forecasts is not None
    }
    low, high = means["random"][0], means["oracle"][0]
    policies = []
    for policy, (area, near) in means.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            rescaled = 100.0 * (area - low) / (high - low)
        policies.append(PolicyFigures(policy, *map(_figure, (area, rescaled, near))))
    return Replay(
        name=forecasts.name if forecasts is not None else "",
        coverage=forecasts.coverage if forecasts is not None else 0.0,
        n_worlds=n,
        n_edges=int(sum(len(w) - 1 for w in worlds.worlds)),
        options=options,
        policies=policies,
    )
