"""Baselines by name, and the files they write."""

import json

import numpy as np
import pytest

from kernel_archive.baselines import BASELINES, forecast_lines, make_baseline
from kernel_archive.baselines import trees as trees_module
from kernel_archive.errors import UsageError


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch):
    """Fewer trees, for speed."""
    monkeypatch.setattr(trees_module, "N_TREES", 10)


@pytest.mark.parametrize("split", ["eval", "discovery"])
@pytest.mark.parametrize("name", [n for n, b in BASELINES.items() if not b.reads_launches])
def test_every_baseline_forecasts_every_row(archive, name, split):
    """Eight probabilities that sum to 1 for every row of both splits."""
    made = make_baseline(name, archive, split)
    n = archive.manifest.splits["eval" if split == "eval" else "discovery_pairs"].rows
    assert made.probabilities.shape == (n, 8)
    assert made.probabilities.sum(axis=1) == pytest.approx(1.0)
    assert np.isfinite(made.probabilities).all()
    assert (made.n_training > 0) == BASELINES[name].learns


def test_unknown_name_lists_the_known(archive):
    """A typo is answered with the nearest name, anything else with the list."""
    with pytest.raises(UsageError, match="Did you mean 'prior'"):
        make_baseline("prio", archive)
    with pytest.raises(UsageError, match="uniform, prior, trees"):
        make_baseline("zzz", archive)
    with pytest.raises(UsageError, match="boosted-order has been replaced by trees"):
        make_baseline("boosted-order", archive)


def test_the_same_archive_and_seed_give_the_same_lines(archive):
    """Row ids in the order of the split, probabilities to six decimals."""
    made = make_baseline("prior", archive)
    lines = list(forecast_lines(made))
    assert list(forecast_lines(make_baseline("prior", archive))) == lines
    decoded = [json.loads(line) for line in lines]
    assert [line["row_id"] for line in decoded] == list(made.row_ids)
    assert np.array([line["probabilities"] for line in decoded]) == pytest.approx(
        made.probabilities, abs=1e-6
    )


def test_lines_are_ordinary_forecast_lines(archive):
    """Row id, repeat and eight probabilities, nothing else."""
    line = json.loads(next(iter(forecast_lines(make_baseline("prior", archive)))))
    assert set(line) == {"row_id", "repeat", "probabilities"}
    assert len(line["probabilities"]) == 8
