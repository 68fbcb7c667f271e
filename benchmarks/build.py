"""The build against plain decoding of the same lines, in one run: time as ratios, and peak memory.

    python benchmarks/build.py [--kernels 12388] [--times-ten] [--keep DIR]

Prints one row per measurement. Logs are generated (benchmarks/logs.py); the decoding baselines read
and decode every line on one core and keep nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from logs import generate

DECODERS = {
    "msgspec": "import msgspec; decode = msgspec.json.Decoder().decode",
    "orjson": "import orjson; decode = orjson.loads",
}
READ_ALL = """
import sys, pathlib
{setup}
for path in sorted(pathlib.Path(sys.argv[1]).rglob("events.jsonl")):
    with open(path, "rb") as lines:
        for line in lines:
            decode(line)
"""
DATASETS = """
import sys, pathlib
from datasets import load_dataset
from datasets.utils.logging import disable_progress_bar
disable_progress_bar()
# All files at once is refused: cases of different tasks have different fields. One call per task.
tasks = {}
for path in sorted(pathlib.Path(sys.argv[1]).rglob("events.jsonl")):
    tasks.setdefault(path.parent.name.split("__")[0], []).append(str(path))
for files in tasks.values():
    load_dataset("json", data_files=files, cache_dir=sys.argv[2])
"""
BUILD = f"""
import sys
sys.path.append({str(Path(__file__).parents[1] / "tests")!r})
from support.builds import build_archive
if __name__ == "__main__":
    build_archive([sys.argv[1]], out=sys.argv[2])
"""
#: What a build imports whatever it reads; pandas not by itself: Arrow imports it before it converts
#: its first list.
START_UP = "import kernel_archive.pipeline, duckdb, pyarrow.parquet; pyarrow.array([0])"
#: Rounds of decoding and building in turn.
ROUNDS = 5
#: Peak memory of a process tree, sampled, since the build reads logs in several processes.
SAMPLE = 0.05


def tree_memory(pid: int) -> int:
    """Measure resident bytes of a process and its descendants (proportional set size)."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            for line in Path(f"/proc/{current}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for thread in Path(f"/proc/{current}/task").iterdir():
                waiting += [int(c) for c in (thread / "children").read_text().split()]
        except OSError:
            continue
    return total


def run(code: str, *arguments: str, sample: bool = False) -> tuple[float, float]:
    """Wall seconds of a fresh interpreter that runs ``code``.

    Its tree's peak memory (MB) instead of a true time if sampled.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as script:
        script.write(code)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, script.name, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = 0
    while sample and process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(SAMPLE)
    errors = process.communicate()[1].decode()
    wall = time.perf_counter() - started
    Path(script.name).unlink()
    if process.returncode:
        raise SystemExit(f"{errors}\nexit status {process.returncode}")
    return wall, peak / 1e6


def report(name: str, wall: float, memory: float, base: float) -> None:
    shown = f"{memory:9.0f} MB" if memory else ""
    print(f"{name:<44} {wall:8.2f} s {wall / base:8.2f}x {shown}", flush=True)


def measure(folder: Path, kernels: int) -> float:
    """One size: baselines, cold build, unchanged build. Returns the cold build's seconds."""
    recipe = generate(folder / "logs", kernels)
    logs = folder / "logs"
    size = sum(p.stat().st_size for p in logs.rglob("events.jsonl"))
    print(f"\n{kernels} kernels, {size / 1e6:.0f} MB of event logs, {os.cpu_count()} cores")
    decode = READ_ALL.format(setup=DECODERS["msgspec"])
    run(decode, str(logs))  # page cache warm for everybody
    out = folder / "out" / "kernels"
    # In turn, so that a machine that grows slower or faster meanwhile does so for all of them; the
    # round in the middle counts.
    rounds = []
    for _ in range(ROUNDS):
        shutil.rmtree(folder / "out", ignore_errors=True)
        base, start_up = run(decode, str(logs))[0], run(START_UP)[0]
        cold = run(BUILD, str(recipe), str(out))[0]
        rounds.append(((cold - start_up) / base, base, start_up, cold))
    _, base, start_up, cold = sorted(rounds)[ROUNDS // 2]
    report("decode with msgspec, one core", base, 0, base)
    report(
        "decode with orjson, one core",
        *run(READ_ALL.format(setup=DECODERS["orjson"]), str(logs)),
        base,
    )
    if kernels <= 20_000:
        report(
            "datasets.load_dataset('json'), task by task",
            *run(DATASETS, str(logs), str(folder / "cache")),
            base,
        )
    # Sampling the memory of a process tree takes time from it: a run of its own.
    _, peak = run(BUILD, str(recipe), str(folder / "sampled" / "kernels"), sample=True)
    report("build, cold", cold, peak, base)
    print(
        f"{'build, cold, less start-up':<44} {cold - start_up:8.2f} s "
        f"{(cold - start_up) / base:8.2f}x   (start-up {start_up:.2f} s; "
        f"of {ROUNDS} rounds: {', '.join(f'{r[0]:.2f}x' for r in sorted(rounds))})"
    )
    report("build, unchanged", *run(BUILD, str(recipe), str(out)), base)
    manifest = json.loads((out / "manifest.json").read_text())
    rows = {
        n: sum(s["rows"] for x in t["splits"].values() for s in x)
        for n, t in manifest["tables"].items()
    }
    print("rows:", ", ".join(f"{k} {v:,}" for k, v in rows.items() if v))
    return cold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=12388)
    parser.add_argument("--times-ten", action="store_true", help="also ten times as many kernels")
    parser.add_argument("--keep", type=Path, help="folder for logs and archives (kept)")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    try:
        one = measure(folder / "x1", given.kernels)
        if given.times_ten:
            ten = measure(folder / "x10", 10 * given.kernels)
            print(f"\nten times the logs: {ten / one:.2f}x the time")
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(
        "largest single child process: "
        f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MB"
    )


if __name__ == "__main__":
    main()
