"""A small archive to ask about, and services that answer."""

from contextlib import ExitStack

import pytest
from support.llm_server import language_model
from support.small_archive import write_archive


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Two problems, one held-out search each: 48 rows of eval, their edges as discovery pairs."""
    return write_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def service():
    """Starts services; each is stopped after the test."""
    with ExitStack() as running:
        yield lambda behaviour=None: running.enter_context(language_model(behaviour))
