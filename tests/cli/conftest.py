"""The command line as a user calls it."""

import pytest
from support.small_archive import write_archive

from kernel_archive.cli import main


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """The directory of a small archive."""
    return write_archive(tmp_path_factory.mktemp("archive")).path


@pytest.fixture
def run(capsys):
    """Runs a command; status, stdout, stderr."""

    def call(*arguments):
        status = main(list(map(str, arguments)))
        return status, *capsys.readouterr()

    return call
