"""How long the replay of 100,000 recorded edges takes, and what memory it needs.

    python benchmarks/replay.py [EDGES]

Worlds are made up: trees of 250 programs, some of which fail, with forecasts that know something.
Every policy runs once, as with ``kernel-archive replay --repeats 1``.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from kernel_archive.bins import assign_bins
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.replay import POLICIES, ReplayOptions, World, Worlds, replay
from kernel_archive.scoring.split import Split

SIZE = 250


def made_up(edges: int) -> Worlds:
    """Worlds with so many children in all; a child is about as fast as its parent."""
    rng = np.random.default_rng(0)
    worlds = []
    for k in range(edges // SIZE):
        parents = np.array([-1, *(int(rng.integers(0, max(1, i))) for i in range(SIZE))])
        logs = np.zeros(SIZE + 1)
        for i in range(1, SIZE + 1):
            logs[i] = logs[parents[i]] + rng.normal(0, 0.5)
        speedups = np.where(rng.random(SIZE + 1) < 0.05, np.nan, np.exp2(logs))
        speedups[0] = 1.0
        rows = np.array([-1, *range(k * SIZE, (k + 1) * SIZE)])
        worlds.append(
            World(
                name=f"w{k}",
                rows=rows.tolist(),
                parents=parents.tolist(),
                speedups=speedups.tolist(),
            )
        )
    n = len(worlds) * SIZE
    ids = tuple(f"k{i}" for i in range(n))
    split = Split.from_arrays(row_ids=ids, tasks=("p",) * n, speedups=np.ones(n), split="replay")
    return Worlds(split=split, gpus=("H200",) * n, worlds=tuple(worlds))


def main(edges: int) -> None:
    """Print seconds by policy and the peak of memory before and after."""
    worlds = made_up(edges)
    noise = np.random.default_rng(1).dirichlet(np.ones(8), len(worlds.split))
    speedups = np.concatenate([world.speedups[1:] for world in worlds.worlds])
    bins = assign_bins(np.nan_to_num(speedups, nan=0.1))  # a program that fails is slow
    forecasts = Forecasts.from_arrays(worlds.split, 0.5 * np.eye(8)[bins - 1] + 0.5 * noise)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    done = replay(worlds, forecasts, ReplayOptions(repeats=1))
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for policy in done.policies:
        print(
            f"{policy.policy:9} area {policy.area.mean:5.1f}, rescaled {policy.rescaled.mean:6.1f}"
        )
    print(
        f"{done.n_edges:,} edges in {done.n_worlds} worlds, {len(POLICIES)} policies: "
        f"{seconds:.1f} s"
    )
    print(f"peak memory {before / 1024:.0f} MB before, {after / 1024:.0f} MB after")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
