"""Searching recorded worlds again: what a policy would have found, had forecasts chosen what is measured.

At each step the fastest measured programs that still have unmeasured recorded children are the parents; the policy sees
these children with their forecasts and measures a share of them, which then become parents themselves. What it leaves
out stays unknown, and is seen again when its parent is chosen again. So every policy measures the whole world in the
end, in an order of its own, and how early the fast programs come is what it is judged by.

A replay knows only what was recorded: children that nobody proposed are missing, more so for the parents that recorded
searches liked less. ``hidden`` tells how much that matters: the same figures when a part of the tree is taken away.
"""

from __future__ import annotations

import heapq
import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME, SCHEMES, representatives
from kernel_archive.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.worlds import World, Worlds

#: What candidates are ranked by: the speedup that is expected, or the probability of beating the best so far.
Rank = Literal["expected", "beat"]
Policy = Literal["random", "all", "expected", "beat", "defer", "oracle"]
#: Policy -> what it does, for people.
POLICIES: Final[dict[Policy, str]] = {
    "random": "measures a random share",
    "all": "measures all children of the parents, in recorded order",
    "expected": "measures the share with the largest expected speedup",
    "beat": "measures the share with the largest probability of beating the best so far",
    "defer": "half by expected speedup, half those that are deferred or least certain",
    "oracle": "knows the speedups of the children that it sees",
}
#: Policies that need no forecasts.
BLIND: Final[tuple[Policy, ...]] = ("random", "all", "oracle")
#: A program this near to the best one has found it.
NEAR: Final = 0.95
#: So often another part of the tree is hidden.
HIDINGS: Final = 8
#: Shares of a world's measurements at which curves are given, percent.
CURVE: Final = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)


class Figure(msgspec.Struct, frozen=True):
    """A mean over worlds, with its 95 % interval from draws of worlds."""

    mean: float
    low: float
    high: float


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one policy did.

    Attributes:
        policy: which.
        area: best speedup so far over the best there is, mean over all measurements, percent.
        rescaled: the area, 0 for random and 100 for oracle.
        to_near: share of a world's measurements until 95 % of the best, percent.
        curve: percent of the measurements -> best speedup so far over the best there is, percent.
        hidden: share of the tree that is hidden -> ``rescaled`` then.
        worlds: world -> its area.
    """

    policy: Policy
    area: Figure
    rescaled: Figure
    to_near: Figure
    curve: dict[int, float]
    hidden: dict[str, float]
    worlds: dict[str, float]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A forecaster, replayed.

    Attributes:
        name: of the forecaster; empty for the policies that need none.
        coverage: share of the rows that it says something of; others count as uniform.
        split: whose rows.
        made: which searches.
        n_worlds: worlds.
        n_edges: recorded children.
        share: of the children that a step measures.
        parents: per step.
        repeats: runs of each policy, with other ties and draws; figures are their means.
        seed: of both.
        draws: of the intervals.
        policies: figures by policy.
    """

    name: str
    coverage: float
    split: str
    made: str
    n_worlds: int
    n_edges: int
    share: float
    parents: int
    repeats: int
    seed: int
    draws: int
    policies: list[PolicyFigures]


def expected_speedups(probabilities: Floats) -> Floats:
    """Expected speedup of every forecast, x: shape (n,) of probabilities of shape (n, 8); an open end counts as one octave."""
    return np.asarray(probabilities @ representatives([], []))


def chance_of_beating(probabilities: Floats, best: float) -> Floats:
    """Probability of a speedup above ``best``, x: shape (n,). Inside a bin, octaves are alike; an open end has one.

    >>> chance_of_beating(np.array([[0, 0, 0, 0, 0, 0, 0.5, 0.5]]), 2.0), chance_of_beating(np.eye(8)[6:], 2**1.5)
    (array([1.]), array([0.5, 1. ]))
    """
    edges = np.log2(SCHEMES[DEFAULT_SCHEME].edges)
    bounds = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    above = np.clip((bounds[1:] - np.log2(best)) / np.diff(bounds), 0.0, 1.0)
    return np.asarray(probabilities @ above)


