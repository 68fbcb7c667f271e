"""What the surface of the programs gives away: every quantity of their text as if it were a forecast, on an evaluation split.

    python benchmarks/surface.py ARCHIVE [--split eval] [--markdown]

For each quantity of ``kernel_archive.program_text.quantities``, taken in the direction in which it does better over all tasks:
the speedup recovered (as the score defines it, mean over tasks and budgets) and the rank correlation with the speedup within
a task, its mean and the one that is furthest from zero. A random order is the first line, the oracle the last.
"""

from __future__ import annotations

import argparse

import numpy as np

from kernel_archive.archive.natural import rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.program_text import QUANTITIES, quantities
from kernel_archive.scoring.recovery import budget_ranks, recovered_at, recovered_at_random


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--split", default="eval")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    rows = open_archive(args.archive).arrow(args.split, columns=["task", "speedup", "candidate_code"])
    tasks = np.array(rows["task"].to_pylist())
    speedups = rows["speedup"].to_numpy()
    texts = [quantities(code) for code in rows["candidate_code"].to_pylist()]
    members = [np.flatnonzero(tasks == task) for task in sorted(set(tasks))]

    def recovered(values: np.ndarray) -> float:
        return float(np.mean([
            recovered_at(expected=values[i], speedups=speedups[i], ranks=budget_ranks(len(i))).mean() for i in members
        ]))  # fmt: skip

    chance = [recovered_at_random(speedups=speedups[i], ranks=budget_ranks(len(i))).mean() for i in members]
    lines: list[tuple[str, float, float, float]] = []
    for name in QUANTITIES:
        values = np.array([text[name] for text in texts])
        ranks = [rank_correlation(values[i], speedups[i]) for i in members]
        best = max(recovered(values), recovered(-values))
        lines.append((name, best, float(np.mean(ranks)), max(ranks, key=abs)))
    lines.sort(key=lambda line: -line[1])
    table = [("random order", float(np.mean(chance)), 0.0, 0.0), *lines, ("oracle", recovered(speedups), 1.0, 1.0)]
    form = (
        "| {:<20} | {:>11.1f} | {:>+11.2f} | {:>+16.2f} |"
        if args.markdown
        else "{:<20} {:>9.1f} % {:>+8.2f} {:>+10.2f}"
    )
    print(f"{len(tasks)} rows of {args.split}, {len(members)} tasks")
    if args.markdown:
        print("| quantity | recovered, % | mean rank correlation | furthest in a task |\n| --- | --- | --- | --- |")
    for line in table:
        print(form.format(*line))


if __name__ == "__main__":
    main()
