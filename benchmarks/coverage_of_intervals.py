"""How often a 95 % interval holds the truth, on simulated forecasters whose truth is known.

    python benchmarks/coverage_of_intervals.py [--datasets 300] [--draws 500] [--rows 80]

Rows are drawn from a population (speedups log-normal, forecasts that know the speedup up to noise).
Where rows come from authors, who write for every task, half of the noise is an author's own. Each
dataset has new authors and is scored with both bootstraps: of rows, and of authors. The truth of a
metric is its mean over many other datasets of the same size.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from kernel_archive.scoring import METRICS, Forecasts, Split
from kernel_archive.scoring.figures import bootstrap, interval, metrics_by_repeat
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.split import Clusters

CENTRES = np.array([-2.25, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 2.25])
#: The ends are frozen with a split; here they are those of the population.
ENDS = (0.18, 5.6)
NAMES = ("crps", "pair_accuracy", "accuracy", "ece", "speedup_recovered", "aurc")
#: Noise and width of the forecaster, in octaves.
NOISE, WIDTH = 0.7, 0.7


def simulate(rng, rows, tasks, authors):
    """One dataset: rows of every task, and one forecast of each."""
    n = rows * tasks
    z = rng.normal(0, 1.2, n)
    author = np.arange(n) % max(authors, 1)
    target = Split.from_arrays(
        row_ids=[f"{i:07d}" for i in range(n)],
        tasks=[f"task{i // rows}" for i in range(n)],
        speedups=np.exp2(z),
        ends=ENDS,
        clusters=Clusters(unit="authors", names=tuple(map(str, author))) if authors else None,
    )
    noise = rng.normal(0, NOISE, n)
    if authors:
        noise = np.sqrt(0.5) * (noise + rng.normal(0, NOISE, authors)[author])
    p = np.exp(-0.5 * (((z + noise)[:, None] - CENTRES) / WIDTH) ** 2) + 1e-4
    return ForecastRows.of(target, Forecasts.from_arrays(target, p / p.sum(axis=1, keepdims=True)))


def figures(rows):
    """Metric -> value."""
    overall = metrics_by_repeat(rows, NAMES, groups=False).overall
    return {name: float(overall[name].mean()) for name in NAMES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("datasets", 300), ("draws", 500), ("rows", 80), ("tasks", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print("| rows come from | drawn |" + "".join(f" {METRICS[name].title} |" for name in NAMES))
    print("| --- | --- |" + " --- |" * len(NAMES))
    for authors in (0, 24, 12, 6):
        rng = np.random.default_rng([1, authors])
        size = (options.rows, options.tasks, authors)
        truths = [figures(simulate(rng, *size)) for _ in range(2 * options.datasets)]
        truth = {name: np.mean([t[name] for t in truths]) for name in NAMES}
        units = ("rows", "authors") if authors else ("rows",)
        covered = {unit: dict.fromkeys(NAMES, 0) for unit in units}
        for seed in range(options.datasets):
            rows = simulate(rng, *size)
            for unit in units:
                drawn = (
                    rows
                    if unit == "authors"
                    else replace(rows, split=replace(rows.split, clusters=None))
                )
                found = bootstrap(drawn, seed=seed, draws=options.draws, names=NAMES, groups=False)
                for name in NAMES:
                    low, high = interval(found.overall[name]) or (math.nan, math.nan)
                    covered[unit][name] += low <= truth[name] <= high
        for unit in units:
            shares = [f" {100 * covered[unit][name] / options.datasets:.0f} % |" for name in NAMES]
            print(f"| {authors or 'no'} authors | {unit} |{''.join(shares)}", flush=True)


if __name__ == "__main__":
    main()
