"""Who makes calls: :class:`Processes` of this machine, or those of a Dask cluster (:mod:`kernel_archive.archive.dask_team`).

This is the one place that knows how work is spread.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kernel_archive.errors import KernelArchiveError, UsageError
from kernel_archive.without_pandas import without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from kernel_archive.archive.calls import Call, Result, Team

#: What can spread work.
ENGINES: Final = ("local", "dask")


def _begin(parent: int) -> None:
    """What a further process does first: leave Ctrl-C to its parent, and end when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: from now on
    if os.getppid() != parent:  # and until now
        os._exit(1)
    # Two savings, measured as processor time of a build of 3,000 kernels with one further process:
    # 3.3 s with neither, 2.8 s with either, 2.6 s with both. The second: the interpreter gives memory back piece by piece
    # before it ends, the system at once.
    without_pandas()
    atexit.register(os._exit, 0)


class Processes:
    """This process and ``others`` further ones (none: this one alone). It works too: another takes a third of a second to begin."""

    link = None

    def __init__(self, pool: Executor | None = None, others: int = 0) -> None:
        """The further processes, and how many they are."""
        self._pool, self._others = pool, others

    def do(self, calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
        """Make all calls (:meth:`~kernel_archive.archive.calls.Team.do`)."""
        running: dict[int, Future[Result]] = {}
        failed: dict[int, BaseException] = {}
        finished: deque[int] = deque()  # told by the futures: looking through thousands after each call takes long

        def tell(i: int) -> Callable[[Future[Result]], None]:
            return lambda _: finished.append(i)

        def ended() -> Iterator[tuple[int, Result]]:
            while finished:
                i = finished.popleft()
                future = running.pop(i, None)
                if future is None:  # cancelled: its call was made here
                    continue
                error = future.exception()
                if error is None:
                    yield i, future.result()
                else:
                    failed[i] = error

        try:
            # One call is kept for this process to begin with: the others' queue takes more than they can begin.
            for i, call in enumerate(calls):
                alone = self._pool is None or i == self._others
                running[i] = Future() if alone or self._pool is None else self._pool.submit(call.function)
                running[i].add_done_callback(tell(i))
            for i in sorted(running, key=lambda i: i != self._others):
                if i in running and running[i].cancel():  # nobody has begun it
                    del running[i]
                    try:
                        result = calls[i].function()
                    except Exception as error:  # noqa: BLE001 - raised below, when it is known whether an earlier call failed
                        failed[i] = error
                    else:
                        yield i, result
                yield from ended()
                if failed:
                    break
            while running and not failed:
                wait(running.values(), return_when=FIRST_COMPLETED)
                yield from ended()
        finally:
            running = {i: future for i, future in running.items() if not future.cancel()}
        if failed:
            wait(running.values())
            finished.extend(running)
            list(ended())
            first = min(failed)
            raise _named(failed[first], calls[first].name)


def _named(error: BaseException, name: str) -> BaseException:
    """The error with the name of the call that it comes from."""
    if isinstance(error, BrokenProcessPool):
        return KernelArchiveError(
            f"a process was ended from outside (out of memory?), perhaps at {name}; or the build was started from a script "
            'without `if __name__ == "__main__":`. What was staged is kept; build again, with --jobs 1 if need be'
        )
    error.add_note(f"at {name}")
    return error


@contextmanager
def team(size: int | None = None, *, engine: str = "local", scheduler: str | None = None) -> Iterator[Team]:
    """Those who make calls.

    Args:
        size: processes, this one among them; of a cluster of one's own its workers. One per core when not given.
        engine: ``local``, processes of this machine, or ``dask``.
        scheduler: address of a running Dask scheduler (``tcp://host:8786``); a cluster of one's own on this machine without.

    Raises:
        UsageError: Dask is not installed, no scheduler answers at the address, or one was named for ``local``.
    """
    if engine == "dask":
        from kernel_archive.archive.dask_team import dask_team

        with dask_team(size, scheduler) as workers:
            yield workers
        return
    if scheduler is not None:
        raise UsageError("--scheduler is the address of a Dask cluster: it goes with --engine dask")
    size = size or os.cpu_count() or 1
    if size <= 1:
        yield Processes()
        return
    # Spawned, not forked: Arrow's threads do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size - 1, mp_context=spawn, initializer=_begin, initargs=(os.getpid(),))
    try:
        yield Processes(pool, size - 1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
