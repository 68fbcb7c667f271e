"""Policies on recorded worlds: what they measure when, and what figures say of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.replay import (
    POLICIES,
    chance_of_beating,
    entropy,
    expected_speedups,
    rank_scores,
    replay,
    replay_order,
)
from kernel_archive.scoring.worlds import World, Worlds


def world_of(parents, speedups, name="w", first_row=0, scales=None):
    """A world whose start is node 0."""
    n = len(parents)
    rows = np.array([-1, *range(first_row, first_row + n - 1)])
    return World(
        name=name, rows=rows, parents=np.array(parents), speedups=np.array(speedups, dtype=float),
        scales=np.ones(n) if scales is None else np.array(scales, dtype=float),
    )  # fmt: skip


def worlds_of(*worlds):
    """Worlds with their rows."""
    n = sum(len(w) - 1 for w in worlds)
    speedups = np.concatenate([w.speedups[1:] for w in worlds])
    ids = tuple(f"k{i}" for i in range(n))
    return Worlds(
        row_ids=ids, kernels=ids, problems=("p",) * n, gpus=("H200",) * n, speedups=speedups, worlds=worlds,
        split="replay", made="natural",
    )  # fmt: skip


#: 0 start; 1 (2x) with children 3 (4x) and 4 (failed); 2 (1.5x) without children.
SMALL = world_of([-1, 0, 0, 1, 1], [1.0, 2.0, 1.5, 4.0, np.nan])


def order(policy, probabilities=None, world=SMALL, share=0.5, parents=1, deferred=None, seed=0):
    """What a policy measures, in order."""
    p = np.full((len(world), 8), 0.125) if probabilities is None else np.asarray(probabilities, dtype=float)
    d = np.zeros(len(world)) if deferred is None else np.asarray(deferred, dtype=float)
    return replay_order(world, policy, p, d, share=share, parents=parents, seed=seed)


def sure(*bins):
    """Certain forecasts of these bins."""
    return np.eye(8)[np.array(bins) - 1]


def test_hand_made_orders():
    """Half of what a step sees is measured; the fastest measured program with children left is the next parent."""
    assert order("oracle") == [1, 3, 4, 2]
    assert order("all") == [1, 2, 3, 4]
    assert order("expected", sure(5, 1, 8, 1, 8)) == [2, 1, 4, 3]
    assert order("expected", sure(5, 8, 1, 1, 8)) == [1, 4, 3, 2]
    assert order("oracle", parents=2, share=0.25) == [1, 3, 2, 4]


def test_beating_the_best_is_not_being_large():
    """A certain 1.2x beats nothing once 2x is known; a slim chance of more does. Relative forecasts count from their parent."""
    world = world_of([-1, 0, 1, 1], [1.0, 2.0, 1.2, 4.0])
    slim = np.array([0.9, 0, 0, 0, 0, 0, 0, 0.1])
    cast = np.array([sure(5)[0], sure(7)[0], sure(6)[0], slim])
    assert order("beat", cast, world) == [1, 3, 2]
    assert order("expected", cast, world) == [1, 2, 3]
    relative = world_of([-1, 0, 0, 1, 2], [1.0, 4.0, 0.5, 3.0, 1.0], scales=[1, 1, 1, 4.0, 0.5])
    cast = sure(5, 8, 2, 5, 7)  # node 3: 1.2 x 4; node 4: 2.8 x 0.5
    assert order("expected", cast, relative, share=0.25, parents=3) == [1, 3, 2, 4]


def test_defer_measures_what_is_doubted_beside_what_is_liked():
    """Of two, one by expected speedup, one that is least certain; what the forecaster defers comes before."""
    world = world_of([-1, 0, 0, 0, 0], [1.0, 1.0, 2.0, 3.0, 4.0])
    cast = sure(5, 8, 5, 5, 5)
    cast[3] = [0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0]
    assert order("defer", cast, world)[:2] == [1, 3]
    assert order("defer", cast, world, deferred=[0, 0, 1, 0, 0])[:2] == [1, 2]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.one_of(st.none(), st.floats(0.1, 50))), min_size=1, max_size=60),
    st.sampled_from(sorted(POLICIES)), st.floats(0.01, 1), st.integers(1, 5), st.integers(0, 9),
)  # fmt: skip
def test_every_policy_measures_everything_once_and_parents_first(nodes, policy, share, parents, seed):
    """Whatever the tree, the forecasts and the share."""
    above = [-1, *(int(p * i) for i, (p, _) in enumerate(nodes))]
    world = world_of(above, [1.0, *(np.nan if s is None else s for _, s in nodes)])
    cast = np.random.default_rng(seed).dirichlet(np.ones(8), len(world))
    found = order(policy, cast, world, share=share, parents=parents, seed=seed)
    assert sorted(found) == list(range(1, len(world)))
    place = {0: -1, **{node: i for i, node in enumerate(found)}}
    assert all(place[above[node]] < place[node] for node in found)


def test_figures_of_the_small_world():
    """Best over 4x after each measurement: 0.5, 1, 1, 1 for the oracle (1, 3, 4, 2), near the best after two of four."""
    done = replay(worlds_of(SMALL), share=0.5, parents=1, draws=10)
    by = {p.policy: p for p in done.policies}
    assert set(by) == {"random", "all", "oracle"}
    assert by["oracle"].area.mean == pytest.approx(100 * 3.5 / 4)
    assert by["oracle"].to_near.mean == pytest.approx(50.0)
    assert by["all"].area.mean == pytest.approx(100 * (0.5 + 0.5 + 1 + 1) / 4)
    assert by["oracle"].curve[25] == pytest.approx(50.0)
    assert by["oracle"].curve[50] == by["oracle"].curve[100] == pytest.approx(100.0)
    assert (by["random"].rescaled.mean, by["oracle"].rescaled.mean) == (0.0, 100.0)


def test_sure_forecasts_of_the_right_bins_are_an_oracle_and_the_seed_decides_alone():
    """With a bin for every program, expecting right is knowing; the reverse is worse than chance; the same seed, the same record."""
    speedups = [1.0, 0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 6.0]
    trees = [world_of([-1, 0, 0, 0, 0, 0, 0, 0, 0], speedups, name=f"w{k}", first_row=8 * k) for k in range(3)]
    worlds = worlds_of(*trees)
    right = Forecasts.from_arrays(worlds.target(), np.eye(8)[assign_bins(worlds.speedups) - 1], name="right")
    wrong = Forecasts.from_arrays(worlds.target(), np.eye(8)[8 - assign_bins(worlds.speedups)], name="wrong")
    first, again = (replay(worlds, right, hide=(0.25, 0.5), seed=7, draws=50) for _ in range(2))
    assert first == again
    by = {p.policy: p for p in first.policies}
    assert [by[p].rescaled.mean for p in ("expected", "beat")] == pytest.approx([100.0] * 2)
    assert by["expected"].hidden == {"0.25": pytest.approx(100.0), "0.5": pytest.approx(100.0)}
    assert {p.policy: p for p in replay(worlds, wrong, draws=50).policies}["expected"].rescaled.mean < 0
    assert replay(worlds, right, seed=8, draws=50) != first


def test_impossible_settings_are_refused():
    """No share, no parents."""
    for wrong in ({"share": 0.0}, {"share": 1.5}, {"parents": 0}, {"repeats": 0}):
        with pytest.raises(UsageError, match="share"):
            replay(worlds_of(SMALL), **wrong)


CERTAIN = np.eye(8)


def test_expected_speedup_of_certain_forecasts_is_the_centre_of_the_bin():
    """Half octaves inside; the open ends are as wide as the representatives without rows say."""
    assert expected_speedups(CERTAIN)[[0, 5, 7]] == pytest.approx([0.25 / 2**0.5, 2**0.75, 4 * 2**0.5])


def test_chance_of_beating_follows_the_octaves():
    """All above the lower edge, none above the upper one, half in the middle; the last bin ends an octave above its edge."""
    for best, chances in ((2.0, [0, 0, 0, 0, 0, 0, 1, 1]), (2**0.75, [0, 0, 0, 0, 0, 0.5, 1, 1])):
        assert chance_of_beating(CERTAIN, best) == pytest.approx(chances, abs=1e-12)
    assert chance_of_beating(CERTAIN, 8.0) == pytest.approx([0.0] * 8)
    assert chance_of_beating(np.full((1, 8), 0.125), 4.0) == pytest.approx([0.125])


def test_a_chance_that_all_share_leaves_the_expected_speedup():
    """Where nothing beats the end of the scale the order is that of the expected speedup; with nothing to beat, too."""
    assert np.argsort(rank_scores(CERTAIN, "beat", 20.0)).tolist() == list(range(8))
    assert rank_scores(CERTAIN, "beat", None) == pytest.approx(expected_speedups(CERTAIN))


def test_entropy_in_bits():
    """Three bits of eight equal bins, none of a certain one."""
    assert entropy(np.array([[0.125] * 8, [1.0, *[0.0] * 7], [0.5, 0.5, *[0.0] * 6]])) == pytest.approx([3.0, 0.0, 1.0])
