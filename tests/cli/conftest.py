"""The command line as a user calls it."""

import pytest

from kernel_archive.cli import main


@pytest.fixture(scope="session")
def archive(archive):
    """The directory of the small archive."""
    return archive.path


@pytest.fixture
def run(capsys):
    """Runs a command; status, stdout, stderr."""

    def call(*arguments):
        status = main(list(map(str, arguments)))
        return status, *capsys.readouterr()

    return call
