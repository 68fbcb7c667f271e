"""A team of processes, or of the workers of a Dask cluster (real processes): every call is made once, whoever dies meanwhile.

Errors name the first call at fault, and nobody is waited for in vain.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from support.calls import break_disk, kill_self, once, refuse
from support.dask_cluster import scheduler, workers
from support.puct import RunLog, program, recipe

from kernel_archive.archive import consolidate
from kernel_archive.archive import team as team_module
from kernel_archive.archive.build import build_archive
from kernel_archive.archive.team import Call, Processes, team
from kernel_archive.errors import DataError, KernelArchiveError, LogError, UsageError


def calls(*functions):
    """Calls named after their places."""
    return [Call(f"call {i}", function) for i, function in enumerate(functions)]


def square(n):
    """A call that says where it was made."""
    return n * n, os.getpid()


def fail(n):
    """A call that ends with an error."""
    raise ValueError(f"fault {n}")


def flag_and_fail(path, n):
    """A call that leaves a trace and ends with an error."""
    path.write_text("")
    fail(n)


def fail_when(path, n):
    """A call that ends with an error when a file is there."""
    wait_for(path)
    fail(n)


def die():
    """A call whose process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def slow_write(path):
    """A call that leaves a trace."""
    time.sleep(0.05)
    path.write_text("made")


def wait_for(path):
    """A call that ends when a file is there."""
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError


def test_alone_makes_every_call_here():
    """Without further processes every call is made in this one, each once."""
    found = dict(Processes().do(calls(*(partial(square, n) for n in range(5)))))
    assert found == {n: (n * n, os.getpid()) for n in range(5)}


def test_all_processes_work(tmp_path):
    """The first call goes to a further process, the second is made here: neither waits for the other."""
    flag = tmp_path / "flag"
    with team(2) as both:
        results = both.do(calls(partial(wait_for, flag), partial(flag.write_text, "here")))
        assert sorted(i for i, _ in results) == [0, 1]
        many = dict(both.do(calls(*(partial(square, n) for n in range(40)))))
    assert {n: value for n, (value, _) in many.items()} == {n: n * n for n in range(40)}


def test_nobody_waits_while_this_process_is_busy(tmp_path):
    """The call that is made here ends when the last one of the others is made: they go on without this process."""
    flag = tmp_path / "flag"
    others = [partial(square, n) for n in range(20)]
    with team(2) as both:
        found = dict(both.do(calls(partial(square, 0), partial(wait_for, flag), *others, partial(flag.write_text, ""))))
    assert len(found) == 23
    assert os.getpid() not in {found[i][1] for i in range(2, 22)}


def test_no_calls_no_results():
    """An empty list ends at once."""
    with team(2) as both:
        assert list(both.do([])) == []


def test_of_several_errors_the_first_calls_is_raised(tmp_path):
    """Whichever ends first, the error is that of the first call in the list, with its name."""
    flag = tmp_path / "flag"

    with team(2) as both, pytest.raises(ValueError, match="fault 0") as caught:
        list(both.do(calls(partial(fail_when, flag, 0), partial(flag_and_fail, flag, 1))))
    assert caught.value.__notes__ == ["at call 0"]


def test_after_an_error_no_further_call_begins(tmp_path):
    """Alone, the calls after the one at fault are not made."""
    files = [tmp_path / str(n) for n in range(3)]
    with pytest.raises(ValueError, match="fault 9"):
        list(Processes().do(calls(partial(fail, 9), *(partial(f.write_text, "made") for f in files))))
    assert not any(f.exists() for f in files)


def test_a_killed_process_is_one_clear_error():
    """A process that is ended from outside is no riddle: the call it was at is named."""
    with pytest.raises(KernelArchiveError, match=r"ended from outside.*at call 0"), team(2) as both:
        list(both.do(calls(die, partial(time.sleep, 0.1))))


def test_nobody_wants_further_results(tmp_path, capfd):
    """A consumer that stops ends the calls: none begins any more, and nothing is printed."""
    files = [tmp_path / str(n) for n in range(30)]
    with team(2) as both:
        list(both.do(calls(partial(square, 0), partial(square, 0))))  # it is up
        found = both.do(calls(*(partial(slow_write, f) for f in files)))
        next(found)
        found.close()
        assert dict(both.do(calls(partial(square, 3))))[0][0] == 9
    made = sum(f.exists() for f in files)
    assert made <= 10, "what had begun, and what lay in the queue of the other process"
    with team(2) as both:
        next(both.do(calls(*(partial(slow_write, f) for f in files))))
    assert capfd.readouterr() == ("", "")


def test_a_pool_that_takes_no_further_call_is_an_error():
    """A process that can't be started is raised as what it is."""

    class Full:
        def submit(self, call):
            raise OSError("no further process")

    with pytest.raises(OSError, match="no further process"):
        list(Processes(Full(), 1).do(calls(*(partial(square, n) for n in range(3)))))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15, 0.25, 0.35, 0.5, 0.8])
def test_a_killed_team_leaves_nobody_behind(seconds):
    """Kill -9 at any moment after the further processes were asked for: none lives on, holding what the team had open."""
    code = (
        "import time\nfrom kernel_archive.archive.team import team\n"
        "if __name__ == '__main__':\n"
        "    with team(3) as three:\n"
        "        [three._pool.submit(time.sleep, 60) for _ in range(2)]\n"
        "        print('up', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        time.sleep(seconds)
        process.kill()
        # The end of the pipe comes when nobody holds it any more.
        readable, _, _ = select.select([process.stdout], [], [], 5)
        assert readable, "a further process still holds stdout"
        assert process.stdout.read() == b""


@pytest.fixture
def both(cluster):
    """A team of the two workers."""
    with team(engine="dask", scheduler=cluster) as found:
        yield found


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
    monkeypatch.setattr(team_module, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(team_module, "CALL_SECONDS", 0.6)
    assert dict(both.do(calls(partial(once, tmp_path / "hung", partial(time.sleep, 60))))) == {0: "made"}


def test_nobody_wants_further_results_of_a_cluster(both, tmp_path):
    """A consumer that stops ends the calls; the team goes on."""
    results = both.do(calls(*(partial((tmp_path / str(n)).write_text, "x") for n in range(500))))
    next(results)
    results.close()
    assert len(list(tmp_path.iterdir())) < 500
    assert dict(both.do(calls(partial(pow, 3, 2)))) == {0: 9}


def test_another_version_on_a_worker_is_refused(both, monkeypatch):
    """A worker with another package would stage something else."""
    monkeypatch.setattr(team_module, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"a worker has kernel-archive .*, the build 0\.0\.1"):
        list(both.do(calls(partial(pow, 3, 2))))


def test_no_scheduler_at_the_address(monkeypatch):
    """A wrong address is an error of usage, with the way out; so is one without the engine."""
    monkeypatch.setattr(team_module, "CONNECT_SECONDS", 0.5)
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
