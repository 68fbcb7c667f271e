"""Recorded searches as worlds; policies on them: what they measure when, and their figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import Run, Search, make_archive
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.replay import (
    ReplayOptions,
    World,
    Worlds,
    load_worlds,
    replay,
    replay_order,
    replay_texts,
)
from kernel_archive.scoring.split import Split


def world_of(parents, speedups, name="w", first_row=0):
    """A world whose start is node 0."""
    n = len(parents)
    rows = [-1, *range(first_row, first_row + n - 1)]
    return World(name=name, rows=rows, parents=parents, speedups=speedups)


def worlds_of(*worlds):
    """Worlds with their rows."""
    n = sum(len(w) - 1 for w in worlds)
    ids = [f"k{i}" for i in range(n)]
    split = Split.from_arrays(row_ids=ids, tasks=["p"] * n, speedups=np.ones(n), split="replay")
    return Worlds(split=split, gpus=("H200",) * n, worlds=worlds)


#: 0 start; 1 (2x) with children 3 (4x) and 4 (failed); 2 (1.5x) without children.
SMALL = world_of([-1, 0, 0, 1, 1], [1.0, 2.0, 1.5, 4.0, np.nan])


def order(scores, world=SMALL, share=0.5, parents=1, seed=0):
    """What a policy measures, in order."""
    options = ReplayOptions(share=share, parents=parents)
    return replay_order(world, np.asarray(scores, dtype=float), options, seed)


def test_hand_made_orders():
    """Half of what a step sees is measured; the fastest measured program with children left is the
    next parent.
    """
    oracle = np.nan_to_num(SMALL.speedups, nan=-1.0)
    assert order(oracle) == [1, 3, 4, 2]
    assert order([0, 1, 8, 1, 8]) == [2, 1, 4, 3]
    assert order([0, 8, 1, 1, 8]) == [1, 4, 3, 2]
    assert order(oracle, parents=2, share=0.25) == [1, 3, 2, 4]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.one_of(st.none(), st.floats(0.1, 50))),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.01, 1),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_every_policy_measures_everything_once_and_parents_first(nodes, share, parents, seed):
    """Whatever the tree, the forecasts and the share."""
    above = [-1, *(int(p * i) for i, (p, _) in enumerate(nodes))]
    world = world_of(above, [1.0, *(np.nan if s is None else s for _, s in nodes)])
    scores = np.random.default_rng(seed).random(len(world)).round(1)
    found = order(scores, world, share=share, parents=parents, seed=seed)
    assert sorted(found) == list(range(1, len(world)))
    place = {0: -1, **{node: i for i, node in enumerate(found)}}
    assert all(place[above[node]] < place[node] for node in found)


def test_figures_of_the_small_world():
    """Best over 4x after each measurement: 0.5, 1, 1, 1 for the oracle (1, 3, 4, 2), near the best
    after two of four.
    """
    done = replay(worlds_of(SMALL), options=ReplayOptions(share=0.5, parents=1, draws=10))
    by = {p.policy: p for p in done.policies}
    assert set(by) == {"random", "oracle"}
    assert by["oracle"].area.mean == pytest.approx(100 * 3.5 / 4)
    assert by["oracle"].to_near.mean == pytest.approx(50.0)
    assert (by["random"].rescaled.mean, by["oracle"].rescaled.mean) == (0.0, 100.0)


def test_sure_forecasts_of_the_right_bins_are_an_oracle_and_the_seed_decides_alone():
    """With a bin for every program, expecting right is knowing; the reverse is worse than chance;
    the same seed, the same record.
    """
    speedups = [1.0, 0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 6.0]
    trees = [
        world_of([-1, 0, 0, 0, 0, 0, 0, 0, 0], speedups, name=f"w{k}", first_row=8 * k)
        for k in range(3)
    ]
    worlds = worlds_of(*trees)
    sure = np.eye(8)[assign_bins(speedups[1:] * 3) - 1]
    right, wrong = (Forecasts.from_arrays(worlds.split, p) for p in (sure, sure[:, ::-1]))
    options = ReplayOptions(seed=7, draws=50)
    first, again = (replay(worlds, right, options) for _ in range(2))
    assert first == again
    by = {p.policy: p for p in first.policies}
    assert by["expected"].rescaled.mean == pytest.approx(100.0)
    reverse = {p.policy: p for p in replay(worlds, wrong, ReplayOptions(draws=50)).policies}
    assert reverse["expected"].rescaled.mean < 0
    assert replay(worlds, right, ReplayOptions(seed=8, draws=50)) != first


def chain(tmp_path):
    """Two authors of one problem: x -> y (failed) -> z, and w; a search over the same problem that
    learns; another problem.
    """
    make_archive(
        tmp_path / "a",
        [
            Search("s/1", "trimul", method="agentic"),
            Search("s/2", "trimul", method="agentic"),
            Search("s/3", "trimul", role="training", method="agentic"),
            Search("s/4", "fp8_quant", method="agentic"),
        ],
        [
            Run("s/1", program("x"), 2.0),
            Run("s/1", program("y"), None, parent="n0"),
            Run("s/1", program("z"), 3.0, parent="n1"),
            Run("s/2", program("w"), 0.5),
            Run("s/2", program("x"), 2.0, parent="n0"),
            Run("s/3", program("t"), 9.0),
            Run("s/4", program("q"), 1.5),
        ],
    )
    return open_archive(tmp_path / "a")


def test_chains_of_a_problem_are_one_world_below_the_reference(tmp_path):
    """Every author starts anew from the reference; a program that two of them had is there once;
    failures have no speedup.
    """
    worlds = load_worlds(chain(tmp_path))
    assert [w.name.split()[0] for w in worlds.worlds] == ["fp8_quant", "trimul"]
    trimul = worlds.worlds[1]
    assert trimul.parents == [-1, 0, 1, 2, 0]
    np.testing.assert_array_equal(trimul.speedups, [1.0, 2.0, np.nan, 3.0, 0.5])
    assert trimul.rows[0] == -1
    assert len(worlds.split.row_ids) == 5
    assert not any(9.0 in world.speedups for world in worlds.worlds)
    texts = dict(
        zip(worlds.split.row_ids, replay_texts(chain(tmp_path / "again"), worlds), strict=True)
    )
    assert texts[worlds.split.row_ids[trimul.rows[1]]][1] == program("x")
    assert all("def reference" in reference for reference, _ in texts.values())


def test_natural_searches_come_first(tmp_path):
    """Without natural ones others are replayed; training searches and bin filling never are."""
    searches = [
        Search("t/1", "trimul", role="training"),
        Search("b/1", "trimul", method="bin_filling"),
    ]
    runs = [Run(s.search_id, program(s.search_id), 2.0) for s in searches]
    make_archive(tmp_path / "none", searches, runs)
    with pytest.raises(UsageError, match="no held-out searches to replay"):
        load_worlds(open_archive(tmp_path / "none"))
    more = Search("h/1", "trimul", method="agentic")
    make_archive(tmp_path / "one", [*searches, more], [*runs, Run("h/1", program("h"), 3.0)])
    (world,) = load_worlds(open_archive(tmp_path / "one")).worlds
    assert world.speedups == [1.0, 3.0]
