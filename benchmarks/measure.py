"""How far repeated measurements of a kernel agree, before and after interleaving.

Measures every program of a JSON-lines file (``task``, ``code``, optional ``label``) several times, each time in another
worker process and under each protocol:

    interleaved   candidate and reference in turn, medians, L2 flushed: the archive's protocol
    in_order      the same, but first every call of the candidate, then every call of the reference: what turns alone do
    sequential    in order, means, inputs warm in L2: the earlier protocol

Prints, per task, the spread of the speedups of a program: (largest - least) / median, its median and 90th percentile over
the programs; and how many programs change their bin.

    python benchmarks/measure.py programs.jsonl --repeat 3 --protocol in_order,interleaved --out spread.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from kernel_archive.bins import bin_of
from kernel_archive.measure.compile_ahead import CompilePool
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.settings import Settings
from kernel_archive.measure.verdict import evaluation

COMMON = {"max_case_seconds": 0.35, "timeout_s": 60.0, "candidates_per_worker": 100_000}
PROTOCOLS = {
    "in_order": Settings(order="sequential", **COMMON),
    "sequential": Settings(order="sequential", statistic="mean", l2="warm", remeasure=0, **COMMON),
    "interleaved": Settings(**COMMON),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further measurement after so many seconds")
    parser.add_argument("--protocol", default="sequential,interleaved", help="names, with commas")
    options = parser.parse_args()
    begin = time.monotonic()
    rows = [json.loads(line) for line in options.programs.read_text().splitlines()]
    if not rows:
        parser.error(f"{options.programs} holds no program")
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    out = options.out.open("w") if options.out else None
    cpus = sorted(os.sched_getaffinity(0))
    # Not the first: interrupts are served there.
    mine, others = (cpus[1:3], cpus[3:]) if len(cpus) >= 6 else (cpus, cpus)
    found: dict[tuple[str, int], list[float]] = {}
    chosen = list(dict.fromkeys(options.protocol.split(",")))
    if unknown := set(chosen) - set(PROTOCOLS):
        parser.error(f"no such protocol: {', '.join(sorted(unknown))}; there are: {', '.join(PROTOCOLS)}")
    with tempfile.TemporaryDirectory() as cache:
        pool = CompilePool(
            max(1, len(others) - 1),
            task=tasks[0],
            device=options.device,
            settings=PROTOCOLS["interleaved"],
            cache=Path(cache),
            cpus=others,
        )
        notes = [pool.submit(r["task"], r["code"]) for r in rows]
        remarks = {n[:160] for f in notes for n in f.result()}
        pool.close()
        print(
            f"compiled {len(rows)} programs in {time.monotonic() - begin:.0f} s; remarks: {sorted(remarks)[:8]}",
            flush=True,
        )
        for repeat in range(options.repeat):
            for protocol in chosen:
                with Measurer(
                    options.device,
                    PROTOCOLS[protocol],
                    gpu=options.gpu,
                    cache=Path(cache),
                    cpus=mine,
                    start_cpus=others,
                ) as m:
                    for i, task in enumerate(tasks):
                        m.start(task)
                        if i + 1 < len(tasks):
                            m.start(tasks[i + 1])
                        spent, count, first = 0.0, 0, time.monotonic()
                        for number, row in enumerate(rows):
                            if row["task"] != task or time.monotonic() - begin > options.seconds:
                                continue
                            got = m.measure(task, row["code"])
                            spent, count = spent + got.wall_s, count + 1
                            if got.speedup is not None:
                                found.setdefault((protocol, number), []).append(got.speedup)
                            if out:
                                record = {
                                    "protocol": protocol,
                                    "repeat": repeat,
                                    "program": number,
                                    "task": task,
                                    "label": row.get("label"),
                                    "name": row.get("name"),
                                    "evaluation": evaluation(got),
                                    **got.timing(),
                                }
                                out.write(json.dumps(record) + "\n")
                                out.flush()
                            if got.outcome != "success" and repeat == 0 and protocol == chosen[0]:
                                why = f"{got.outcome} {got.error_name} {got.error[:160]}"
                                print(f"  {task} {row.get('name', number)}: {why}")
                        m.replace(task)  # the memory is wanted by the next task
                        print(
                            f"{repeat} {protocol:12s} {task:18s} {count} programs, {spent / max(1, count):.2f} s each, "
                            f"{time.monotonic() - first:.0f} s in all",
                            flush=True,
                        )
    print(f"\n{'task':18s} {'protocol':12s} programs  spread p50  spread p90   changed bin")
    for task in tasks:
        for protocol in chosen:
            runs = [v for (p, n), v in found.items() if p == protocol and rows[n]["task"] == task and len(v) > 1]
            if runs:
                spread = sorted((max(v) - min(v)) / statistics.median(v) for v in runs)
                changed = sum(len({bin_of(x) for x in v}) > 1 for v in runs)
                p90 = spread[min(len(spread) - 1, int(0.9 * len(spread)))]
                middle = 100 * statistics.median(spread)
                print(f"{task:18s} {protocol:12s} {len(runs):8d} {middle:10.2f}% {100 * p90:10.2f}% {changed:8d}")
    labelled = [
        (rows[n]["label"], statistics.median(v))
        for (p, n), v in found.items()
        if p == chosen[-1] and rows[n].get("label")
    ]
    if labelled:
        moved = sum(bin_of(a) != bin_of(b) for a, b in labelled)
        print(f"\n{moved} of {len(labelled)} programs are in another bin than their earlier label says")


if __name__ == "__main__":
    sys.exit(main())
