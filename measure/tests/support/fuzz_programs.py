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

import msgspec
from support.cheats import NUMPY_HONEST
from support.hostile import ATTACKS, facts_of

from kernel_measure.measurer import Measurer
from kernel_measure.settings import Settings
from kernel_measure.verdict import evaluation

__all__ = ["left_behind", "run"]

SETTINGS = Settings(max_runs=3, timeout_s=3, host_memory_gb=0.5, output_mb=1, remeasure=0)
#: Longest that one program may take in all: its time limit, a worker's start, and a loaded machine.
LIMIT_S = 60.0
#: Statements that do harm wherever they stand.
HARM = (
    "while True: pass",
    "import os; os._exit(0)",
    "import os; os.kill(os.getpid(), 19)",
    "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(0, 15)",
    "import ctypes; ctypes.string_at(0)",
    "import os; os.closerange(0, 4096)",
    'import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\'{"nonce": "", "result": {"cases": []}}\\n\' * 50)\n    except OSError: pass',  # noqa: E501
    "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 100000)\n    except OSError: pass",  # noqa: E501
    "print('\\x1b]0;owned\\x07' * 10000)",
    "import sys; sys.setrecursionlimit(10**8)\ndef deep(n): return deep(n + 1) + 1\ndeep(0)",
    "keep = [bytearray(1 << 26) for _ in range(64)]\nfor k in keep: k[::4096] = bytes(1 << 14)",
    "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')",
    "import os; os.chmod('.', 0)",
    "import os, shutil; shutil.rmtree('.', ignore_errors=True)",
    "import os, shutil; shutil.rmtree('cache', ignore_errors=True); os.symlink('/', 'cache')",
    "import os; os.remove('output.txt'); os.mkfifo('output.txt')",
    "import sys; sys.modules.clear()",
    "import builtins; builtins.len = lambda _: 0",
    "import time; time.perf_counter_ns = lambda: 0",
    "import msgspec; msgspec.json.encode = lambda *_: b'{}'",
    "import gc; gc.enable = gc.disable = lambda: 1 / 0",
    "import threading\ndef spin():\n    while True: pass\nfor _ in range(8): threading.Thread(target=spin).start()",  # noqa: E501
    "import subprocess; subprocess.Popen(['sleep', '100'])",
    "import os\nfor _ in range(5): os.fork()",
    "import atexit, time; atexit.register(time.sleep, 100); raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise ValueError('\\ud800' * 10)",
    "raise ValueError('x' * 10**7)",
    "class Odd(Exception):\n    def __str__(self): raise SystemExit(1)\nraise Odd",
    "class Odd(BaseException):\n    def __str__(self): return 7\nraise Odd",
    "raise type('N' * 10**6, (Exception,), {})('named')",
    "import sys; sys.stdout = sys.stderr = None",
    "import sys; sys.settrace(lambda *a: 1 / 0)",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
)
#: What may be returned in place of the outputs.
RETURNS = (
    "None",
    "x",
    "(e, z, z)",
    "[e, z]",
    "(e, 7)",
    "(z, e)",
    "iter((e, z))",
    "(e.tolist(), z.tolist())",
    "(e[:, ::-1], z)",
    "(e.astype('f4'), z)",
    "(e * np.nan, z)",
    "(np.ma.array(e), z)",
    "(e / z[:, None], z)",
    "type('T', (tuple,), {'__len__': lambda s: 2, '__iter__': lambda s: 1 / 0})((e, z))",
    "(type('A', (np.ndarray,), {'__eq__': lambda a, b: True})(e.shape), z)",
)
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


def indented(text: str, by: int) -> str:
    """Lines moved to the right."""
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def program(rng: random.Random, facts: dict[str, object]) -> str:
    """A program that does something that it should not, at some point of its life."""
    if rng.random() < 0.08:
        return rng.choice(TEXTS)
    harm = rng.choice(HARM)
    if rng.random() < 0.3:
        attack = rng.choice(ATTACKS)
        harm = f"{attack.source}\n{attack.name}({facts!r})"
    if rng.random() < 0.2:
        harm = f"import os\nif os.fork() == 0:\n{indented(harm, 4)}"
    if rng.random() < 0.2:
        harm = f"import threading\ndef harm():\n{indented(harm, 4)}threading.Thread(target=harm, daemon=True).start()"  # noqa: E501
    if rng.random() < 0.3:
        harm = f"try:\n{indented(harm, 4)}except BaseException: pass"
    at_import, in_call = (harm, "pass") if rng.random() < 0.3 else ("", harm)
    calls = rng.choice((1, 1, 2, 5, 9))
    returned = rng.choice(RETURNS) if rng.random() < 0.3 else "(e / z[:, None], z)"
    return (
        f"import numpy as np\n{at_import}\ncalls = []\n\n\ndef custom_kernel(data):\n    x = data[0]\n    calls.append(1)\n"  # noqa: E501
        f"    if len(calls) == {calls}:\n{indented(in_call, 8)}"
        f"    e = np.exp(x - x.max(axis=1, keepdims=True))\n    z = e.sum(axis=1)\n    return {returned}\n"  # noqa: E501
    )


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
                where = f"seed {seed}, program {number}:\n{code[:3000]}"
                begin = time.monotonic()
                found = measurer.measure("rehearsal", code)
                took = time.monotonic() - begin
                said = msgspec.json.encode([evaluation(found), found.timing()])
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
