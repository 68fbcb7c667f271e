"""How often a 95 % interval holds the truth, on simulated forecasters whose truth is known.

    python benchmarks/coverage_of_intervals.py [--datasets 500] [--draws 1000] [--rows 80] [--tasks
    6] [--repeats 3]

Rows are drawn from a population (speedups log-normal, forecasts that know the speedup up to noise);
each dataset is scored with its bootstrap intervals. The truth of a metric is its mean over many
other datasets of the same size: what the score of a split of this size is on average. For metrics
that do not depend on the size of the split, coverage of the population value (a split of 200,000
rows) stands beside it; the two differ where a metric is biased in small samples. "basic" is the
interval turned round the score (2 score - percentile), for comparison: scores are published with
the percentile interval.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from kernel_archive.scoring import METRICS, Forecasts, Split
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.uncertainty import bootstrap, interval, repeats_of

CENTRES = np.array([-2.25, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 2.25])
#: The ends are frozen with a split; here they are those of the population.
ENDS = (0.18, 5.6)
FORECASTERS = {"calibrated": (0.7, 0.7), "overconfident": (1.2, 0.35)}
#: Metrics whose value does not depend on how many rows there are.
SIZE_FREE = (
    "ece",
    "forecast_error",
    "brier",
    "crps",
    "nll",
    "accuracy",
    "within_one",
    "entropy",
    "aurc",
    "confidence_monotonicity",
)


def simulate(rng, kind, rows, tasks, repeats):
    """One dataset: rows of every task, and forecasts with the noise and width of a forecaster."""
    noise, width = FORECASTERS[kind]
    n = rows * tasks
    speedups = np.exp2(rng.normal(0, 1.2, n))
    target = Split.from_arrays(
        row_ids=[f"{i:07d}" for i in range(n)],
        tasks=[f"task{i // rows}" for i in range(n)],
        speedups=speedups,
        ends=ENDS,
    )
    z = np.log2(speedups) + rng.normal(0, noise, (repeats, n))
    p = np.exp(-0.5 * ((z[..., None] - CENTRES) / width) ** 2) + 1e-4
    return ForecastRows.of(target, Forecasts.from_arrays(target, p / p.sum(axis=-1, keepdims=True)))


def figures(rows):
    """Metric -> mean over repeats."""
    return {
        name: float(values.mean())
        for name, values in repeats_of(rows, groups=False).overall.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("datasets", 500),
        ("draws", 1000),
        ("rows", 80),
        ("tasks", 6),
        ("repeats", 3),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    size = (options.rows, options.tasks, options.repeats)
    print(
        f"{options.datasets} datasets of {options.tasks} x {options.rows} rows x "
        f"{options.repeats} repeats, {options.draws} draws"
    )
    for kind in FORECASTERS:
        rng = np.random.default_rng([options.seed, 1])
        start = time.perf_counter()
        truths = [figures(simulate(rng, kind, *size)) for _ in range(2 * options.datasets)]
        mean = {name: float(np.mean([t[name] for t in truths])) for name in truths[0]}
        # Tasks have no meaning for these metrics: one large task stands for the population.
        limit = figures(simulate(rng, kind, 200_000 // options.tasks, options.tasks, 1))
        covered = {name: np.zeros(4) for name in mean}
        width = dict.fromkeys(mean, 0.0)
        for d in range(options.datasets):
            rows = simulate(rng, kind, *size)
            seen = figures(rows)
            drawn = bootstrap(rows, seed=d, draws=options.draws, groups=False).overall
            for name in mean:
                low, high = interval(drawn[name])
                basic = 2 * seen[name] - high, 2 * seen[name] - low
                covered[name] += [
                    a <= truth[name] <= b
                    for truth in (mean, limit)
                    for a, b in ((low, high), basic)
                ]
                width[name] += (high - low) / options.datasets
        error = 100 * (0.95 * 0.05 / options.datasets) ** 0.5
        print(
            f"\n{kind} ({time.perf_counter() - start:.0f} s; standard error of a coverage "
            f"{error:.1f} points)"
        )
        print(
            f"{'metric':<26}{'mean score':>11}{'width':>9}{'covered':>9}{'basic':>9}"
            f"{'population':>12}{'covered':>9}{'basic':>9}"
        )
        for name in METRICS:
            if name in mean:
                share = [f"{100 * c / options.datasets:.1f} %" for c in covered[name]]
                line = f"{name:<26}{mean[name]:>11.4f}{width[name]:>9.4f}{share[0]:>9}{share[1]:>9}"
                free = (
                    f"{limit[name]:>12.4f}{share[2]:>9}{share[3]:>9}" if name in SIZE_FREE else ""
                )
                print(line + free)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
