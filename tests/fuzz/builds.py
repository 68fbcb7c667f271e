"""Builds that are disturbed: staged files with flipped bits, and kills at random moments. The next
build makes the same archive.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.open import open_archive


def _made(folder: Path) -> Path:
    """Eight runs of twenty programs, and their recipe."""
    for i in range(8):
        log = RunLog(serial=1000 * (i + 1))
        node = log.root(program("seed"), 1.0)
        for j in range(20):
            node = log.child(node, program(f"p{i}_{j}"), 0.3 + 0.2 * j)
        log.write(folder / "logs" / ("held" if i % 2 else "train") / f"run_{i}")
    return recipe(folder, ("logs/held/*", "held_out"), ("logs/train/*", "training"))


def _build(path: Path, out: Path) -> subprocess.Popen[bytes]:
    command = f"{sys.executable} -m kernel_archive build {path} --out {out} --jobs 2 --json"
    return subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def run(seed: int, count: int) -> Counter[str]:
    """So many disturbances, each followed by a build; how many there were of each kind.

    Raises:
        AssertionError: the build that follows fails, or makes another archive.
    """
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        source, out = _made(Path(folder, "src")), Path(folder, "out")
        first = _build(source, out)
        printed, _ = first.communicate(timeout=120)
        assert first.returncode == 0, printed
        digest = open_archive(out).manifest.logical_digest
        stage = out.with_name(f".{out.name}.stage")
        for number in range(count):
            rng = random.Random(f"{seed}/{number}")
            where = f"seed {seed}, case {number}"
            kind = rng.choice(["flip", "cut", "kill"])
            if kind != "kill":
                files = sorted(p for p in stage.rglob("*") if p.is_file() and p.stat().st_size > 8)
                victim = rng.choice(files)
                data = bytearray(victim.read_bytes())
                if kind == "flip":
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                victim.write_bytes(data[: rng.randrange(len(data))] if kind == "cut" else data)
                where += f", {victim.name}"
            shutil.rmtree(out)  # so that the next build has something to do
            if kind == "kill":
                build = _build(source, out)
                time.sleep(rng.uniform(0.0, 1.5))
                build.send_signal(signal.SIGKILL)
                build.wait()
                assert build.stdout is not None
                build.stdout.close()
            again = _build(source, out)
            printed, _ = again.communicate(timeout=120)
            assert again.returncode == 0, f"{where}: {printed.decode(errors='replace')[-500:]}"
            assert open_archive(out).manifest.logical_digest == digest, f"{where}: another archive"
            seen[kind] += 1
    return seen
