"""A team of processes: every call is made once, errors name the first call at fault, nobody is waited for in vain."""

import os
import select
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from kernel_archive.archive.calls import Call
from kernel_archive.archive.team import Processes, team
from kernel_archive.errors import KernelArchiveError


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
