"""Tests of the sandbox: every claim of its table is tried, in bubblewrap and without it."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from support import fuzz_programs
from support.cheats import NUMPY_HONEST
from support.hostile import ATTACKS, facts_of, table

from kernel_measure import sandbox
from kernel_measure.measurer import Measurer
from kernel_measure.memory import MemoryGroup, resident_gb
from kernel_measure.process import WorkerProcess
from kernel_measure.settings import Settings, WorkerConfig

README = Path(__file__).parents[1] / "README.md"
SETTINGS = Settings(
    max_runs=3,
    timeout_s=20,
    host_memory_gb=0.6,
    output_mb=1,
    candidates_per_worker=1000,
    remeasure=0,
)
PROGRAM = """import numpy as np

FACTS = {facts!r}

{source}

tried = []


def custom_kernel(data):
    x = data[0]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    if not tried:
        tried.append(True)
        try:
            {name}(FACTS)
        except Exception as error:
            print(type(error).__name__, error)
            return e, z
    return e / z[:, None], z
"""
isolated = pytest.mark.skipif(
    sandbox.why_not_isolated() is not None, reason=str(sandbox.why_not_isolated())
)
attacks = pytest.mark.parametrize("attack", ATTACKS, ids=[a.name for a in ATTACKS])


@pytest.fixture(scope="module")
def measurer():
    """A measurer whose workers run in bubblewrap."""
    with Measurer("standin", SETTINGS) as m:
        assert m.measure("rehearsal", NUMPY_HONEST).outcome == "success"
        assert m.sandbox["isolation"] == "bubblewrap"
        yield m


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory):
    """Another worker, without isolation: it shows what could be reached."""
    config = WorkerConfig(
        mode="time", task="rehearsal", device="standin", settings=SETTINGS, trusted=True
    )
    worker = WorkerProcess(config, tmp_path_factory.mktemp("cache"))
    assert worker.ready(60)
    yield worker
    worker.kill()


class Target(NamedTuple):
    """What there is to attack, and where the driver's secret lies."""

    facts: dict[str, object]
    buffer: ctypes.Array


@pytest.fixture
def target(neighbour):
    """See ``Target``."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        paths = []
        for parent in (folder, "/var/tmp", "/opt"):
            if os.access(parent, os.W_OK):
                place = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
                Path(place).chmod(0o755)
                server = stack.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(f"{place}/x.sock")
                server.listen()
                paths.append(f"{place}/x.sock")
                Path(paths[-1]).chmod(0o777)
        secret = secrets.token_hex(8)
        buffer = ctypes.create_string_buffer(secret.encode(), 16)
        file = stack.enter_context((Path(folder) / "home").open("w+b"))
        (Path(folder) / "cache" / "another").mkdir(parents=True)
        facts = {
            **facts_of(Path(folder), secret, ctypes.addressof(buffer), file.fileno()),
            "worker": neighbour.pid,
            "sockets": paths,
            "packages": site.getsitepackages()[0],
            "bytes": 1_000_000_000,
        }
        yield Target(facts, buffer)


@isolated
@attacks
def test_claim(measurer, target, attack):
    """What is said to be stopped is, and what is not gets through: no claim is wrong either way."""
    target.facts["cache"] = str(measurer.cache / "another")
    (measurer.cache / "another").mkdir(exist_ok=True)
    program = PROGRAM.format(facts=target.facts, source=attack.source, name=attack.name)
    verdict = measurer.measure("rehearsal", program)
    if attack.name in ("outlive_its_run", "outlive_its_worker"):
        measurer.end()
        got_through = bool(fuzz_programs.left_behind(target.facts["mark"]))
    elif attack.name == "write_the_drivers_memory":
        got_through = target.buffer.raw != target.facts["secret"].encode()
    else:
        got_through = verdict.outcome == "success"
    assert got_through is not attack.stopped, verdict


#: Attacks that need what this kernel may not have.
MAY_FAIL = {"leave_a_message_queue", "write_into_process_1"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights of root, to mount and to trace")
@attacks
def test_attack_works_where_nothing_stops_it(target, attack):
    """An attack that fails anyway would prove nothing: as an ordinary process each gets through."""
    code = f"{attack.source}\n{attack.name}({target.facts!r})"
    folder = Path(target.facts["home"]).parent
    with (folder / "errors").open("w+") as errors:
        command = [sys.executable, "-c", code, target.facts["mark"]]
        done = subprocess.run(command, cwd=folder, stderr=errors, check=False, timeout=60)
        assert done.returncode == 0 or attack.name in MAY_FAIL, (folder / "errors").read_text()
    assert (target.buffer.raw != target.facts["secret"].encode()) == (
        attack.name == "write_the_drivers_memory"
    )
    survivors = fuzz_programs.left_behind(target.facts["mark"])
    assert survivors or attack.name not in ("outlive_its_run", "outlive_its_worker")
    for process in survivors:
        os.kill(int(process), signal.SIGKILL)


@isolated
def test_nothing_outlives_a_killed_driver(tmp_path):
    """A driver that is killed takes its workers along, whatever their programs started."""
    mark = f"mark-{secrets.token_hex(8)}"
    hold = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}], start_new_session=True); open('up', 'w'); time.sleep(60)"  # noqa: E501
    code = (
        "import sys; from kernel_measure.measurer import Measurer; from kernel_measure.settings import Settings\n"  # noqa: E501
        "from pathlib import Path\n"
        f"Measurer('standin', Settings(), cache=Path({str(tmp_path)!r})).measure('rehearsal', {hold!r})"  # noqa: E501
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen([sys.executable, "-c", code], env=env)
    for _ in range(200):
        if list(tmp_path.glob("*/up")):
            break
        time.sleep(0.1)
    assert list(tmp_path.glob("*/up"))
    driver.kill()
    driver.wait()
    assert not fuzz_programs.left_behind(mark)


def test_programs_are_refused_where_they_cannot_be_isolated(monkeypatch, tmp_path):
    """Without bubblewrap a stranger's program does not run; the ways out are named."""
    monkeypatch.setattr(sandbox, "why_not_isolated", lambda: "bubblewrap is not installed")
    config = WorkerConfig(mode="time", task="rehearsal", device="standin", settings=SETTINGS)
    with pytest.raises(sandbox.IsolationError, match="--trusted"):
        WorkerProcess(config, tmp_path)


