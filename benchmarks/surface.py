"""What the surface of the programs gives away: every quantity of their text as if it were a forecast, on an evaluation split.

    python benchmarks/surface.py ARCHIVE [--split eval] [--markdown] [--others]

For each quantity of ``kernel_archive.program_text.quantities``, taken in the direction in which it does better over all tasks:
the speedup recovered (as the score defines it, mean over tasks and budgets) and the rank correlation with the speedup within
a task, its mean and the one that is furthest from zero. A random order is the first line, the oracle the last.

With ``--others`` the quantities are others, which no split is levelled by (``selection/level.py``): what levelling hides by
having looked at it, these still show. So none of them may ever be added to those that it looks at without another taking its place here.
"""

from __future__ import annotations

import argparse
import re
import zlib
from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.archive.natural import rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.program_text import QUANTITIES, quantities
from kernel_archive.scoring.recovery import budget_ranks, recovered_at, recovered_at_random

if TYPE_CHECKING:
    from collections.abc import Callable


def _words(pattern: str) -> Callable[[str], float]:
    return lambda code: len(re.findall(pattern, code, re.MULTILINE))


def _largest(pattern: str, otherwise: int) -> Callable[[str], float]:
    return lambda code: max([int(x) for x in re.findall(pattern, code)] or [otherwise])


def _numbers(code: str) -> list[int]:
    return [int(x) for x in re.findall(r"\b\d{1,9}\b", code)]


#: Quantities of a text that no split is levelled by, by name.
OTHERS: dict[str, Callable[[str], float]] = {
    "num_warps": _largest(r"num_warps\s*=\s*(\d+)", 4),
    "num_stages": _largest(r"num_stages\s*=\s*(\d+)", 3),
    "median_number": lambda code: float(np.median([n for n in _numbers(code) if n > 3] or [0])),
    "powers_of_two": lambda code: sum(n >= 16 and n & (n - 1) == 0 for n in _numbers(code)),
    "largest_power": lambda code: max([n for n in _numbers(code) if 16 <= n <= 8192 and n & (n - 1) == 0] or [0]),
    "most_arguments": lambda code: max([s.count(",") for s in re.findall(r"def [^:]*:", code)] or [0]),
    "compressed": lambda code: len(zlib.compress(code.encode())),
    "compressed_share": lambda code: len(zlib.compress(code.encode())) / len(code),
    "indent": lambda code: float(np.mean([len(x) - len(x.lstrip()) for x in code.splitlines() if x.strip()])),
    "longest_line": lambda code: max(map(len, code.splitlines())),
    "blank_lines": lambda code: sum(not x.strip() for x in code.splitlines()),
    "capitals": lambda code: sum(x.isupper() for x in code),
    "for": _words(r"^\s*for "),
    "if": _words(r"^\s*if "),
    "products": _words(r"matmul|einsum|bmm|F\.linear| @ "),
} | {
    word: _words(re.escape(word))
    for word in (
        "tf32", "tl.exp", "tl.where", "float32", "bfloat16", "static_range", "eviction", "while", "autotune", "make_block_ptr",
        "lambda", "None", "zeros", "torch.empty", "contiguous", "program_id", "def ", "*", "[", "_",
    )
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--split", default="eval")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--others", action="store_true")
    args = parser.parse_args()
    rows = open_archive(args.archive).arrow(args.split, columns=["task", "speedup", "candidate_code"])
    tasks = np.array(rows["task"].to_pylist())
    speedups = rows["speedup"].to_numpy()
    codes = rows["candidate_code"].to_pylist()
    texts = [{n: q(c) for n, q in OTHERS.items()} if args.others else quantities(c) for c in codes]
    members = [np.flatnonzero(tasks == task) for task in sorted(set(tasks))]

    def recovered(values: np.ndarray) -> float:
        return float(np.mean([
            recovered_at(expected=values[i], speedups=speedups[i], ranks=budget_ranks(len(i))).mean() for i in members
        ]))  # fmt: skip

    chance = [recovered_at_random(speedups=speedups[i], ranks=budget_ranks(len(i))).mean() for i in members]
    lines: list[tuple[str, float, float, float]] = []
    for name in OTHERS if args.others else QUANTITIES:
        values = np.array([text[name] for text in texts], dtype=np.float64)
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
