"""A team of processes: every call is made once, errors are those of the first call at fault, nobody is waited for in vain."""

import os
import signal
import time
from functools import partial

import pytest

from kernel_archive.archive.team import Team, team
from kernel_archive.errors import KernelArchiveError


def square(n):
    """A call that says where it was made."""
    return n * n, os.getpid()


def fail(n, seconds=0.0):
    """A call that ends with an error."""
    time.sleep(seconds)
    raise ValueError(f"call {n}")


def die():
    """A call whose process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def nap(seconds):
    """A call that takes a while."""
    time.sleep(seconds)
    return os.getpid()


def slow_write(path):
    """A call that leaves a trace."""
    time.sleep(0.05)
    path.write_text("made")


def wait_for(path):
    """A call that ends when a file is there."""
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError


def test_alone_makes_every_call_here():
    """Without further processes every call is made in this one, each once."""
    alone = Team()
    found = dict(alone.do([partial(square, n) for n in range(5)]))
    assert found == {n: (n * n, os.getpid()) for n in range(5)}


def test_all_processes_work(tmp_path):
    """The first call goes to a further process, the second is made here: neither waits for the other."""
    flag = tmp_path / "flag"
    with team(2) as both:
        results = both.do([partial(wait_for, flag), partial(flag.write_text, "here")])
        assert sorted(i for i, _ in results) == [0, 1]
        many = dict(both.do([partial(square, n) for n in range(40)]))
    assert {n: value for n, (value, _) in many.items()} == {n: n * n for n in range(40)}


def test_nobody_waits_while_this_process_is_busy():
    """One long call here; meanwhile the other process makes all the others, one after another."""
    with team(2) as both:
        list(both.do([partial(nap, 0), partial(nap, 0)]))  # it is up
        found = dict(both.do([partial(nap, 0.01), partial(nap, 2), *[partial(nap, 0.01)] * 20]))
    here = [n for n, process in found.items() if process == os.getpid()]
    assert here == [1] or (len(here) > 15 and 1 not in here)


def test_no_calls_no_results():
    """An empty list ends at once."""
    with team(2) as both:
        assert list(both.do([])) == []


def test_of_several_errors_the_first_calls_is_raised():
    """Whichever ends first, the message is that of the first call in the list."""
    with team(2) as both, pytest.raises(ValueError, match="call 0"):
        list(both.do([partial(fail, 0, 0.5), partial(fail, 1)]))


def test_after_an_error_no_further_call_begins(tmp_path):
    """Alone, the calls after the one at fault are not made."""
    files = [tmp_path / str(n) for n in range(3)]
    with pytest.raises(ValueError, match="call 9"):
        list(Team().do([partial(fail, 9), *(partial(f.write_text, "made") for f in files)]))
    assert not any(f.exists() for f in files)


def test_a_killed_process_is_one_clear_error():
    """A process that is ended from outside is no riddle."""
    with pytest.raises(KernelArchiveError, match="ended from outside"), team(2) as both:
        list(both.do([die, partial(time.sleep, 0.1)]))


def test_nobody_wants_further_results(tmp_path, capfd):
    """A consumer that stops ends the calls: none begins any more, and nothing is printed."""
    files = [tmp_path / str(n) for n in range(30)]
    with team(2) as both:
        list(both.do([partial(nap, 0), partial(nap, 0)]))  # it is up
        found = both.do([*(partial(slow_write, f) for f in files)])
        next(found)
        found.close()
        time.sleep(0.5)
        made = sum(f.exists() for f in files)
        assert made <= 4
        assert dict(both.do([partial(square, 3)]))[0][0] == 9
    assert sum(f.exists() for f in files) == made
    with team(2) as both:
        next(both.do([*(partial(slow_write, f) for f in files)]))
    assert capfd.readouterr() == ("", "")


def test_a_pool_that_takes_no_further_call_is_an_error():
    """A process that can't be started, seen in the pool's own thread, ends the wait."""

    class Full:
        def submit(self, call):
            raise OSError("no further process")

    with pytest.raises(OSError, match="no further process"):
        list(Team(Full(), 1).do([partial(square, n) for n in range(3)]))
