"""The boosted ordinal model and its calibration."""

import builtins

import numpy as np
import pytest

from kernel_archive.bins import assign_bins
from kernel_archive.errors import MissingExtraError
from kernel_archive.forecasters import baselines as simple
from kernel_archive.forecasters import boosted as module
from kernel_archive.forecasters.boosted import boosted, boosted_order
from kernel_archive.forecasters.pairs import load_asked_pairs, load_training_pairs
from kernel_archive.scoring import metrics
from kernel_archive.splits import SPLITS


@pytest.fixture(scope="module")
def truth(archive):
    """Measured bins of the evaluation rows."""
    return assign_bins(archive.arrow("eval")["speedup"].to_numpy())


@pytest.mark.parametrize(("make", "share"), [(boosted, 0.5), (boosted_order, 0.8)])
def test_it_learns_what_follows_from_the_text(archive, truth, make, share):
    """Where speedup follows from tile, warps and passes, it beats the prior by far on programs it has not seen."""
    target, pairs = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    p = make(target, pairs, seed=1)
    assert p.sum(axis=1) == pytest.approx(1.0)
    assert (p > 0).all()
    ours = metrics.crps(probabilities=p, bins=truth).mean()
    prior = metrics.crps(probabilities=simple.prior(target, pairs), bins=truth).mean()
    assert ours < share * prior


def test_same_seed_same_forecasts(archive):
    """Bit for bit."""
    target, pairs = load_asked_pairs(archive, "discovery"), load_training_pairs(archive)
    assert (boosted(target, pairs, seed=3) == boosted(target, pairs, seed=3)).all()


def test_the_order_of_training_rows_does_not_matter(archive):
    """Sampling apart, the fit sees a set; its sums differ at most in the last digits."""
    target, pairs = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    turned = pairs.take(np.arange(len(pairs))[::-1])
    assert boosted(target, turned) == pytest.approx(boosted(target, pairs), abs=1e-6)


def test_too_many_pairs_are_sampled_native_first(archive, monkeypatch):
    """The bound holds and pairs made as the split's rows are stay."""
    pairs = load_training_pairs(archive)
    monkeypatch.setattr(module, "MAX_PAIRS", 150)
    part = module._sampled(pairs, SPLITS["eval"], seed=0)
    assert len(part) == 150
    assert sum(k == "seed" for k in part.kinds) == min(150, sum(k == "seed" for k in pairs.kinds))


def test_training_all_in_one_end_bin_is_no_crash(archive):
    """A training set without contrast forecasts what it saw."""
    target, pairs = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    fast = type(pairs)(**{**vars(pairs), "speedups": np.full(len(pairs), 50.0)})
    assert (boosted(target, fast).argmax(axis=1) == 7).all()


def test_evaluation_rows_weigh_alike_per_problem_and_bin():
    """Four rows of one bin weigh together what the definition of the split gives a cell, nearly that of a lone row's."""
    bins = np.array([5, 5, 5, 5, 8, 2], dtype=np.int8)
    w = module.design_weights(("p", "p", "p", "p", "p", "q"), bins, SPLITS["eval"])
    assert w.mean() == pytest.approx(1.0)
    assert w[4] == w[5] == pytest.approx(2 * w[0])
    assert (module.design_weights(("p",) * 6, bins, SPLITS["discovery"]) == 1).all()


def test_natural_pairs_get_their_share_of_the_weight(archive):
    """Two natural pairs of a hundred weigh what they are given, and without a share what they come with."""
    pairs = load_training_pairs(archive).take(np.arange(100))
    natural = np.arange(100) < 2
    mixed = type(pairs)(**{**vars(pairs), "natural": natural})
    w = module.pair_weights(mixed, SPLITS["eval"], "paper", natural_share=0.3)
    assert w[natural].sum() == pytest.approx(30)
    assert w.sum() == pytest.approx(100)
    as_they_come = module.pair_weights(mixed, SPLITS["eval"], "paper", natural_share=None)
    assert w[natural] / w[0] == pytest.approx(as_they_come[natural] / as_they_come[0])
    for alike in (~natural & natural, natural | ~natural):
        plain = type(pairs)(**{**vars(pairs), "natural": alike})
        assert (module.pair_weights(plain, SPLITS["eval"], "paper") == as_they_come).all()


def test_without_scikit_learn_it_names_the_extra(archive, monkeypatch):
    """A missing library is said with the command that installs it."""
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError("No module named 'sklearn'")
        return real(name, *args, **kwargs)

    target, pairs = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'kernel-archive\[learn\]'"):
        boosted(target, pairs)
