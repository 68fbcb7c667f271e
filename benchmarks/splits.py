"""Making all splits of an archive.

Seconds, kernels per second, peak memory, and how time grows with kernels.

    python benchmarks/splits.py [--kernels 12388] [--factor 4] [--profile]

Archives of N / factor and N kernels are built from generated logs (benchmarks/logs.py); each
measurement is a fresh interpreter, start-up included. Linear time shows as a growth no larger than
the factor. ``--profile`` prints where the time of the larger one goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from logs import generate

import kernel_archive
from kernel_archive.archive.open import open_archive

MAKE = "import sys; from kernel_archive.selection.make import make_splits; make_splits(sys.argv[1])"
REPEATS = 3


def overlapping(recipe: Path) -> str:
    """Give every task held-out and training runs, so that there is something to compare.

    The recipe's path.
    """
    logs = recipe.parent / "logs"
    runs = sorted(
        (path for role in logs.iterdir() for path in role.iterdir()),
        key=lambda p: p.name.split("__")[1],
    )
    tasks: dict[str, int] = {}
    for run in runs:
        task = run.name.split("__")[0]
        tasks[task] = tasks.get(task, 0) + 1
        role = "held_out" if tasks[task] % 3 else "training"
        run.rename(logs / role / run.name)
    # The evaluation split and the discovery pairs are of programs that were written one by one.
    recipe.write_text(recipe.read_text().replace("\nlicence", "\nnatural = true\nlicence", 1))
    return str(recipe)


def measure(directory: Path) -> tuple[float, float, float]:
    """Least wall and processor seconds of a few runs, and peak memory in MB."""
    best, processor, peak = float("inf"), float("inf"), 0.0
    for _ in range(REPEATS):
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", MAKE, str(directory)])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0
        best = min(best, time.perf_counter() - started)
        processor = min(processor, usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss / 1024)
    return best, processor, peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=12388)
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = []
        for kernels in (given.kernels // given.factor, given.kernels):
            place = Path(folder) / str(kernels)
            source = overlapping(generate(place / "source", kernels))
            kernel_archive.build([source], out=place / "archive", jobs=1)
            seconds, processor, peak = measure(place / "archive")
            times.append(processor)
            rows = {n: f.rows for n, f in open_archive(place / "archive").manifest.splits.items()}
            held = sum(rows.values())
            print(
                f"{kernels:>8,} kernels: {seconds:6.2f} s ({processor:.2f} s of processor time), "
                f"{kernels / seconds:9,.0f} kernels/s, {peak:6.0f} MB, {held:,} rows {rows}"
            )
        before = os.times()
        subprocess.run([sys.executable, "-c", MAKE.rsplit(";", 1)[0]], check=True)
        after = os.times()
        startup = (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        grown = (times[1] - startup) / max(times[0] - startup, 1e-9)
        print(
            f"start-up {startup:.2f} s; {given.factor}x the kernels: {grown:.2f}x the processor "
            "time beyond it"
        )
        if given.profile:
            from kernel_archive.selection.make import make_splits

            profile = cProfile.Profile()
            profile.runcall(make_splits, place / "archive")
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
