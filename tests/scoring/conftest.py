"""Targets and forecasts for the scoring tests."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target


@pytest.fixture
def rng():
    """A seeded generator."""
    return np.random.default_rng(7)


@pytest.fixture
def target(rng):
    """Three tasks, 28 rows."""
    return make_target(rng)


@pytest.fixture
def forecasts(rng, target):
    """Two repeats of decent forecasts."""
    return make_forecasts(rng, target)
