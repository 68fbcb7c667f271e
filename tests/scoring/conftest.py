"""Splits and forecasts for the scoring tests."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split


@pytest.fixture
def rng():
    """A seeded generator."""
    return np.random.default_rng(7)


@pytest.fixture
def split(rng):
    """Three tasks, 28 rows."""
    return make_split(rng)


@pytest.fixture
def forecasts(rng, split):
    """Two repeats of decent forecasts."""
    return make_forecasts(rng, split)
