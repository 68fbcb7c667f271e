"""Executors: this process, a pool of processes, and the workers of a real Dask cluster.

Errors name the call at fault, and nobody is waited for in vain.
"""

import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.calls import break_disk, kill_self, once, refuse
from support.dask_cluster import scheduler, workers

from kernel_archive import executors
from kernel_archive.errors import DataError, KernelArchiveError, UsageError
from kernel_archive.executors import Call, SerialExecutor, iterate_results, open_executor


def calls(*functions):
    """Calls named after their places."""
    return [Call(f"call {i}", function) for i, function in enumerate(functions)]


def squares(n):
    """Calls with results that are easy to check."""
    return calls(*(partial(pow, i, 2) for i in range(n)))


def collect_results(executor, calls):
    """The results in the order of the calls."""
    return [result for _, result in sorted(iterate_results(executor, calls))]


def fail(n):
    """A call that ends with an error."""
    raise ValueError(f"fault {n}")


def slow_write(path):
    """A call that leaves a trace."""
    time.sleep(0.05)
    path.write_text("")


@pytest.fixture(scope="module")
def pool():
    """Two processes."""
    with open_executor(2) as executor:
        yield executor


@pytest.mark.parametrize("kind", ["serial", "pool", "threads"])
def test_every_call_runs_once(kind, pool):
    """Every executor of the standard library will do; an empty list ends at once."""
    threads = ThreadPoolExecutor(2)
    executor = {"serial": SerialExecutor(), "pool": pool, "threads": threads}[kind]
    assert collect_results(executor, squares(40)) == [n * n for n in range(40)]
    assert list(iterate_results(executor, [])) == []
    pids = set(collect_results(executor, calls(os.getpid, os.getpid)))
    assert (os.getpid() in pids) is (kind != "pool")
    threads.shutdown()


@pytest.mark.parametrize("serial", [True, False])
def test_after_an_error_or_a_stop_no_further_call_begins(tmp_path, pool, serial):
    """What was submitted and not begun is cancelled; the executor goes on."""
    executor = SerialExecutor() if serial else pool
    files = [tmp_path / str(n) for n in range(40)]
    writes = [partial(slow_write, file) for file in files]
    with pytest.raises(ValueError, match="fault 9"):
        collect_results(executor, calls(partial(fail, 9), *writes[:20]))
    results = iterate_results(executor, calls(*writes[20:]))
    next(results)
    results.close()
    assert collect_results(executor, squares(3)) == [0, 1, 4]
    assert sum(file.exists() for file in files) <= (1 if serial else 16)


def test_a_killed_process_is_one_clear_error():
    """A process that is killed from outside is no riddle: the call it had is named."""
    killed = pytest.raises(KernelArchiveError, match=r"killed from outside.*at call 0")
    with killed, open_executor(2) as executor:
        collect_results(executor, calls(kill_self, partial(time.sleep, 0.1)))


@pytest.mark.parametrize("seconds", [0.0, 0.35])
def test_a_killed_parent_leaves_nobody_behind(seconds):
    """After kill -9 no process of the pool lives on, holding what the parent had open."""
    code = (
        "import time\nfrom kernel_archive.executors import open_executor\n"
        "if __name__ == '__main__':\n"
        "    with open_executor(2) as pool:\n"
        "        [pool.submit(time.sleep, 60) for _ in range(2)]\n"
        "        print('up', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.readline() == b"up\n"
        time.sleep(seconds)
        process.kill()
        # The end of the pipe comes when nobody holds it any more.
        readable, _, _ = select.select([process.stdout], [], [], 10)
        assert readable, "a process of the pool still holds stdout"
        assert process.stdout.read() == b""


def test_wrong_usage(monkeypatch):
    """A wrong address, an address without the engine, and a missing extra each name the way out."""
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    nobody = "tcp://127.0.0.1:9"
    faults = {f"answers at {nobody}": "dask", "goes with --engine dask": "local"}
    for message, engine in faults.items():
        wrong = open_executor(2, engine=engine, scheduler=nobody)
        with pytest.raises(UsageError, match=message), wrong:
            pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"'\.\[dask\]'"), open_executor(engine="dask"):
        pass


@pytest.fixture
def dask(cluster):
    """The executor of two workers."""
    with open_executor(engine="dask", scheduler=cluster) as executor:
        yield executor


@pytest.mark.slow
def test_a_deadly_call_is_an_error_that_says_so():
    """A call that kills every worker ends the work after some attempts.

    Its workers are its own: on a busy machine they may not come up again.
    """
    with (
        scheduler() as (address, _),
        workers(address),
        open_executor(engine="dask", scheduler=address) as executor,
        pytest.raises(KernelArchiveError, match="workers in turn were killed"),
    ):
        collect_results(executor, calls(kill_self))


@pytest.mark.slow
def test_an_error_of_ours_is_not_retried(dask, tmp_path):
    """It is the record that it would be on this machine, and nothing begins behind it."""
    late = [partial(slow_write, tmp_path / str(n)) for n in range(300)]
    with pytest.raises(DataError, match="fault 1") as caught:
        collect_results(dask, calls(partial(pow, 2, 2), partial(refuse, 1), *late))
    assert (caught.value.__notes__, caught.value.findings[0].code) == (["at call 1"], "bad")
    assert len(list(tmp_path.iterdir())) < 300


@pytest.mark.slow
def test_what_fails_for_its_machine_runs_again(dask, tmp_path):
    """A full disk and a killed worker end a call once; it runs again, and all beside it do."""
    broken = partial(once, tmp_path / "disk", break_disk)
    killed = partial(once, tmp_path / "process", kill_self)
    results = collect_results(dask, calls(broken, killed, *(partial(pow, n, 2) for n in range(20))))
    assert results == ["made", "made", *(n * n for n in range(20))]


@pytest.mark.slow
def test_a_lost_scheduler_is_an_error():
    """The scheduler killed in the middle is an error that says so, at once and for later calls."""
    with (
        scheduler() as (address, process),
        workers(address, 1, "--no-nanny"),
        open_executor(engine="dask", scheduler=address) as executor,
    ):
        results = iterate_results(executor, squares(3) + calls(partial(time.sleep, 60)))
        next(results)
        process.kill()
        for _ in range(2):
            with pytest.raises(KernelArchiveError, match="is gone"):
                list(results)
            results = iterate_results(executor, squares(3))
