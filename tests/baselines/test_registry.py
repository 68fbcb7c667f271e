"""Baselines by name, and the files they write."""

import json
import sys

import numpy as np
import pytest

from kernel_archive.baselines import registry
from kernel_archive.baselines import trees as module
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.baselines.registry import BASELINES, forecast_lines, make_baseline, prior
from kernel_archive.baselines.trees import trees
from kernel_archive.bins import assign_bins
from kernel_archive.errors import MissingExtraError, UsageError
from kernel_archive.scoring import rules as metrics
from kernel_archive.scoring.asked import load_asked_pairs


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch):
    """Fewer trees, for speed."""
    monkeypatch.setattr(module, "N_TREES", 40)


@pytest.mark.parametrize("split", ["eval", "discovery"])
@pytest.mark.parametrize("name", [n for n, b in BASELINES.items() if not b.reads_launches])
def test_every_baseline_forecasts_every_row(archive, name, split):
    """Eight probabilities that sum to 1 for every row of both splits."""
    forecasts = make_baseline(name, archive, split)
    n = archive.manifest.splits["eval" if split == "eval" else "discovery_pairs"].rows
    assert forecasts.probabilities.shape == (n, 8)
    assert forecasts.probabilities.sum(axis=1) == pytest.approx(1.0)
    assert np.isfinite(forecasts.probabilities).all()
    assert (forecasts.n_training > 0) == BASELINES[name].learns


@pytest.mark.parametrize("name", ["uniform", "prior", "trees"])
def test_a_split_without_rows_has_no_forecasts(archive, asked_pairs, monkeypatch, name):
    """Nothing is asked, so nothing is forecast."""
    monkeypatch.setattr(registry, "load_asked_pairs", lambda *_: asked_pairs([], []))
    forecasts = make_baseline(name, archive)
    assert (forecasts.row_ids, forecasts.probabilities.shape) == ((), (0, 8))


def test_unknown_name_lists_the_known(archive):
    """A typo is answered with the nearest name, anything else with the list."""
    with pytest.raises(UsageError, match="Did you mean 'prior'"):
        make_baseline("prio", archive)
    with pytest.raises(UsageError, match="uniform, prior, trees"):
        make_baseline("zzz", archive)


def test_the_same_archive_and_seed_give_the_same_lines(archive):
    """Row id, repeat and eight probabilities to six decimals, in the order of the split."""
    forecasts = make_baseline("prior", archive)
    lines = list(forecast_lines(forecasts))
    assert list(forecast_lines(make_baseline("prior", archive))) == lines
    decoded = [json.loads(line) for line in lines]
    assert all(set(line) == {"row_id", "repeat", "probabilities"} for line in decoded)
    assert [line["row_id"] for line in decoded] == list(forecasts.row_ids)
    probabilities = np.array([line["probabilities"] for line in decoded])
    assert probabilities == pytest.approx(forecasts.probabilities, abs=1e-6)


def test_prior_is_the_smoothed_frequency_of_native_pairs(asked_pairs, training_pairs):
    """Worked by hand: two seed pairs of p in bin 5, one of q in bin 8; the edit does not count."""
    pair_types = ("seed", "seed", "seed", "parent_edit")
    pairs = training_pairs([1.2, 1.3, 9.0, 0.1], "ppqp", pair_types=pair_types)
    p, q, unknown = prior(asked_pairs([1.0] * 3, "pqr"), pairs)
    everything = (np.array([0, 0, 0, 0, 2, 0, 0, 1]) + 1) / 11
    assert p == pytest.approx((np.array([0, 0, 0, 0, 2, 0, 0, 0]) + 4 * everything) / 6)
    assert q == pytest.approx((np.array([0, 0, 0, 0, 0, 0, 0, 1]) + 4 * everything) / 5)
    assert unknown == pytest.approx(everything)
    # The anchor of a discovery row is a parent, so parent edits are its like.
    pairs = training_pairs([9.0, 0.1], "pp", pair_types=("seed", "parent_edit"))
    assert prior(asked_pairs([1.0], "p", "discovery"), pairs)[0].argmax() == 0


def test_they_learn_what_follows_from_the_text(archive):
    """Where speedup follows from tile, warps and passes, they beat the prior by far."""
    asked, training = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    truth = assign_bins(archive.arrow("eval")["speedup"].to_numpy())
    p = trees(asked, training, seed=1)
    assert p.sum(axis=1) == pytest.approx(1.0)
    ours = metrics.crps(probabilities=p, bins=truth).mean()
    theirs = metrics.crps(probabilities=prior(asked, training), bins=truth).mean()
    assert ours < 0.8 * theirs


def test_same_seed_same_forecasts_also_of_one_row(archive):
    """Bit for bit; where nothing can be left out, the bins alone."""
    asked, training = load_asked_pairs(archive, "discovery"), load_training_pairs(archive)
    assert (trees(asked, training, seed=3) == trees(asked, training, seed=3)).all()
    asked = load_asked_pairs(archive, "eval")
    lone = training.take(np.flatnonzero(training.same_pair_type(asked.split))[:1])
    assert trees(asked, lone) == pytest.approx(np.full((len(asked), 8), 0.125), abs=1e-5)


def test_without_scikit_learn_they_name_the_extra(archive, monkeypatch):
    """A missing library is said at once, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kernel-archive\[learn\]' \(in a"):
        make_baseline("trees", archive)
