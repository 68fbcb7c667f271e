"""Tests of the confined worker."""

from __future__ import annotations

import os
import signal

import pytest
from support.cheats import NUMPY_HONEST

from kernel_measure.failures import failure_by
from kernel_measure.measurer import Measurer, MeasurerError, ReferenceBand
from kernel_measure.process import LostRequest, WorkerProcess
from kernel_measure.sandbox import worker_environment
from kernel_measure.settings import Settings, WorkerConfig
from kernel_measure.worker import Reply

GOOD = NUMPY_HONEST


@pytest.fixture
def measurer():
    """A measurer with a short time limit."""
    with Measurer(
        "standin", Settings(max_runs=4, timeout_s=3, host_memory_gb=1.0, output_mb=1)
    ) as m:
        yield m


def during(statement):
    """A good program that first runs a statement in its call."""
    body = "".join(f"    {line}\n" for line in statement.splitlines())
    return GOOD.replace("def custom_kernel(data):\n", f"def custom_kernel(data):\n{body}")


def test_environment_of_the_parent_is_gone(measurer, monkeypatch, tmp_path):
    """Secrets in the driver's environment do not reach a program: only what compilers need does."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    looks = "import os\nassert 'HF_TOKEN' not in os.environ, 'leaked'"
    m = measurer.measure("rehearsal", during(looks))
    assert m.outcome == "success", m.error
    env = worker_environment(tmp_path / "s")
    assert "HF_TOKEN" not in env
    assert env["HOME"] == env["TMPDIR"] == str(tmp_path / "s")


def test_folders_within_folders_go_away(tmp_path):
    """A tree deeper than Python's recursion is removed with its worker, and the driver goes on."""
    deep = "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')\n" + GOOD
    with Measurer("standin", Settings(max_runs=3), cache=tmp_path / "cache") as m:
        m.measure("rehearsal", deep)
    assert not list((tmp_path / "cache").glob("kernel-archive-worker-*"))


def test_last_words_of_a_dead_program_are_kept(measurer):
    """They may say why it died: its exit alone does not."""
    code = "import os, sys\nprint('what(): bad size', file=sys.stderr, flush=True)\nos.abort()\n"
    m = measurer.measure("rehearsal", code + GOOD)
    assert m.error_name == "WorkerDied"
    assert m.error.endswith(": what(): bad size")


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("while True: pass", "Timeout"),
        ("import os\nos._exit(7)", "WorkerDied"),
        ("import os\nos.abort()", "WorkerDied"),
        ("import ctypes\nctypes.string_at(0)", "WorkerDied"),
        ("open('big', 'wb').write(bytes(8 << 20))", "OSError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("raise ValueError('mine')", "ValueError"),
    ],
)
def test_crash_hang_and_excess_are_verdicts(measurer, statement, name):
    """Whatever a program does to its process is its own runtime error."""
    m = measurer.measure("rehearsal", during(statement))
    assert (m.outcome, m.error_name) == ("runtime_error", name), m
    assert measurer.measure("rehearsal", GOOD).outcome == "success"


def test_a_program_that_takes_too_much_memory_is_ended():
    """Two gigabytes where one is allowed: a verdict of its own, long before the time limit."""
    statement = "import time\nkeep = [bytearray(1 << 28) for _ in range(8)]\nfor k in keep: k[::4096] = bytes(1 << 16)\ntime.sleep(90)"  # noqa: E501
    with Measurer(
        "standin", Settings(max_runs=4, timeout_s=60, host_memory_gb=1.0, output_mb=1)
    ) as m:
        verdict = m.measure("rehearsal", during(statement))
    assert (verdict.outcome, verdict.error_name) == ("runtime_error", "MemoryLimit"), verdict


@pytest.mark.parametrize(
    "code",
    [
        "def custom_kernel(data)\n",
        "import no_such_module_at_all\n",
        "x = 1\n",
        "raise SystemExit(3)\n",
        "custom_kernel = 3\n",
        "\x00",
    ],
)
def test_program_that_does_not_load_is_compile_failed(measurer, code):
    """Syntax, imports, a missing entry point: the program never ran."""
    m = measurer.measure("rehearsal", code)
    assert m.outcome == "compile_failed", m


TIMED = {"runs": 3, "mean": 9.0, "median": 9.0, "std": 0.0, "err": 0.0, "best": 9.0, "worst": 9.0}
FAST = TIMED | {"median": 1e-300}


@pytest.mark.parametrize(
    "cases",
    [
        [],
        [{"shape": {"rows": 8}}],
        [{"shape": {}, "candidate": TIMED}],
        [{"shape": {}, "candidate": TIMED | {"median": 0.0}, "reference": TIMED}],
        [{"shape": {}, "candidate": TIMED, "reference": TIMED | {"median": -1.0}}],
        [{"shape": {}, "candidate": FAST, "reference": TIMED | {"median": 1e300}}],
        [{"shape": {}, "failure_kind": "success", "candidate": TIMED, "reference": TIMED}],
    ],
)
def test_result_without_times_fails_its_program_alone(monkeypatch, cases):
    """What a worker answers is not trusted to be a verdict."""
    with Measurer("standin", Settings(max_runs=3)) as m:
        monkeypatch.setattr(WorkerProcess, "ask", lambda *_: Reply(result={"cases": cases}))
        said = m.measure("rehearsal", GOOD)
    assert (said.outcome, said.error_name) == ("infrastructure_failure", "HarnessError")
    assert said.speedup is None
    assert said.error.startswith("unreadable result: ")


