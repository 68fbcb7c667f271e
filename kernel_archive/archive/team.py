"""Work as calls, and who makes them: :class:`Processes` of this machine, or the workers of a Dask cluster (:class:`DaskTeam`).

This is the one place that knows how work is spread: calls in, results as they end (:meth:`Team.do`). Through the scheduler of a
cluster (on Slurm, Kubernetes, in a cloud, or on this machine) go calls, that is a function's name, keys and small records, and
small results. Whatever is large lies where all workers see it: in the logs, and in the staging area
(:mod:`kernel_archive.archive.store`).
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import multiprocessing
import os
import queue
import signal
import sys
import time
import uuid
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from kernel_archive._version import __version__
from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.without_pandas import without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    import distributed

#: A call that failed for a reason of its machine (a full disk, a lost connection) is made again so many times.
RETRIES: Final = 2
#: So many calls are handed out as one, where there are very many.
MOST_TOGETHER: Final = 64
#: Every so many seconds it is looked whether scheduler and workers still live.
WATCH_SECONDS: Final = 5.0
#: No call takes so long: what does hangs, and its worker is started again.
CALL_SECONDS: Final = 1800.0
#: So often a call may hang.
MOST_HANGS: Final = 2
#: A worker of a cluster of one's own that says nothing for so long is dead (stopped, out of its mind).
WORKER_SECONDS: Final = 60
#: An address that does not answer for so long is wrong.
CONNECT_SECONDS: Final = 10

Result = TypeVar("Result")
#: Calls under way on a cluster by key: their positions in the list, and what stands for the results.
_Running: TypeAlias = "dict[tuple[str, ...], tuple[list[int], distributed.Future]]"


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One piece of work: a name for messages, and a function without arguments that pickle can take elsewhere.

    It may be made twice, on two machines: what it writes is whole or not there, and the same both times.
    """

    name: str
    function: Callable[[], Result]


