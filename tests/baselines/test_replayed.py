"""Forecasts of recorded programs by name."""

import numpy as np
import pytest

from kernel_archive.baselines.pairs import load_asked_pairs
from kernel_archive.baselines.registry import forecasts_by_name
from kernel_archive.errors import UsageError
from kernel_archive.scoring.worlds import load_worlds


def test_a_baseline_and_a_cue_forecast_the_rows_of_worlds(archive):
    """Same rows, same order, also for a split."""
    worlds = load_worlds(archive)
    asked = load_asked_pairs(archive, "replay")
    assert asked.row_ids == worlds.row_ids
    assert all(asked.anchors)
    assert all(asked.candidates)
    for split in ("replay", "eval", "discovery"):
        part = load_worlds(archive, split=split)
        for name in ("code_length", "nearest"):
            made = forecasts_by_name(name, archive, part)
            assert made.probabilities.shape == (1, len(part.row_ids), 8)
            np.testing.assert_allclose(made.probabilities.sum(axis=2), 1.0)


def test_an_unknown_name_gets_the_nearest(archive):
    """Baselines and cues are suggested."""
    with pytest.raises(UsageError, match="code_length"):
        forecasts_by_name("code_lenght", archive, load_worlds(archive))
