"""Work shared by this process and further ones.

This process works too: a further process costs a third of a second before it does anything, and on two cores that is half
of what it brings.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from kernel_archive.errors import KernelArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["Team", "team"]

Result = TypeVar("Result")


class _NoPandas:
    """Arrow imports pandas, where it is installed, before it converts its first list: a third of a second for nothing."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed here", name=name)


def _begin() -> None:
    """A further process ends with this one, leaves Ctrl-C to it, and does without pandas."""
    sys.meta_path.insert(0, _NoPandas())
    atexit.register(os._exit, 0)  # at once: the system takes back the memory faster than the interpreter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Team:
    """This process and ``others`` further ones (none: this one alone).

    Args:
        pool: the further processes.
        others: how many.
    """

    def __init__(self, pool: ProcessPoolExecutor | None = None, others: int = 0) -> None:
        self._pool, self._others = pool, others if pool is not None else 0

    def do(self, calls: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        """Make all calls; position and result of each as it ends.

        Put the longest first: whoever is free takes the next. Calls and results go through pickle. After an error, or when
        nobody wants further results, no further call begins; of several errors that of the first call in the list is raised.
        """
        todo = deque(enumerate(calls))
        handed_out: list[int] = []
        ended: SimpleQueue[tuple[int, Future[Result] | Exception]] = SimpleQueue()
        failed: dict[int, BaseException] = {}
        seen = 0

        def take() -> tuple[int, Callable[[], Result]] | None:
            with suppress(IndexError):  # also when another thread was faster
                return todo.popleft()
            return None

        def hand_out() -> None:
            if self._pool is None or (next_one := take()) is None:
                return
            i, call = next_one
            handed_out.append(i)
            try:
                self._pool.submit(call).add_done_callback(partial(take_back, i))
            except Exception as error:  # noqa: BLE001 - a pool that is broken or closed: raised by whoever waits for the result
                ended.put((i, error))

        # Called in a thread of the pool, so that nobody waits while this process is busy. The next call is handed out before
        # the result is passed on: whoever has seen the results of all handed-out calls has seen all.
        def take_back(i: int, future: Future[Result]) -> None:
            if future.cancelled() or future.exception() is not None:
                todo.clear()
            hand_out()
            ended.put((i, future))

        def results(*, wait: bool) -> Iterator[tuple[int, Result]]:
            nonlocal seen
            while seen < len(handed_out) and (wait or not ended.empty()):
                i, future = ended.get()
                seen += 1
                fault = future if isinstance(future, Exception) else future.exception()
                if fault is None and not isinstance(future, Exception):
                    yield i, future.result()
                elif fault is not None:
                    failed[i] = fault
                    todo.clear()

        try:
            for _ in range(self._others):
                hand_out()
            while (mine := take()) is not None:
                i, call = mine
                try:
                    result = call()
                except Exception as error:  # noqa: BLE001 - raised below, when it is known whether an earlier call failed too
                    failed[i] = error
                    todo.clear()
                else:
                    yield i, result
                yield from results(wait=False)
            yield from results(wait=True)
        finally:
            todo.clear()
        if failed:
            raise failed[min(failed)]


@contextmanager
def team(size: int) -> Iterator[Team]:
    """A team of so many processes, this one among them.

    Raises:
        KernelArchiveError: a further process was ended from outside.
    """
    # Spawned, not forked: Arrow's threads do not survive a fork.
    pool = (
        ProcessPoolExecutor(size - 1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
        if size > 1
        else None
    )
    try:
        yield Team(pool, size - 1)
    except BrokenProcessPool as error:
        raise KernelArchiveError(
            "a process that read logs was ended from outside (out of memory?), or the build was started from a script "
            'without `if __name__ == "__main__":`. What was staged is kept; build again, with --jobs 1 if need be'
        ) from error
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
