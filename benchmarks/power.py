"""Statistical power: the smallest difference in CRPS and pair accuracy that n rows can tell apart.

By simulation.

    python benchmarks/power.py [--splits 200] [--draws 300]

Two forecasters read the same rows: each knows the logarithm of a speedup up to an error of its own
(normal, in octaves), part of which they share (correlation 0.5, since hard rows are hard for both),
and forecasts the normal distribution that this leaves. The first one's error is fixed for each
level of skill; the second one's grows until 80 % of the simulated splits tell the two apart: the 95
% interval of the paired bootstrap, stratified by task, does not hold 0. Printed is the difference
of the two in the mean over the splits, which is then the smallest that can be told apart. Rows are
six tasks with evenly full bins, one repeat; a row of two settings in the table takes about a
minute.
"""

from __future__ import annotations

import argparse

import numpy as np

from kernel_archive.bins import SCHEMES
from kernel_archive.scoring import Forecasts, Split
from kernel_archive.scoring.figures import bootstrap, interval, metrics_by_repeat
from kernel_archive.scoring.samples import ForecastRows

EDGES = np.log2(np.asarray(SCHEMES["paper"].edges))
METRICS = ("crps", "pair_accuracy")
#: Error in octaves of the better forecaster -> what such a forecaster is like.
LEVELS = {0.35: "a very good reader", 0.8: "a good reader", 1.6: "a poor reader"}
POWER = 0.8
TASKS = 6


def normal_cdf(z):
    """By a rational approximation, to seven decimals."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(z) / np.sqrt(2.0))
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    erf = 1.0 - series * np.exp(-0.5 * z * z)
    return 0.5 * (1.0 + np.sign(z) * erf)


def speedups_of(rng, n):
    """N rows, evenly over tasks and bins, log-uniform inside; open bins are 1.5 octaves wide."""
    low = np.concatenate([[EDGES[0] - 1.5], EDGES])
    high = np.concatenate([EDGES, [EDGES[-1] + 1.5]])
    at = np.arange(n) % 8
    return rng.uniform(low[at], high[at])


def cast(rng, target, z, shared, error):
    """The forecasts of one reader."""
    seen = z + error * (np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.normal(size=len(z)))
    # What an error of this size leaves, given that speedups spread by about 1.7 octaves.
    kept = 1.7**2 / (1.7**2 + error**2)
    spread = np.sqrt(kept) * error
    below = normal_cdf((EDGES - kept * seen[:, None]) / spread)
    p = np.diff(below, axis=1, prepend=0.0, append=1.0)
    return Forecasts.from_arrays(
        target, np.maximum(p, 1e-6), expected_speedups=np.exp2(kept * seen)
    )


def compared(rng, n, better, worse, draws):
    """One simulated split: difference of the two, and whether it is told apart, by metric."""
    z = speedups_of(rng, n)
    target = Split.from_arrays(
        row_ids=[f"{i:05d}" for i in range(n)],
        tasks=[f"t{(i // 8) % TASKS}" for i in range(n)],
        speedups=np.exp2(z),
    )
    shared = rng.normal(size=n)
    rows = [
        ForecastRows.of(target, cast(rng, target, z, shared, error)) for error in (better, worse)
    ]
    seen = [metrics_by_repeat(r, METRICS, groups=False).overall for r in rows]
    seed = int(rng.integers(2**31))
    drawn = [
        bootstrap(r, seed=seed, draws=draws, names=METRICS, groups=False).overall for r in rows
    ]
    out = {}
    for name in METRICS:
        low, high = interval(drawn[0][name] - drawn[1][name]) or (0.0, 0.0)
        out[name] = (
            float(seen[0][name][0] - seen[1][name][0]),
            low > 0 or high < 0,
            float(seen[0][name][0]),
        )
    return out


def simulate(n, better, ratio, splits, draws, seed):
    """Mean difference, power and level of the better one, by metric."""
    rng = np.random.default_rng([seed, n, round(1000 * better), round(1000 * ratio)])
    found = [compared(rng, n, better, better * ratio, draws) for _ in range(splits)]
    return {name: np.mean([f[name] for f in found], axis=0) for name in METRICS}


def smallest(n, better, splits, draws):
    """By metric: level of the better one, and the difference that 80 % of the splits tell apart."""
    ratios = (1.03, 1.06, 1.1, 1.15, 1.22, 1.3, 1.45, 1.7, 2.2)
    table = []
    for ratio in ratios:
        table.append(simulate(n, better, ratio, splits, draws, seed=1))
        if all(table[-1][name][1] >= POWER for name in METRICS):
            break
    out = {}
    for name in METRICS:
        power = np.maximum.accumulate([row[name][1] for row in table])
        gaps = np.abs([row[name][0] for row in table])
        level = float(np.mean([row[name][2] for row in table]))
        known = power[-1] >= POWER
        out[name] = (level, float(np.interp(POWER, power, gaps)) if known else None)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--rows", type=int, nargs="*", default=[96, 240, 480, 960])
    options = parser.parse_args()
    print(
        "| rows | the better one | its CRPS | smallest difference | its pair accuracy | smallest "
        "difference |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for n in options.rows:
        for better, who in LEVELS.items():
            found = smallest(n, better, options.splits, options.draws)
            cells = [
                f"{level:.3f} | " + ("-" if gap is None else f"{gap:.4f}")
                for level, gap in found.values()
            ]
            print(f"| {n} | {who} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
