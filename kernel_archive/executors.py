"""All parallel work goes through an executor: this process, a pool of processes, Dask, any other.

Only calls and small results pass through it: logs and fragments lie where all workers see them.
"""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kernel_archive.errors import KernelArchiveError, UsageError, install_of, printable

RETRIES: Final = 2  # Dask makes a call again this many times after an error of its machine
MAX_IN_FLIGHT: Final = 500  # hand over at most this many calls at a time; the others wait here
#: Look after this many silent seconds whether the scheduler is still there.
WATCH_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 10  # give up connecting to a scheduler after this many seconds
_KEPT: Final = "What was staged is kept. Build again"

Result = TypeVar("Result")


class Call(NamedTuple, Generic[Result]):
    """A piece of work that may run twice: what it writes must be atomic and the same both times."""

    name: str  # for messages
    function: Callable[[], Result]  # picklable


class SerialExecutor(Executor):
    """Runs each call in this process, when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call now."""
        future = Future[Any]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


def iterate_results(
    executor: Executor, calls: Sequence[Call[Result]]
) -> Iterator[tuple[int, Result]]:
    """Run all calls in their order; yield the position and result of each as it ends.

    After an error, or when the iterator is closed, no further call begins.

    Raises:
        KernelArchiveError: a worker was killed (out of memory, say), or the scheduler is gone.
        Exception: that of a call, with a note that names the call.
    """
    running: dict[Future[Any], int] = {}
    limit = 1 if isinstance(executor, SerialExecutor) else MAX_IN_FLIGHT
    waiting = iter(enumerate(calls))
    try:
        while True:
            _check_scheduler(executor)
            for i, call in itertools.islice(waiting, limit - len(running)):
                running[executor.submit(_run_call, call)] = i
            if not running:
                return
            ended = wait(running, WATCH_SECONDS, FIRST_COMPLETED).done
            _check_scheduler(executor, ended)
            for future in sorted(ended, key=running.__getitem__):
                result = _result_of(future, calls[running[future]])
                yield running.pop(future), result
    except BrokenProcessPool as error:
        name = calls[min(running.values(), default=0)].name
        raise KernelArchiveError(
            f"a process was killed from outside (out of memory?), perhaps at {name}; or the script "
            'that started the work lacks `if __name__ == "__main__":`. '
            f"{_KEPT}, with --jobs 1 if need be"
        ) from error
    finally:
        for future in running:
            future.cancel()


def _run_call(call: Call[Any]) -> Any:
    """Run a call on a worker; return an error of ours, which Dask would try again if raised."""
    try:
        return call.function()
    except KernelArchiveError as error:
        return error


def _result_of(future: Future[Any], call: Call[Any]) -> Any:
    """Return the result of a call that has ended, or raise its error with its name."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise error
    if type(error).__name__ == "KilledWorker":
        error = KernelArchiveError(
            f"several workers in turn were killed (out of memory?). {_KEPT} with more memory per "
            "worker, or take the run out of its path"
        )
    elif error is None and isinstance(future.result(), KernelArchiveError):
        error = future.result()
    if error is not None:
        error.add_note(f"at {call.name}")
        raise error
    return future.result()


def _check_scheduler(executor: Executor, ended: Iterable[Future[Any]] = ()) -> None:
    """Raise KernelArchiveError when the scheduler of a Dask executor is gone."""
    client = getattr(executor, "_client", None)  # where distributed keeps it
    gone = client is not None and client.status != "running"
    if gone or any(future.cancelled() for future in ended):
        raise KernelArchiveError(f"the Dask scheduler is gone. {_KEPT} when it is back")


@contextmanager
def open_executor(
    jobs: int | None = None, *, engine: str = "local", scheduler: str | None = None
) -> Iterator[Executor]:
    """Open an executor of ``jobs`` processes; 1 runs everything in this process.

    The engine ``dask`` takes the workers of a scheduler (``tcp://host:8786``), or starts some here.

    Raises:
        UsageError: Dask is not installed, no scheduler answers, or one was named for ``local``.
    """
    jobs = jobs or os.cpu_count() or 1
    if engine == "dask":
        with _dask_executor(jobs, scheduler) as executor:
            yield executor
    elif scheduler is not None:
        raise UsageError("--scheduler is the address of a Dask cluster: it goes with --engine dask")
    elif jobs <= 1:
        yield SerialExecutor()
    else:
        # Spawned, not forked: Arrow's threads do not survive a fork.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start_worker) as pool:
            yield pool


def _start_worker() -> None:
    """Prepare a process of the pool: leave Ctrl-C to the parent, and end when the parent does."""

    def exit_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    gc.set_threshold(100_000)  # as in the command line
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextmanager
def _dask_executor(jobs: int, scheduler: str | None) -> Iterator[Executor]:
    """Connect to a scheduler, or start a cluster of ``jobs`` processes on this machine."""
    try:
        from distributed import Client
    except ImportError:
        need = f"--engine dask needs dask.distributed: {install_of('dask')}"
        raise UsageError(need) from None
    # What Dask prints of lost connections is in the cluster's own log, too.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    arguments: dict[str, Any] = {"address": scheduler, "timeout": CONNECT_SECONDS}
    if scheduler is None:
        arguments = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    try:
        client = Client(**arguments, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {printable(scheduler)}: {printable(error, 200)}. "
            "Start one (dask scheduler), or leave --scheduler out for a cluster on this machine"
        ) from None
    with client:
        yield client.get_executor(pure=False, retries=RETRIES)