@pytest.mark.parametrize(
    "line",
    [
        *("b'\\xff'", "b'[' * 10**6", "b'\"\\xff\"'", "b'{\"result\": ' + b'[' * 10**6"),
        """b'{"nonce": "", "result": {"cases": []}}'""",
    ],
    ids=["no text", "lists", "no letters", "lists in a result", "forged"],
)
def test_answer_that_a_program_writes_is_not_believed(measurer, line):
    """A result of its own, bytes that are no text, lists in lists without end: all is garbage."""
    code = during(
        f"import os\nline = {line} + b'\\n'\n"
        "for fd in range(3, 200):\n    try:\n        os.write(fd, line)\n    except OSError:\n        pass"  # noqa: E501
    )
    m = measurer.measure("rehearsal", code)
    assert (m.outcome, m.error_name) == ("runtime_error", "ForgedReply")
    assert m.speedup is None


def test_worker_is_replaced_after_its_share(measurer):
    """One program per worker by default, so that nothing of it can reach the next.

    Inputs differ from worker to worker: no program can know its inputs beforehand, and the salt in
    the record gives them again.
    """
    measured = [measurer.measure("rehearsal", GOOD) for _ in range(2)]
    assert all(m.fresh_worker for m in measured)
    assert len({m.salt for m in measured}) == 2
    assert all(len(m.salt) == 16 for m in measured)


def test_failure_in_a_used_worker_is_confirmed_in_a_fresh_one():
    """What a program left behind must not fail the next one."""
    poison = "import sys\nsys.modules['numpy'].spoiled = True\n" + GOOD
    victim = "import numpy\n" + GOOD.replace(
        "def custom_kernel(data):\n",
        "def custom_kernel(data):\n    if hasattr(numpy, 'spoiled'):\n        raise RuntimeError('spoiled')\n",  # noqa: E501
    )
    with Measurer("standin", Settings(max_runs=3, candidates_per_worker=10)) as m:
        assert m.measure("rehearsal", poison).outcome == "success"
        again = m.measure("rehearsal", victim)
        assert (again.outcome, again.fresh_worker) == ("success", True)


def test_case_off_the_band_is_measured_again_then_marked(monkeypatch):
    """A reference that runs at another speed than usual costs a repetition."""
    case = {"shape": {"rows": 8}, "candidate": TIMED}
    answers = [Reply(result={"cases": [{**case, "reference": TIMED}]})] * 6
    slow = {**TIMED, "median": 2 * TIMED["median"]}
    answers += [Reply(result={"cases": [{**case, "reference": slow}]})] * 3
    monkeypatch.setattr(WorkerProcess, "ask", lambda *_: answers.pop(0))
    with Measurer("standin", Settings(max_runs=3, remeasure=2, candidates_per_worker=100)) as m:
        for _ in range(6):
            assert m.measure("rehearsal", GOOD).attempts == 1
        again = m.measure("rehearsal", GOOD)
    assert not answers
    assert (again.attempts, again.off_band) == (3, ["rows=8"])


def test_worker_that_does_not_come_up_is_the_harness_s_fault():
    """A device that is not there is said once, in words, and is no verdict on a program."""
    with (
        Measurer("nowhere", Settings()) as m,
        pytest.raises(MeasurerError, match="no worker for rehearsal"),
    ):
        m.measure("rehearsal", GOOD)


def test_a_compiler_s_folders_are_left_out():
    """What a compiler says of the program stays; where it lies on the machine does not."""
    said = (
        "Error building: [1/2] /usr/local/bin/nvcc -isystem /opt/site-packages/torch/include -c /tmp/c/q05/cuda.cu -o a/b.o\n"  # noqa: E501
        '/tmp/c/q05/cuda.cu(22): error: "at" // twice, 3/4, https://example.org/x'
    )
    assert failure_by(RuntimeError(said), at_import=True).error == (
        "RuntimeError: Error building: [1/2] nvcc -isystem include -c cuda.cu -o a/b.o\n"
        'cuda.cu(22): error: "at" // twice, 3/4, https://example.org/x'
    )
    first_call = type("PTXASError", (RuntimeError,), {})("ptxas fatal: no /tmp/t/x.ptx")
    assert failure_by(first_call).error == "ptxas fatal: no x.ptx"
    assert failure_by(ValueError("no /tmp/t/x.ptx")).error == "no /tmp/t/x.ptx"


def test_request_to_a_dead_worker_is_lost_not_raised(tmp_path):
    """A worker that died while idle gives a loss with its cause."""
    config = WorkerConfig(mode="time", task="rehearsal", device="standin", settings=Settings())
    worker = WorkerProcess(config, tmp_path)
    assert worker.ready(30)
    if worker._init_pidfd >= 0:  # process 1 of its namespace: what stands before it is bubblewrap
        signal.pidfd_send_signal(worker._init_pidfd, signal.SIGKILL)
    else:
        os.kill(worker.pid, signal.SIGKILL)
    answer = worker.ask(GOOD, 5)
    worker.kill()
    assert isinstance(answer, LostRequest)
    assert "SIGKILL" in answer.text


def test_band_is_settled_and_follows():
    """The first measurements define what is usual; old ones are forgotten."""
    band = ReferenceBand(1.1)
    for t in (100.0, 101.0, 99.0, 100.0, 100.0):
        assert band.observe({"a": t}) == []
    for time, off in ((111.0, ["a"]), (90.0, ["a"]), (109.0, [])):
        assert band.observe({"a": time, "another case": time}) == off
    for _ in range(201):
        band.observe({"a": 200.0})
    assert band.observe({"a": 200.0}) == []