class Team(Protocol):
    """Whoever makes calls."""

    @property
    def link(self) -> str | None:
        """Where the work can be watched, if anywhere."""

    def do(self, calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
        """Make all calls; position and result of each as it ends.

        Put the longest first: whoever is free takes the next. After an error, or when nobody wants further results (the
        iterator is closed), no further call begins. Of several errors that of the first call in the list is raised, with
        the name of the call.

        Raises:
            KernelArchiveError: a call's own; or a process was ended from outside, and the message names the call.
        """


def results(workers: Team, calls: Sequence[Call[Result]]) -> list[Result]:
    """The results of calls, in their order."""
    found = dict(workers.do(calls))
    return [found[i] for i in range(len(calls))]


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
        """Make all calls (:meth:`Team.do`)."""
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


def _made(functions: Sequence[Callable[[], Any]], version: str) -> list[tuple[bool, Any]]:
    """On a worker: the result of every call, or the error that it would end with on every machine."""
    if version != __version__:
        message = f"a worker has kernel-archive {__version__}, the build {version}. Install the same on all machines"
        return [(False, UsageError(message))]
    made: list[tuple[bool, Any]] = []
    for function in functions:
        try:
            made.append((True, function()))
        except KernelArchiveError as error:
            made.append((False, error))
            break
    return made


class DaskTeam:
    """The workers of a cluster."""

    def __init__(self, client: distributed.Client) -> None:
        """A connected client."""
        self._client = client

    @property
    def link(self) -> str | None:
        """The scheduler's dashboard; it needs Bokeh where the scheduler is."""
        return str(self._client.dashboard_link) if find_spec("bokeh") else None

    def do(self, calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
        """Make all calls (:meth:`Team.do`).

        A call whose worker dies or hangs is made again on another. One that was on several workers that ended is made once
        more when all others are done, alone: only then is it known which of the calls they had ended them.
        """
        suspects: dict[int, BaseException] = {}
        deadly: dict[int, BaseException] = {}
        yield from self._round(calls, range(len(calls)), suspects)
        for i in sorted(suspects):
            yield from self._round(calls, [i], deadly)
        if deadly:
            names = ", ".join(calls[i].name for i in sorted(deadly))
            raise KernelArchiveError(
                f"every worker that was given {printable(names, 300)} ended or hung (out of memory?): "
                f"{printable(str(deadly[min(deadly)]), 200)}. Everything else is done and kept: build again with workers that "
                "have more memory, or take it out of its path"
            )

    def _round(
        self, calls: Sequence[Call[Result]], wanted: Iterable[int], deadly: dict[int, BaseException]
    ) -> Iterator[tuple[int, Result]]:
        """Make the wanted calls; those that ended their workers are added to ``deadly``."""
        waiting = deque(wanted)
        running: _Running = {}
        ended: queue.SimpleQueue[distributed.Future] = queue.SimpleQueue()
        failed: dict[int, BaseException] = {}
        watch = _Watch(self._client)
        try:
            while running or (waiting and not failed):
                # Never all at once: a scheduler holds a million calls badly, and what was never begun need not be cancelled.
                room = 0 if failed else watch.room - len(running)
                # Many are handed out some together: each thing handed out costs the scheduler milliseconds.
                together = min(MOST_TOGETHER, max(1, len(waiting) // (4 * watch.room)))
                groups = [
                    [waiting.popleft() for _ in range(min(together, len(waiting)))]
                    for _ in range(min(room, -(-len(waiting) // together)))
                ]
                running |= self._begun(calls, groups, ended)
                batch = [running.pop(f.key) for f in _next(ended) if f.key in running]
                if not batch:
                    for key in watch.hanging(running):
                        for i in running.pop(key)[0]:
                            deadly[i] = KernelArchiveError(f"it took more than {CALL_SECONDS:g} s, {MOST_HANGS} times")
                good = []
                for group, future in batch:
                    if future.status == "cancelled":
                        raise _lost(self._client)
                    if future.status != "error":
                        good.append((group, future))
                    elif type(future.exception()).__name__ == "KilledWorker":
                        deadly |= dict.fromkeys(group, future.exception())
                    else:  # of its machine, or one that nobody foresaw
                        failed[group[0]] = future.exception()
                try:  # fetched together: one by one takes five times as long
                    values = self._client.gather([future for _, future in good])
                except Exception as error:
                    if self._client.status != "running" or any(future.status == "cancelled" for _, future in good):
                        raise _lost(self._client) from error
                    for group, future in good:  # the worker that had the results is gone: they are made once more
                        running[future.key] = group, future
                        future.add_done_callback(ended.put)
                    continue
                for (group, _), made in zip(good, values, strict=True):
                    for i, (fine, value) in zip(group, made, strict=False):
                        if fine:
                            yield i, value
                        else:
                            failed[i] = value
                # An earlier call may fail too: it is the one to name.
                for key in [key for key, (group, _) in running.items() if failed and group[0] > min(failed)]:
                    self._client.cancel([running.pop(key)[1]])
        finally:
            if running and self._client.status == "running":
                self._client.cancel([future for _, future in running.values()])
        if failed:
            first = min(failed)
            raise _named(failed[first], calls[first].name)

    def _begun(
        self, calls: Sequence[Call[Result]], groups: list[list[int]], ended: queue.SimpleQueue[distributed.Future]
    ) -> _Running:
        """Hand calls to the scheduler, each group as one; what it calls them."""
        if not groups:
            return {}
        # The first part is what the dashboard counts them under.
        keys = [("kernel-archive", calls[group[0]].name, uuid.uuid4().hex) for group in groups]
        functions = [[calls[i].function for i in group] for group in groups]
        futures = self._client.map(_made, functions, version=__version__, key=keys, retries=RETRIES, batch_size=None)
        for future in futures:
            future.add_done_callback(ended.put)
        return {future.key: (group, future) for group, future in zip(groups, futures, strict=True)}


def _next(ended: queue.SimpleQueue[distributed.Future]) -> Iterator[distributed.Future]:
    """Calls that ended, as soon as there is one; none after a while without any."""
    try:
        yield ended.get(timeout=WATCH_SECONDS)
        while True:
            yield ended.get_nowait()
    except queue.Empty:
        return


def _lost(client: distributed.Client) -> KernelArchiveError:
    where = getattr(client.scheduler, "address", "its address")
    return KernelArchiveError(
        f"the Dask scheduler at {where} is gone. What was staged is kept: build again when it is back"
    )


class _Watch:
    """Looks now and then whether scheduler and workers still do something."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._since: dict[tuple[str, ...], float] = {}
        self._hangs: Counter[tuple[str, ...]] = Counter()
        self._next = 0.0
        self._room = 0

    @property
    def room(self) -> int:
        """How many calls may be under way: enough for all workers, also for those that came since."""
        if time.monotonic() > self._next:
            try:
                threads = sum(self._client.nthreads().values())
            except Exception as error:  # whatever the connection raises
                raise _lost(self._client) from error
            self._room, self._next = 4 * threads + 16, time.monotonic() + WATCH_SECONDS
        return self._room

    def hanging(self, running: _Running) -> list[tuple[str, ...]]:
        """Calls that hung too often; the worker of one that hangs for the first time is started again."""
        if self._client.status != "running":
            raise _lost(self._client)
        try:
            places = {key: worker for worker, keys in self._client.processing().items() for key in keys}
        except Exception as error:  # whatever the connection raises
            raise _lost(self._client) from error
        now = time.monotonic()
        self._since = {key: self._since.get(key, now) for key in places if key in running}
        late = [key for key, since in self._since.items() if now - since > CALL_SECONDS * len(running[key][0])]
        for key in late:
            self._hangs[key] += 1
            self._since.pop(key)
            if self._hangs[key] >= MOST_HANGS:
                self._client.cancel([running[key][1]])
            # The thread of a call can't be stopped, its process can; whatever else it was at is made elsewhere.
            self._client.restart_workers([places[key]], raise_for_error=False)
        return [key for key in late if self._hangs[key] >= MOST_HANGS]


@contextmanager
def _dask_team(size: int | None, scheduler: str | None) -> Iterator[DaskTeam]:
    """A team of the workers at a scheduler, or of ``size`` processes of a cluster of one's own (one per core).

    Raises:
        UsageError: Dask is not installed, or no scheduler answers.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError("--engine dask needs dask.distributed: pip install 'kernel-archive[dask]'") from None
    # What it prints of connections that end is for whoever runs the cluster: it stands in the cluster's own log.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {printable(scheduler)}: {printable(str(error), 200)}. "
                "Start one (dask scheduler), or leave --scheduler out for a cluster on this machine"
            ) from None
        with client:
            yield DaskTeam(client)
        return
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": f"{WORKER_SECONDS} s"}),
        LocalCluster(
            n_workers=size,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield DaskTeam(client)


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
        with _dask_team(size, scheduler) as workers:
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
