"""Scoring a submission, start-up included, and scoring a large one: wall time, ratios, peak memory.

    python benchmarks/score.py [--rows 480] [--repeats 3] [--draws 10000] [--runs 3] [--large
    100000]

Every line is the best of some runs of a process of its own. Start-up is an interpreter that imports
what scoring imports. The naive bootstrap scores resampled rows one draw after the other with the
plain formulas, a few draws of it scaled up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive import bins, ids, schema
from kernel_archive.archive.manifest import FORMAT, Manifest, ShardFacts, SplitFacts, TableFacts

START = "import numpy, msgspec, click, pyarrow.parquet, rich.table, rich.console"
NAIVE = """
import sys, time
import numpy as np
from kernel_archive.scoring import Forecasts, Split, load_split, read_forecasts
from kernel_archive.scoring.figures import metrics_by_repeat
from kernel_archive.scoring.samples import ForecastRows
target = load_split(sys.argv[1])
forecasts = read_forecasts(sys.argv[2], target)
rng = np.random.default_rng(0)
start = time.perf_counter()
for _ in range(20):
    rows = np.concatenate([rng.choice(at, len(at)) for at in target.task_rows.values()])
    again = Split.from_arrays(row_ids=[str(i) for i in range(len(rows))], tasks=[target.tasks[i] for
    i in rows],
                               speedups=target.speedups[rows])
    metrics_by_repeat(ForecastRows.of(again, Forecasts.from_arrays(again, forecasts.probabilities[:,
    rows])))
print((time.perf_counter() - start) / 20)
"""
LARGE = """
import sys
from kernel_archive.scoring import load_split, read_forecasts, score
target = load_split(sys.argv[1])
score(target, read_forecasts(sys.argv[2], target), draws=0)
"""


def write_archive(directory, n, rng) -> tuple[list[str], np.ndarray]:
    """Write an archive with an evaluation split of n rows over six tasks, of 4 kB programs."""
    speedups = np.exp2(rng.normal(0, 1.3, n))
    labels = bins.assign_bins(speedups)
    names = [hashlib.sha256(str(i).encode()).hexdigest()[:32] for i in range(n)]
    code = "x" * min(4096, 64_000_000 // n)
    table = pa.table(
        {
            "row_id": names,
            "task": [f"task{i % 6}" for i in range(n)],
            "gpu": ["H200"] * n,
            "speedup": speedups,
            "bin": pa.array(labels, pa.int8()),
            "bin_scheme": ["paper"] * n,
            "kernel_id": names,
            "search_id": [f"s{i % 24}" for i in range(n)],
            "language": ["triton"] * n,
            "benchmark_cases": [None] * n,
            "rtol": [None] * n,
            "atol": [None] * n,
            "n_measurements": [3] * n,
            "speedup_min": speedups,
            "speedup_max": speedups,
            "canary": [ids.CANARY] * n,
            "reference_code": [code] * n,
            "candidate_code": [name + code for name in names],
        },
        schema=schema.TABLES["eval"].schema,
    )
    path = directory / schema.shard_name("eval", "test")
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, compression="zstd")
    shard = ShardFacts(
        path=schema.shard_name("eval", "test"),
        rows=n,
        bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    m = bins.representatives(speedups, labels)
    split = SplitFacts(
        name="canonical",
        origin="selected",
        scheme="paper",
        logical_digest="sha256:0",
        rows=n,
        parameters={},
        facts={"m_1": float(m[0]), "m_8": float(m[7])},
    )
    manifest = Manifest(
        format=FORMAT,
        name="benchmark",
        version="0",
        logical_digest="sha256:0",
        package="0",
        writer="0",
        bin_scheme="paper",
        builders=[],
        tables={"eval": TableFacts({"test": [shard]}, "sha256:0")},
        splits={"eval": split},
        inputs=[],
        findings={},
        reports={},
        canary=ids.CANARY,
    )
    (directory / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return names, speedups


def write_forecasts(path, names, speedups, repeats, rng):
    """Forecasts with three decimals, as models write them, and a short rationale."""
    centres = np.array([-2.25, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 2.25])
    with path.open("w") as out:
        for repeat in range(repeats):
            z = np.log2(speedups) + rng.normal(0, 0.8, len(names))
            p = np.exp(-0.5 * ((z[:, None] - centres) / 0.7) ** 2)
            p = np.round(p / p.sum(axis=1, keepdims=True), 3)
            for name, row in zip(names, p.tolist(), strict=True):
                line = {
                    "row_id": name,
                    "repeat": repeat,
                    "probabilities": row,
                    "rationale": "memory bound " * 20,
                }
                out.write(json.dumps(line) + "\n")


def best(command, runs):
    """Shortest wall time of a command, and the largest resident memory of a child so far in MB."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "160"}
        )
        times.append(time.perf_counter() - start)
    return min(times), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("rows", 480),
        ("repeats", 3),
        ("draws", 10_000),
        ("runs", 3),
        ("large", 100_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    python = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        archive, file = Path(folder) / "small", Path(folder) / "small.jsonl"
        write_forecasts(file, *write_archive(archive, options.rows, rng), options.repeats, rng)
        start, _ = best([*python, "-c", START], options.runs)
        command = [
            *python,
            "-m",
            "kernel_archive",
            "score",
            str(file),
            "--archive",
            str(archive),
            "--draws",
        ]
        points, _ = best([*command, "0"], options.runs)
        full, memory = best([*command, str(options.draws)], options.runs)
        done = subprocess.run(
            [*python, "-c", NAIVE, str(archive), str(file)],
            check=True,
            capture_output=True,
            text=True,
        )
        naive = float(done.stdout) * options.draws
        print(f"{options.rows} rows x {options.repeats} repeats, every metric")
        print(f"  start-up and imports alone       {start:7.2f} s")
        print(
            f"  score without intervals          {points:7.2f} s   {points / start:6.1f} x start-up"
        )
        print(
            f"  score, {options.draws:,} bootstrap draws   {full:7.2f} s   {full / start:6.1f} x "
            f"start-up, {memory:.0f} MB"
        )
        print(
            f"  naive bootstrap (estimated)      {naive:7.0f} s   {naive / (full - points):6.0f} "
            "x the one here"
        )
        if options.large:
            archive, file = Path(folder) / "large", Path(folder) / "large.jsonl"
            write_forecasts(file, *write_archive(archive, options.large, rng), options.repeats, rng)
            large, memory = best([*python, "-c", LARGE, str(archive), str(file)], options.runs)
            print(
                f"{options.large:,} rows x {options.repeats} repeats "
                f"({file.stat().st_size >> 20} MB), metrics only"
            )
            print(
                f"  read and score                   {large:7.2f} s   {large / start:6.1f} x "
                f"start-up, {memory:.0f} MB"
            )


if __name__ == "__main__":
    main()
