"""The workers of a Dask cluster, real processes: the same results, whoever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from functools import partial

import pytest
from support.calls import break_disk, kill_self, once, refuse
from support.dask_cluster import scheduler, workers
from support.puct import RunLog, program, recipe

from kernel_archive.archive import consolidate, dask_team
from kernel_archive.archive.build import build_archive
from kernel_archive.archive.calls import Call
from kernel_archive.archive.team import team
from kernel_archive.errors import DataError, KernelArchiveError, LogError, UsageError


@pytest.fixture
def both(cluster):
    """A team of the two workers."""
    with team(engine="dask", scheduler=cluster) as found:
        yield found


def calls(*functions):
    """Calls named after their places."""
    return [Call(f"call {i}", function) for i, function in enumerate(functions)]


def test_every_call_is_made(both):
    """All results come, each with its position; a list without calls ends at once."""
    assert dict(both.do(calls(*(partial(pow, n, 2) for n in range(200))))) == {n: n * n for n in range(200)}
    assert list(both.do([])) == []


def test_many_calls_go_together(both):
    """Hundreds of calls are handed out some together; a deadly one among them still fails alone."""
    many = [partial(pow, n, 2) for n in range(500)]
    many[300] = kill_self
    made = {}
    results = both.do(calls(*many))
    with pytest.raises(KernelArchiveError, match=r"given call 300 ended or hung"):
        made.update(results)
    assert made == {n: n * n for n in range(500) if n != 300}


def test_an_error_of_ours_names_the_first_call(both, tmp_path):
    """It is the record that it would be on this machine, of the first call at fault, and nothing begins behind it."""
    late = [partial((tmp_path / str(n)).write_text, "made") for n in range(300)]
    with pytest.raises(DataError, match="fault 1") as caught:
        list(both.do(calls(partial(pow, 2, 2), partial(refuse, 1), partial(refuse, 2), *late)))
    assert caught.value.__notes__ == ["at call 1"]
    assert caught.value.findings[0].code == "bad"
    assert len(list(tmp_path.iterdir())) < 300


def test_what_fails_for_its_machine_is_made_again(both, tmp_path):
    """A full disk and a killed worker end a call once; it is made again, and so is what lay beside it."""
    broken = partial(once, tmp_path / "disk", break_disk)
    killed = partial(once, tmp_path / "process", kill_self)
    found = dict(both.do(calls(broken, killed, *(partial(pow, n, 2) for n in range(20)))))
    assert found == {0: "made", 1: "made", **{n + 2: n * n for n in range(20)}}


def test_a_hanging_call_is_made_elsewhere(both, tmp_path, monkeypatch):
    """A call that does not end is stopped with its process and made again."""
    monkeypatch.setattr(dask_team, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(dask_team, "CALL_SECONDS", 0.6)
    assert dict(both.do(calls(partial(once, tmp_path / "hung", partial(time.sleep, 60))))) == {0: "made"}


def test_nobody_wants_further_results(both, tmp_path):
    """A consumer that stops ends the calls; the team goes on."""
    results = both.do(calls(*(partial((tmp_path / str(n)).write_text, "x") for n in range(500))))
    next(results)
    results.close()
    assert len(list(tmp_path.iterdir())) < 500
    assert dict(both.do(calls(partial(pow, 3, 2)))) == {0: 9}


def test_another_version_on_a_worker_is_refused(both, monkeypatch):
    """A worker with another package would stage something else."""
    monkeypatch.setattr(dask_team, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"a worker has kernel-archive .*, the build 0\.0\.1"):
        list(both.do(calls(partial(pow, 3, 2))))


def test_no_scheduler_at_the_address(monkeypatch):
    """A wrong address is an error of usage, with the way out; so is one without the engine."""
    monkeypatch.setattr(dask_team, "CONNECT_SECONDS", 0.5)
    nobody = "tcp://127.0.0.1:9"
    with pytest.raises(UsageError, match=f"answers at {nobody}"), team(engine="dask", scheduler=nobody):
        pass
    with pytest.raises(UsageError, match="goes with --engine dask"), team(2, scheduler="tcp://127.0.0.1:9"):
        pass


def test_without_dask_it_is_said_what_to_install(monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"kernel-archive\[dask\]"), team(engine="dask"):
        pass


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A recipe of six runs."""
    folder = tmp_path_factory.mktemp("logs")
    for n in range(6):
        run = RunLog(serial=1000 * (n + 1))
        root = run.root(program("seed"), 1.0)
        for k in range(5):
            run.child(root, program(f"p{n}_{k}"), 1.5 + k / 3 + n / 10)
        run.write(folder / f"logs/run_{n}")
    return recipe(folder, ("logs/*", "held_out"))


@pytest.fixture(scope="module")
def alone(logs, tmp_path_factory):
    """The archive of one process: its directory, and what was built."""
    out = tmp_path_factory.mktemp("alone") / "a"
    return out, build_archive([str(logs)], out=out, jobs=1)


def test_the_same_archive(cluster, logs, alone, tmp_path, monkeypatch):
    """Rows, digest and bytes are those of one process, merged in parts or not; the work can be watched."""
    said = []
    monkeypatch.setattr(consolidate, "PART_ROWS", 12)
    spread = build_archive([str(logs)], out=tmp_path / "b", engine="dask", scheduler=cluster, say=said.append)
    assert spread.logical_digest == alone[1].logical_digest
    assert (alone[0] / "manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()
    assert "watched at http" in said[0]


def test_a_worker_that_says_nothing(cluster, logs, alone, tmp_path):
    """A worker is stopped in the middle of the build: the scheduler misses it, others make its calls, the digest is the same."""
    import distributed

    with distributed.Client(cluster, set_as_default=False) as client:
        victim = max(client.run(os.getpid).values())
    stopped = []

    def advance(done, total, what=""):
        if not stopped:
            stopped.append(os.kill(victim, signal.SIGSTOP))

    built = build_archive([str(logs)], out=tmp_path / "b", engine="dask", scheduler=cluster, advance=advance)
    assert (built.logical_digest, len(stopped)) == (alone[1].logical_digest, 1)


def test_a_poisoned_log_is_an_error_with_its_name(cluster, logs, tmp_path):
    """What the log says is wrong, says the error, as on one machine."""
    shutil.copytree(logs.parent, tmp_path / "src")
    (tmp_path / "src/logs/run_3/events.jsonl").write_text("no events\n")
    with pytest.raises(LogError, match="run_3"):
        build_archive(
            [str(tmp_path / "src" / logs.name)], out=tmp_path / "b", engine="dask", scheduler=cluster, strict=True
        )


def test_the_scheduler_lost_keeps_what_is_done(logs, alone, tmp_path):
    """The scheduler killed in the middle is an error that says so; the next build reads only what was not read."""
    with scheduler() as (address, process), workers(address, 1, "--no-nanny"):

        def advance(done, total, what=""):
            if done == 1:
                process.kill()

        with pytest.raises(KernelArchiveError, match="is gone"):
            build_archive([str(logs)], out=tmp_path / "b", engine="dask", scheduler=address, advance=advance)
    again = build_archive([str(logs)], out=tmp_path / "b", jobs=1)
    assert again.staged < again.runs
    assert again.logical_digest == alone[1].logical_digest
