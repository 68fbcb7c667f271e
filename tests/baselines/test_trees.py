"""From an order to probabilities: how sure, learnt on problems left out; spread over the bins that
the split promises.
"""

import zlib

import numpy as np
import pytest

from kernel_archive.baselines.trees import PSEUDO_ROWS, expected_bins, learnt_strength, spread_order
from kernel_archive.bins import N_BINS, assign_bins
from kernel_archive.splits import SPLITS


def knowing(_known, wanted):
    """Reads the speedup off the text."""
    return np.array([float(code) for code in wanted.candidates])


def guessing(_known, wanted):
    """Reads nothing off it."""
    return np.array([zlib.crc32(code.encode()) % 97 for code in wanted.candidates], dtype=float)


@pytest.fixture
def rng():
    """A seeded generator."""
    return np.random.default_rng(3)


@pytest.fixture
def training(rng, training_pairs):
    """Six problems of ten programs."""
    return training_pairs(np.exp2(rng.normal(size=60)), [f"p{i % 6}" for i in range(60)])


def test_the_strength_is_the_order_found_in_problems_left_out(training, asked_pairs):
    """1 for an order that is right, pulled down by the pseudo-rows; 0 for one that is wrong or
    without a difference.
    """
    to = asked_pairs([1.0], ["new"])
    assert learnt_strength(knowing, to, training) == pytest.approx(60 / (60 + PSEUDO_ROWS))
    assert learnt_strength(lambda k, w: -knowing(k, w), to, training) == 0.0
    assert learnt_strength(lambda _, w: np.zeros(len(w)), to, training) == 0.0
    assert learnt_strength(guessing, to, training) < 0.3


def test_a_problem_is_never_learnt_from(training, asked_pairs, training_pairs):
    """Nor a program that it shares with another one; with one problem alone its searches are left
    out.
    """

    def spying(known, wanted):
        assert not set(known.problems) & set(wanted.problems)
        assert not set(known.candidates) & set(wanted.candidates)
        return knowing(known, wanted)

    learnt_strength(spying, asked_pairs([1.0], ["new"]), training)
    alone = training_pairs(training.speedups, ["p"] * 60, authors=[f"s{i % 3}" for i in range(60)])
    seen = []

    def watching(known, wanted):
        seen.append((set(known.authors), set(wanted.authors)))
        return knowing(known, wanted)

    assert learnt_strength(watching, asked_pairs([1.0], ["p"]), alone) == pytest.approx(60 / 80)
    assert all(not a & b for a, b in seen)
    assert (
        learnt_strength(
            knowing,
            asked_pairs([1.0], ["p"]),
            training_pairs([1.0, 2.0], ["p", "p"], authors=["s", "s"]),
        )
        == 0.0
    )


def test_natural_programs_alone_are_left_out(rng, asked_pairs, training_pairs):
    """A model that is right on template-made programs and wrong on natural ones is told so."""
    speedups = np.exp2(rng.normal(size=80))
    problems = [f"p{i % 4}" for i in range(40)] + [f"q{i % 4}" for i in range(40)]
    mixed = training_pairs(speedups, problems, natural=[False] * 40 + [True] * 40)

    def fooled(_known, wanted):
        values = np.array([float(code) for code in wanted.candidates])
        return np.where([p.startswith("q") for p in wanted.problems], -values, values)

    assert learnt_strength(fooled, asked_pairs([1.0], ["new"]), mixed) == 0.0
    assert learnt_strength(fooled, asked_pairs([1.0], ["new"]), mixed.take(np.arange(40))) > 0.6
    assert mixed.comparable_rows(SPLITS["eval"]).tolist() == list(range(40, 80))


def test_forecasts_are_spread_inside_each_task(training, rng, asked_pairs):
    """In the order of the scores, over even bins; without any order learnt the bins alone."""
    scores = rng.normal(size=40) + 5
    to = asked_pairs(scores, ["a"] * 20 + ["b"] * 20)
    p = spread_order(knowing, to, training)
    assert p.sum(axis=1) == pytest.approx(1.0)
    for at in (slice(0, 20), slice(20, 40)):
        mean_bin = p[at] @ np.arange(N_BINS)
        assert (np.argsort(mean_bin) == np.argsort(scores[at])).all()
        assert p[at].mean(axis=0) == pytest.approx(np.full(8, 0.125), abs=0.02)
    flat = spread_order(lambda _, w: np.zeros(len(w)), to, training)
    assert flat == pytest.approx(np.full((40, 8), 0.125), abs=1e-5)


def test_bins_that_can_be_expected(asked_pairs, training_pairs):
    """Even for an evaluation split; those of edits in training, smoothed, for discovery pairs,
    natural ones where there are any.
    """
    edits = training_pairs(
        [1.1] * 6 + [9.0] * 2, ["p"] * 8, pair_types="parent_edit", natural=[True] * 6 + [False] * 2
    )
    assert expected_bins(asked_pairs([1.0], ["p"]), edits).tolist() == [0.125] * 8
    found = expected_bins(asked_pairs([1.0], ["p"], "discovery"), edits)
    assert found == pytest.approx(np.where(np.arange(8) == 4, 7, 1) / 14)
    assert assign_bins(np.array([1.1])).tolist() == [5]
