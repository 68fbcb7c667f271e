"""All parallel work goes through an executor: this process, a pool of processes, or Dask.

>>> from functools import partial
>>> calls = [Call("square", partial(pow, 2, 2)), Call("cube", partial(pow, 3, 3))]
>>> with open_executor(jobs=1) as executor:
...     collect_results(executor, calls)
[4, 27]

Only calls and small results pass through an executor. What is large lies where all workers see it:
in the logs and the fragments.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import multiprocessing
import os
import queue
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kernel_archive._version import __version__
from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.without_pandas import without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed import Client

#: Dask makes a call again this many times after an error of its machine (full disk, killed
#: worker, lost connection); then the build ends.
RETRIES: Final = 2
#: At most this many calls are under way; the others wait here, since a scheduler holds a million
#: badly.
MAX_IN_FLIGHT: Final = 1000
#: Look after this many silent seconds whether the scheduler is still there.
WATCH_SECONDS: Final = 5.0
#: A worker of our own cluster is dead after this many silent seconds.
WORKER_SECONDS: Final = 60
#: Give up connecting to a scheduler after this many seconds.
CONNECT_SECONDS: Final = 10

Result = TypeVar("Result")


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One piece of work: a name for messages, and a picklable function without arguments.

    It may run twice, on two machines: what it writes must be atomic and the same both times.
    """

    name: str
    function: Callable[[], Result]


class SerialExecutor(Executor):
    """Runs each call in this process, when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


class DaskExecutor(Executor):
    """Runs calls on the workers of a Dask cluster, through the executor of its client."""

    def __init__(self, client: Client) -> None:
        """Take a connected client."""
        self._client = client
        self._executor = client.get_executor(pure=False, retries=RETRIES)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call to the scheduler."""
        self.check_connected()
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def check_connected(self) -> None:
        """Raise KernelArchiveError when the scheduler is gone."""
        if self._client.status != "running":
            raise _lost_scheduler()


def collect_results(executor: Executor, calls: Sequence[Call[Result]]) -> list[Result]:
    """Run all calls; return results in their order. Errors as in :func:`iterate_results`."""
    results = dict(iterate_results(executor, calls))
    return [results[i] for i in range(len(calls))]


def iterate_results(
    executor: Executor, calls: Sequence[Call[Result]]
) -> Iterator[tuple[int, Result]]:
    """Run all calls; yield the position and result of each as it ends.

    Put the longest call first. After an error, or when the iterator is closed, no further call
    begins.

    Raises:
        KernelArchiveError: a worker was killed (out of memory, say), or the scheduler is gone.
        Exception: that of the first call at fault, with a note that names the call.
    """
    running: dict[Future[Any], int] = {}
    failures: dict[int, BaseException] = {}
    ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    most = 1 if isinstance(executor, SerialExecutor) else MAX_IN_FLIGHT
    waiting = iter(enumerate(calls))
    try:
        while True:
            for i, call in itertools.islice(waiting, 0 if failures else most - len(running)):
                future = executor.submit(_run_call, call, __version__)
                running[future] = i
                future.add_done_callback(ended.put)
            if not running:
                break
            future = _next_future(ended, executor)
            if future not in running:
                continue
            error = _error_of(future)
            i = running.pop(future)
            if error is None:
                yield i, future.result()
                continue
            failures[i] = error
            # What comes after a failed call is not waited for; an earlier one may fail, too.
            for later in [f for f, n in running.items() if n > min(failures)]:
                later.cancel()
                del running[later]
    except BrokenProcessPool as error:
        name = calls[min(running.values(), default=0)].name
        raise KernelArchiveError(
            f"a process was killed from outside (out of memory?), perhaps at {name}; or the script "
            'that started the work lacks `if __name__ == "__main__":`. What was staged is kept. '
            "Build again, with --jobs 1 if need be"
        ) from error
    finally:
        for future in running:
            future.cancel()
    if failures:
        first = min(failures)
        failures[first].add_note(f"at {calls[first].name}")
        raise failures[first]


def _next_future(ended: queue.SimpleQueue[Future[Any]], executor: Executor) -> Future[Any]:
    """Wait for a future that has ended, and look now and then whether the scheduler has."""
    while True:
        try:
            return ended.get(timeout=WATCH_SECONDS)
        except queue.Empty:
            if isinstance(executor, DaskExecutor):
                executor.check_connected()


def _error_of(future: Future[Any]) -> BaseException | None:
    """Return the error that a call ended with, if any.

    Raises:
        KernelArchiveError: the scheduler is gone.
        BrokenProcessPool: a process of a local pool was killed.
    """
    if future.cancelled():  # nobody here cancels what is still listed as running
        raise _lost_scheduler()
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise error
    if error is None:
        result = future.result()
        return result if isinstance(result, KernelArchiveError) else None
    if type(error).__name__ == "KilledWorker":
        return KernelArchiveError(
            "several workers in turn were killed (out of memory?). What was staged is kept. Build "
            "again with more memory per worker, or take the run out of its path"
        )
    return error


def _run_call(call: Call[Any], version: str) -> Any:
    """Run a call on a worker; return an error of ours, which Dask would try again if raised."""
    if version != __version__:
        message = f"a worker has kernel-archive {__version__}, the build {version}"
        return UsageError(f"{message}. Install the same on all machines")
    try:
        return call.function()
    except KernelArchiveError as error:
        return error


def _lost_scheduler() -> KernelArchiveError:
    return KernelArchiveError(
        "the Dask scheduler is gone. What was staged is kept: build again when it is back"
    )


@contextmanager
def open_executor(
    jobs: int | None = None, *, engine: str = "local", scheduler: str | None = None
) -> Iterator[Executor]:
    """Open an executor for the block.

    Args:
        jobs: processes, one per core when not given; 1 runs everything in this process.
        engine: ``local``, processes of this machine, or ``dask``.
        scheduler: address of a running Dask scheduler (``tcp://host:8786``); without one, a cluster
            on this machine.

    Raises:
        UsageError: Dask is not installed, no scheduler answers, or one was named for ``local``.
    """
    if engine == "dask":
        with _connected(jobs, scheduler) as client:
            yield DaskExecutor(client)
        return
    if scheduler is not None:
        raise UsageError("--scheduler is the address of a Dask cluster: it goes with --engine dask")
    jobs = jobs or os.cpu_count() or 1
    if jobs <= 1:
        yield SerialExecutor()
        return
    # Spawned, not forked: Arrow's threads do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Prepare a process of the pool: leave Ctrl-C to the parent, and end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    without_pandas()
    # The interpreter gives memory back piece by piece before it ends, the system at once.
    atexit.register(os._exit, 0)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _connected(jobs: int | None, scheduler: str | None) -> Iterator[Client]:
    """A client of the scheduler, or of a new cluster of ``jobs`` processes on this machine."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError(
            "--engine dask needs dask.distributed: pip install 'kernel-archive[dask]'"
        ) from None
    # What Dask prints of lost connections stands in the cluster's own log.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {printable(scheduler)}: "
                f"{printable(str(error), 200)}. "
                "Start one (dask scheduler), or leave --scheduler out for a cluster on this machine"
            ) from None
        with client:
            yield client
        return
    lifetime = {"distributed.scheduler.worker-ttl": f"{WORKER_SECONDS} s"}
    with (
        dask.config.set(lifetime),
        LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
