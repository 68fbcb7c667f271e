"""Tests of the sandbox: every claim of its table is tried, with the filter alone, in bubblewrap, and without either."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fuzz.programs import run
from support.hostile import ATTACKS, table

from kernel_archive.measure import process, sandbox
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.process import WorkerProcess
from kernel_archive.measure.settings import Settings
from kernel_archive.measure.worker import Config

README = Path(sandbox.__file__).with_name("README.md")
SETTINGS = Settings(max_runs=3, timeout_s=20, host_memory_gb=0.6, output_mb=1, candidates_per_worker=1000, remeasure=0)
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
linux = pytest.mark.skipif(
    sys.platform != "linux" or sandbox.filter_program(platform.machine()) is None,
    reason="no system call filter for this machine",
)
attacks = pytest.mark.parametrize("attack", ATTACKS, ids=[a.name for a in ATTACKS])


def start_without_bubblewrap(patch):
    """Let workers start as on a machine that has no bubblewrap."""
    patch.setattr(process, "bubblewrap", lambda: None)


@pytest.fixture(scope="module", params=["filter", "bubblewrap"])
def measurer(request):
    """A measurer of either confinement."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "filter":
            start_without_bubblewrap(patch)
        elif sandbox.bubblewrap() is None:
            pytest.skip("bubblewrap does not work here")
        with Measurer("standin", SETTINGS) as m:
            assert m._worker("rehearsal").hello.confined["isolation"] == request.param
            yield m


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory):
    """Another worker, confined by the filter alone."""
    with pytest.MonkeyPatch.context() as patch:
        start_without_bubblewrap(patch)
        config = Config(mode="time", task="rehearsal", device="standin", settings=SETTINGS)
        worker = WorkerProcess(config, tmp_path_factory.mktemp("cache"))
    assert worker.ready(60)
    yield worker
    worker.kill()


class Target:
    """What there is to attack, and whether an attack reached it."""

    def __init__(self, folder, server, neighbour):
        self.secret = secrets.token_hex(8)
        self.buffer = ctypes.create_string_buffer(self.secret.encode(), 16)
        server.bind(str(folder / "socket"))
        server.listen()
        home = folder / "home"
        home.write_text(self.secret)
        (folder / "cache").mkdir()
        self.file = home.open("rb")
        self.facts = {
            "driver": os.getpid(), "address": ctypes.addressof(self.buffer), "secret": self.secret,
            "descriptor": self.file.fileno(), "worker": neighbour.pid, "home": str(home),
            "outside": str(folder / "outside"), "socket": str(folder / "socket"), "cache": str(folder / "cache"),
            "mark": f"mark-{self.secret}", "bytes": 1_000_000_000, "file_limit": SETTINGS.output_mb * 2**20,
        }  # fmt: skip

    def survivors(self):
        """Processes that carry the mark in their command lines, once the dying have died."""
        for _ in range(40):
            found = [p for p in Path("/proc").iterdir() if p.name.isdigit() and self._carries(p)]
            if not found:
                return []
            time.sleep(0.05)
        return found

    def _carries(self, entry):
        try:
            dead = entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            return not dead and self.facts["mark"].encode() in entry.joinpath("cmdline").read_bytes()
        except OSError:
            return False


@pytest.fixture
def target(neighbour):
    """See ``Target``."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        target = Target(Path(folder), server, neighbour)
        yield target
        target.file.close()


@linux
@attacks
def test_claim(measurer, target, attack):
    """What the table says is stopped is stopped, and what it says is not gets through: a claim can't be wrong either way."""
    target.facts["cache"] = str(measurer.cache / "another")
    (measurer.cache / "another").mkdir(exist_ok=True)
    program = PROGRAM.format(facts=target.facts, source=attack.source, name=attack.name)
    verdict = measurer.measure("rehearsal", program)
    bubblewrapped = measurer.confined["isolation"] == "bubblewrap"
    if attack.name.startswith("outlive"):
        measurer.replace("rehearsal")
        got_through = bool(target.survivors())
    elif attack.name == "write_the_drivers_memory":
        got_through = target.buffer.raw != target.secret.encode()
    else:
        got_through = verdict.outcome == "success"
    stopped = attack.stopped_by_bubblewrap if bubblewrapped else attack.stopped_by_filter
    assert got_through is not stopped, verdict


@linux
@attacks
def test_attack_works_where_nothing_stops_it(target, attack):
    """An attack that fails anyway would prove nothing: run as an ordinary process, each one gets through."""
    capabilities = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text()).group(1), 16)
    if not (capabilities >> 21 & 1 and capabilities >> 19 & 1):
        pytest.skip("needs the rights of root, to mount and to trace")
    code = f"{attack.source}\n{attack.name}({target.facts!r})"
    folder = Path(target.facts["home"]).parent
    with (folder / "errors").open("w+") as errors:
        command = [sys.executable, "-c", code, target.facts["mark"]]
        done = subprocess.run(command, cwd=folder, stderr=errors, check=False, timeout=60)
        assert done.returncode == 0, (folder / "errors").read_text()
    assert (target.buffer.raw != target.secret.encode()) == (attack.name == "write_the_drivers_memory")
    survivors = target.survivors()
    assert survivors or not attack.name.startswith("outlive")
    for entry in survivors:
        os.kill(int(entry.name), signal.SIGKILL)


def test_table_of_the_readme_is_the_one_that_is_tested():
    """The README's table is made from the attacks; print it with ``python tests/support/hostile.py``."""
    assert table() in README.read_text("utf-8")


@linux
def test_a_slice_of_the_campaign():
    """Twelve random hostile programs: each has a verdict in bounded time, and the next program is measured as ever."""
    run(seed=1, count=12)