def entropy(probabilities: Floats) -> Floats:
    """Uncertainty of every forecast, bits, 0 to 3: shape (n,)."""
    logs = np.log2(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    return np.asarray(-(probabilities * logs).sum(axis=-1)) + 0.0


def rank_scores(probabilities: Floats, rank: Rank, best: float | None) -> Floats:
    """What candidates are ordered by, larger first: shape (n,).

    A chance of beating the best that several share (none beats the end of the scale) is told apart by the expected
    speedup, whose share of the score is too small to change any other order that matters.
    """
    expected = expected_speedups(probabilities)
    if rank == "expected" or best is None:
        return expected
    return chance_of_beating(probabilities, best) + 1e-6 * expected


def _places(scores: Floats, ties: Floats) -> list[int]:
    """The place of every node when they are ordered by score, largest first, ties by the second key."""
    places = np.empty(len(scores), dtype=np.intp)
    places[np.lexsort((ties, -scores))] = np.arange(len(scores))
    return places.tolist()


def _choice(
    policy: Policy, world: World, probabilities: Floats, deferred: Floats, ties: Floats
) -> Callable[[list[int], int, float], list[int]]:
    if policy == "all":
        return lambda candidates, _k, _best: candidates
    expected = expected_speedups(probabilities) * world.scales
    if policy == "beat":
        order = _places(expected, ties)

        def beating(candidates: list[int], k: int, best: float) -> list[int]:
            # A forecast relative to a parent beats the best when it is above the best over that parent.
            rows = probabilities[candidates]
            scale = world.scales[candidates]
            chances = (
                chance_of_beating(rows, best / scale[0]) if (scale == scale[0]).all()
                else np.array([chance_of_beating(r[None], best / s)[0] for r, s in zip(rows, scale, strict=True)])
            )  # fmt: skip
            keys = sorted(zip((-chances).round(12).tolist(), [order[c] for c in candidates], candidates, strict=True))
            return [c for _, _, c in keys[:k]]

        return beating
    known = {"random": np.zeros(len(world)), "oracle": np.nan_to_num(world.speedups, nan=-1.0)}
    places = _places(known.get(policy, expected), ties)
    if policy != "defer":
        return lambda candidates, k, _best: sorted(candidates, key=places.__getitem__)[:k]
    doubts = _places(entropy(probabilities) + 10.0 * deferred, ties)

    def deferring(candidates: list[int], k: int, _best: float) -> list[int]:
        liked = sorted(candidates, key=places.__getitem__)[: (k + 1) // 2]
        left = sorted(set(candidates) - set(liked), key=doubts.__getitem__)
        return liked + left[: k - len(liked)]

    return deferring


def replay_order(
    world: World, policy: Policy, probabilities: Floats, deferred: Floats, *, share: float, parents: int, seed: int
) -> list[int]:
    """The nodes of a world in the order in which a policy measures them; those that are free are left out.

    Args:
        world: the world.
        policy: who chooses.
        probabilities: shape (n, 8), of every node.
        deferred: shape (n,), 1 where the forecaster leaves a node to a measurement.
        share: of the children seen in a step that is measured, at least one.
        parents: per step.
        seed: of random choices, and of the order of ties.
    """
    ties = np.random.default_rng([seed, len(world)]).random(len(world))
    choose = _choice(policy, world, probabilities, deferred, ties)
    left = world.children()
    known = np.nan_to_num(world.speedups, nan=0.0).tolist()
    free = np.flatnonzero(world.free).tolist()
    for node in free:
        parent = int(world.parents[node])
        if parent >= 0:
            left[parent].remove(node)
    heap = [(-known[node], node) for node in free if left[node]]
    heapq.heapify(heap)
    best = max(known[node] for node in free)
    order: list[int] = []
    while heap:
        chosen = [heapq.heappop(heap)[1] for _ in range(min(parents, len(heap)))]
        candidates = [node for parent in chosen for node in left[parent]]
        measured = choose(candidates, math.ceil(share * len(candidates) - 1e-9), best)
        taken = set(measured)
        for parent in chosen:
            left[parent] = [node for node in left[parent] if node not in taken]
            if left[parent]:
                heapq.heappush(heap, (-known[parent], parent))
        for node in measured:
            best = max(best, known[node])
            if left[node]:
                heapq.heappush(heap, (-known[node], node))
        order += measured
    return order


def _curve(world: World, order: list[int]) -> Floats:
    """Best speedup after each measurement over the best of the world."""
    known = np.nan_to_num(world.speedups, nan=0.0)
    so_far = np.maximum.accumulate(np.concatenate([[known[world.free].max()], known[order]]))[1:]
    return np.asarray(so_far / known.max())


def _cast(forecasts: Forecasts | None, world: World, repeat: int) -> tuple[Floats, Floats]:
    """Probabilities and deferrals of a world's nodes; uniform without forecasts."""
    probabilities, deferred = np.full((len(world), 8), 0.125), np.zeros(len(world))
    if forecasts is not None:
        r, asked = repeat % forecasts.n_repeats, world.rows >= 0
        probabilities[asked] = forecasts.probabilities[r, world.rows[asked]]
        deferred[asked] = forecasts.deferred[r, world.rows[asked]]
    return probabilities, deferred


def _ran(
    forecasts: Forecasts | None,
    worlds: tuple[World, ...],
    policy: Policy,
    *,
    share: float,
    parents: int,
    repeats: int,
    seed: int,
) -> Floats:
    """Area, share until near the best, and the curve, of every world: shape (worlds, 2 + points)."""
    out = np.empty((len(worlds), 2 + len(CURVE)))
    for w, world in enumerate(worlds):
        sums = np.zeros(2 + len(CURVE))
        for repeat in range(repeats):
            cast = _cast(forecasts, world, repeat)
            curve = _curve(world, replay_order(world, policy, *cast, share=share, parents=parents, seed=seed + repeat))
            near = int(np.argmax(curve >= NEAR)) + 1
            at = [max(0, math.ceil(c * len(curve) / 100) - 1) for c in CURVE]
            sums += [curve.mean(), near / len(curve), *curve[at]]
        out[w] = 100.0 * sums / repeats
    return out


#: The same of a policy that needs no forecasts: once for all forecasters that are replayed in the same worlds.
_blind: Final = lru_cache(maxsize=8)(partial(_ran, None))


def _rescaled(area: Floats, low: Floats, high: Floats) -> Floats:
    """Means over worlds (the last axis), 0 for random and 100 for oracle."""
    span = high.mean(axis=-1) - low.mean(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(100.0 * (area.mean(axis=-1) - low.mean(axis=-1)) / span)


def _figure(values: Floats, drawn: Floats) -> Figure:
    finite = drawn[np.isfinite(drawn)]
    low, high = np.percentile(finite, [2.5, 97.5]) if len(finite) else (math.nan, math.nan)
    return Figure(float(values), float(low), float(high))


def replay(
    worlds: Worlds,
    forecasts: Forecasts | None = None,
    *,
    policies: Sequence[Policy] = tuple(POLICIES),
    share: float = 0.25,
    parents: int = 4,
    repeats: int = 8,
    hide: Sequence[float] = (),
    seed: int = 0,
    draws: int = 2000,
) -> Replay:
    """Replay policies with the forecasts of one forecaster.

    Args:
        worlds: what is searched.
        forecasts: of the rows of the worlds, in their order; without any, only policies that need none are run.
        policies: which; ``random`` and ``oracle`` are always run, for scale.
        share: of the children seen in a step that is measured.
        parents: per step.
        repeats: runs of each policy, with other ties and draws.
        hide: shares of the tree to hide, for the bound of what replay can't know; a program goes with what was made from it.
        seed: of everything random.
        draws: of worlds, for the intervals.

    Raises:
        UsageError: a share is not above 0 and at most 1, or fewer than one parent or repeat.
    """
    if not 0.0 < share <= 1.0 or parents < 1 or repeats < 1:
        raise UsageError("replay needs a share above 0 and at most 1, and at least one parent and one repeat")
    usable: list[Policy] = [p for p in POLICIES if p in policies and (forecasts is not None or p in BLIND)]
    run: list[Policy] = list(dict.fromkeys(["random", "oracle", *usable]))

    def figures(places: tuple[World, ...], salt: int) -> dict[Policy, Floats]:
        out = {}
        for policy in run:
            # Measuring all is without chance; the ties of the others, and random choices, are drawn.
            often = repeats if salt == 0 and policy != "all" else 1
            ran = _blind if salt == 0 and policy in BLIND else partial(_ran, forecasts)
            out[policy] = ran(places, policy, share=share, parents=parents, repeats=often, seed=seed + 1000 * salt)
        return out

    full = figures(worlds.worlds, 0)
    rows = np.random.default_rng(seed).integers(0, len(worlds.worlds), (draws, len(worlds.worlds)))
    cut: dict[str, dict[Policy, float]] = {}
    for number, part in enumerate(hide, 1):
        rng = np.random.default_rng([seed, number])
        hidden = [w.without((rng.random(len(w)) < part) & ~w.free) for _ in range(HIDINGS) for w in worlds.worlds]
        found = figures(tuple(w for w in hidden if (w.rows >= 0).any()), number)
        low, high = found["random"][:, 0], found["oracle"][:, 0]
        cut[f"{part:g}"] = {p: float(_rescaled(found[p][:, 0], low, high)) for p in usable}
    low, high = full["random"][:, 0], full["oracle"][:, 0]
    out = []
    for policy in usable:
        area, near, curve = full[policy][:, 0], full[policy][:, 1], full[policy][:, 2:].mean(axis=0)
        made = PolicyFigures(
            policy=policy,
            area=_figure(area.mean(), area[rows].mean(axis=1)),
            rescaled=_figure(_rescaled(area, low, high), _rescaled(area[rows], low[rows], high[rows])),
            to_near=_figure(near.mean(), near[rows].mean(axis=1)),
            curve=dict(zip(CURVE, curve.tolist(), strict=True)),
            hidden={part: rescaled[policy] for part, rescaled in cut.items()},
            worlds={w.name: float(a) for w, a in zip(worlds.worlds, area, strict=True)},
        )
        out.append(made)
    return Replay(
        name=forecasts.name if forecasts is not None else "", coverage=float(forecasts.present.mean()) if forecasts is not None else 0.0,
        split=worlds.split, made=worlds.made, n_worlds=len(worlds.worlds), n_edges=int(sum((w.rows >= 0).sum() for w in worlds.worlds)),
        share=share, parents=parents, repeats=repeats, seed=seed, draws=draws, policies=out,
    )  # fmt: skip
