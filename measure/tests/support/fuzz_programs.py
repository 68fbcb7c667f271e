"""Hostile programs.

``run(seed, count)`` measures that many made-up programs on the stand-in device and raises at the
first that breaks a promise:

- every program has a verdict, as plain JSON of bounded size, in bounded time; - the honest program
that is measured after it passes; - the driver's memory is untouched, and it holds no more files and
not much more memory than before; - no process and no file of a worker is left when the measurer is
closed.

By hand, for minutes: ``PYTHONPATH=measure:measure/tests python
measure/tests/support/fuzz_programs.py SEED COUNT``.
"""

from __future__ import annotations

import ctypes
import random
import resource
import secrets
import sys
import tempfile
import time
from pathlib import Path
from textwrap import indent

import msgspec
from support.cheats import NUMPY_HONEST
from support.hostile import ATTACKS, facts_of

from kernel_archive.toml_files import toml_beside
from kernel_measure.measurer import Measurer
from kernel_measure.settings import Settings
from kernel_measure.verdict import logged_evaluation

__all__ = ["left_behind", "run"]

SETTINGS = Settings(max_runs=3, timeout_s=3, host_memory_gb=0.5, output_mb=1, remeasure=0)
#: Longest that one program may take in all: its time limit, a worker's start, and a loaded machine.
LIMIT_S = 60.0
_FILE = toml_beside(__file__, "fuzz_programs.toml")
#: Statements that do harm wherever they stand.
HARM = _FILE["harm"]
#: What may be returned in place of the outputs.
RETURNS = _FILE["returns"]
#: Texts that are hardly programs.
TEXTS = (
    "",
    "\x00",
    "def",
    "(" * 5000,
    "x = " + "[" * 90 + "]" * 90,
    "custom_kernel = print",
    "x" * 10**6,
    "\ufeff",
    "#\u2028",
)


def program(rng: random.Random, facts: dict[str, object]) -> str:
    """A program that does something that it should not, at some point of its life."""
    if rng.random() < 0.08:
        return rng.choice(TEXTS)
    harm = rng.choice(HARM)
    if rng.random() < 0.3:
        attack = rng.choice(ATTACKS)
        harm = f"{attack.source}\n{attack.name}({facts!r})"
    if rng.random() < 0.2:
        harm = f"import os\nif os.fork() == 0:\n{indent(harm, '    ')}\n"
    if rng.random() < 0.2:
        start = "threading.Thread(target=harm, daemon=True).start()"
        harm = f"import threading\ndef harm():\n{indent(harm, '    ')}\n{start}"
    if rng.random() < 0.3:
        harm = f"try:\n{indent(harm, '    ')}\nexcept BaseException: pass"
    at_import, in_call = (harm, "pass") if rng.random() < 0.3 else ("", harm)
    calls = rng.choice((1, 1, 2, 5, 9))
    returned = rng.choice(RETURNS) if rng.random() < 0.3 else "(e / z[:, None], z)"
    return f"""import numpy as np
{at_import}
calls = []


def custom_kernel(data):
    x = data[0]
    calls.append(1)
    if len(calls) == {calls}:
{indent(in_call, " " * 8)}
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return {returned}
"""


def left_behind(word: str) -> list[str]:
    """Processes alive that carry a word in their command lines, once the dying have died."""
    found: list[str] = []
    for _ in range(60):
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                dead = entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and word.encode() in entry.joinpath("cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
        if not found:
            break
        time.sleep(0.1)
    return found


def run(seed: int, count: int, *, quiet: bool = True) -> None:
    """Measure ``count`` hostile programs."""
    secret = secrets.token_hex(8).encode()
    buffer = ctypes.create_string_buffer(secret, 16)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as held:
        cache = Path(folder) / "cache"
        facts = {
            **facts_of(Path(folder), secret.decode(), ctypes.addressof(buffer), held.fileno()),
            "worker": 2**22,
            "sockets": [f"{folder}/socket"],
            "packages": folder,
            "bytes": 700_000_000,
        }
        with Measurer("standin", SETTINGS, cache=cache) as measurer:
            assert measurer.measure("rehearsal", NUMPY_HONEST).outcome == "success"
            files = len(list(Path("/proc/self/fd").iterdir()))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(count):
                rng = random.Random(f"{seed}/{number}")
                code = program(rng, facts)
                where = f"seed {seed}, program {number}:\n{code[-3000:]}"
                begin = time.monotonic()
                found = measurer.measure("rehearsal", code)
                took = time.monotonic() - begin
                said = msgspec.json.encode([logged_evaluation(found), found.timing()])
                if not quiet:
                    print(number, found.outcome, found.error_name[:40], f"{took:.1f} s", flush=True)
                assert len(said) < 100_000, f"{len(said)} bytes of verdict\n{where}"
                assert took < LIMIT_S, f"{took:.0f} s\n{where}"
                assert buffer.raw == secret, f"the driver's memory was written\n{where}"
                honest = measurer.measure("rehearsal", NUMPY_HONEST)
                assert (honest.outcome, honest.error) == ("success", ""), (
                    f"the next program failed: {honest}\n{where}"
                )
                assert len(list(Path("/proc/self/fd").iterdir())) <= files + 4, (
                    f"files stay open\n{where}"
                )
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
            assert grown < 300_000, f"the driver grew by {grown} kB"
        assert not left_behind(str(cache)), "processes are left"
        assert not left_behind(str(facts["mark"])), "processes are left"
        assert not list(cache.glob("kernel-archive-worker-*")), "folders are left"


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), quiet=False)
