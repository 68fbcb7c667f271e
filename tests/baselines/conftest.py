"""A small archive for the forecasters."""

import pytest
from support.small_archive import write_archive


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """An archive of two problems, three training searches and one held-out search each."""
    return write_archive(tmp_path_factory.mktemp("archive"))
