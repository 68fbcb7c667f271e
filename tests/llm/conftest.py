"""A small archive to ask about."""

import pytest
from support.small_archive import write_archive


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Two problems, one held-out search each: 48 rows of eval, their edges as discovery pairs."""
    return write_archive(tmp_path_factory.mktemp("archive"))
