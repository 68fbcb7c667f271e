"""Extra trees on static features."""

import sys

import numpy as np
import pytest

from kernel_archive.baselines import trees as module
from kernel_archive.baselines.pairs import load_asked_pairs, load_training_pairs
from kernel_archive.baselines.registry import prior as prior_of
from kernel_archive.baselines.trees import trees
from kernel_archive.bins import assign_bins
from kernel_archive.errors import MissingExtraError
from kernel_archive.scoring import rules as metrics


@pytest.fixture(autouse=True)
def _fewer_trees(monkeypatch):
    monkeypatch.setattr(module, "N_TREES", 40)


def test_they_learn_what_follows_from_the_text(archive):
    """Where speedup follows from tile, warps and passes, they beat the prior by far."""
    asked, training = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    truth = assign_bins(archive.arrow("eval")["speedup"].to_numpy())
    p = trees(asked, training, seed=1)
    assert p.sum(axis=1) == pytest.approx(1.0)
    ours = metrics.crps(probabilities=p, bins=truth).mean()
    prior = metrics.crps(probabilities=prior_of(asked, training), bins=truth).mean()
    assert ours < 0.8 * prior


def test_same_seed_same_forecasts_also_of_one_row(archive):
    """Bit for bit; where nothing can be left out, the bins alone."""
    asked, training = load_asked_pairs(archive, "discovery"), load_training_pairs(archive)
    assert (trees(asked, training, seed=3) == trees(asked, training, seed=3)).all()
    asked = load_asked_pairs(archive, "eval")
    lone = training.take(np.flatnonzero(training.native(asked.split))[:1])
    assert trees(asked, lone) == pytest.approx(np.full((len(asked), 8), 0.125), abs=1e-5)


def test_without_scikit_learn_they_name_the_extra(archive, monkeypatch):
    """A missing library is said with the command that installs it."""
    asked, training = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kernel-archive\[learn\]'"):
        trees(asked, training)
