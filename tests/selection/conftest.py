"""What tests of several modules of this room share."""

from __future__ import annotations

import shutil

import pytest
from support.archives import make_archive
from support.parents import RUNS, SEARCHES

from kernel_archive.selection.make import make_splits


@pytest.fixture(scope="session")
def parents(tmp_path_factory):
    """A hand-made archive of two parents with seven children each, with its splits. Read only."""
    place = make_archive(tmp_path_factory.mktemp("parents") / "a", SEARCHES, RUNS, version="1.0")
    make_splits(place)
    return place


@pytest.fixture
def place(parents, tmp_path):
    """A copy of it."""
    return shutil.copytree(parents, tmp_path / "a")
