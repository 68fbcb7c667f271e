"""What tests of several rooms share: the embedded archive, built once a run."""

import gc
import os
import sys

# Before numpy is loaded, here and in whatever starts from here: a process per core runs the tests,
# and where each of them multiplies matrices on all cores, threads wait for threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from filelock import FileLock

from kernel_archive.pipeline import build

# Some two hundred processes begin in a run, and each would compile the package anew (0.25 s), as
# each of the two that run the tests would all of them (5 s), where the environment says that Python
# writes no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test pulls the plug, and none waits for the disk; tests/test_storage.py counts what is flushed.
os.fsync = lambda descriptor: None


def pytest_collection_finish():
    """Keep the garbage collector from looking through what was imported."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Nothing is left behind when the interpreter ends."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """The embedded archive, built as `kernel-archive build` builds it; the directory that holds it
    under its own name.

    The processes of a run (pytest-xdist) share one; whoever needs it first builds it. Read only.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place = base / "shipped/gpu-forecasters/kernels"
    with FileLock(base / "shipped.lock"):
        if not place.exists():
            build(out=place)
    return base / "shipped"


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """A small archive: two problems, three training searches and one held-out search each; 48 rows
    of eval, their edges as discovery pairs. Read only.
    """
    from support.small_archive import write_archive

    return write_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def cluster():
    """Give the address of a Dask scheduler with two workers, all processes."""
    pytest.importorskip("distributed")
    from support.dask_cluster import scheduler, workers

    with scheduler() as (address, _), workers(address):
        yield address
