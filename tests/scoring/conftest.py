"""Splits, forecasts and an archive for the scoring tests."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split
from support.small_archive import write_archive


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


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """A small archive with an evaluation split and discovery pairs."""
    return write_archive(tmp_path_factory.mktemp("archive"))