def test_what_the_system_has_is_not_mounted_twice(monkeypatch, tmp_path):
    """A compiler's folder in /usr may be a link, over which nothing can be mounted."""
    monkeypatch.setenv("CUDA_HOME", "/usr/bin")
    (tmp_path / "scratch").mkdir()
    command = sandbox.bubblewrap_command(tmp_path / "scratch", cache=tmp_path / "c", gpu=False)
    assert "/usr" in command
    assert "/usr/bin" not in command


@isolated
def test_a_worker_can_read_what_the_system_says_of_a_gpu(tmp_path):
    """The user that a worker becomes passes the folders above the mounts; a profiler reads them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sandbox.give_to_worker(scratch)
    command = sandbox.bubblewrap_command(scratch, cache=tmp_path / "cache", gpu=True)
    user = sandbox.worker_user()
    become = "" if user is None else f"os.setresgid(*[{user}] * 3); os.setresuid(*[{user}] * 3); "
    code = f"import os; {become}print(os.listdir('/sys/devices'))"
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "system" in done.stdout, done.stderr


def test_trusted_programs_run_without_isolation_and_it_is_said():
    """With ``trusted`` nothing is claimed: the record says none."""
    with Measurer("standin", SETTINGS, trusted=True) as m:
        assert m.measure("rehearsal", NUMPY_HONEST).outcome == "success"
        assert m.sandbox["isolation"] == "none"


def test_memory_of_a_process_counts_without_its_first_thread():
    """A process whose first thread has ended still holds what its other threads made."""
    code = (
        "import ctypes, os, threading, time\n"
        "def hold():\n    keep = bytearray(3 * 10**8); keep[::4096] = bytes(len(keep[::4096]))\n"
        "    print('up', flush=True); time.sleep(30)\n"
        "threading.Thread(target=hold).start()\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        time.sleep(0.2)
        assert resident_gb(process.pid) > 0.29
        process.kill()


def test_a_group_that_takes_no_limit_is_no_group(tmp_path, monkeypatch):
    """Where the kernel refuses the limit, memory is counted in the other way."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("kernel_measure.memory.parent_groups", lambda: [tmp_path])
    monkeypatch.setattr(Path, "write_text", refuse)
    assert MemoryGroup.make(10**9) is None
    assert not list(tmp_path.iterdir())


def test_table_of_the_readme_is_the_one_that_is_tested():
    """The README's table is made from the attacks."""
    assert table() in README.read_text("utf-8")


@pytest.mark.slow
@isolated
def test_a_slice_of_the_campaign():
    """Twelve random hostile programs."""
    fuzz_programs.run(seed=1, count=12)
