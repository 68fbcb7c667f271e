"""What the surface of the programs gives away.

Every quantity of their text as if it were a forecast, on an evaluation split.

    python benchmarks/surface.py ARCHIVE [--split eval] [--markdown] [--others]

For each quantity of ``kernel_archive.text_quantities.quantities``, taken in the direction in which
it does better over all tasks: the speedup recovered (as the score defines it, mean over tasks and
budgets) and the rank correlation with the speedup within a task, its mean and the one that is
furthest from zero. A random order is the first line, the oracle the last. Below stands how far the
furthest of so many quantities lies by chance: of 20,000 orders drawn at random, each taken in its
better direction.

With ``--others`` the quantities are others, which no split is levelled by (``selection/level.py``):
what levelling hides by having looked at it, these still show. So none of them may ever be added to
those that it looks at without another taking its place here (as happened in data version 2026.11.9,
since when 34 of the 35 that stood here are levelled, in 2026.11.10 with `.to(` and in 2026.11.11
with `BLOCK`). Programs must be Python that can be parsed.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.archive.natural import rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.scoring.recovery import recovered_at
from kernel_archive.text_quantities import QUANTITIES, quantities

if TYPE_CHECKING:
    from collections.abc import Callable


def _words(pattern: str) -> Callable[[str], float]:
    return lambda code: len(re.findall(pattern, code, re.MULTILINE))


def _share(wanted: Callable[[str], bool]) -> Callable[[str], float]:
    return lambda code: sum(map(wanted, code)) / len(code)


def _numbers(code: str) -> list[int]:
    return [int(n) for n in re.findall(r"(?<![\w.])\d{1,9}\b", code)]


def _times(number: int) -> Callable[[str], float]:
    return lambda code: _numbers(code).count(number)


def _lengths(code: str) -> list[int]:
    return list(map(len, code.splitlines()))


def _functions(code: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]


def _of(function: ast.FunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _kernel_share(code: str) -> float:
    found = _functions(code)
    kernels = [f for f in found if any("jit" in ast.unparse(d) for d in f.decorator_list)]
    return sum(map(_of, kernels)) / max(1, sum(map(_of, found)))


def _depth(code: str) -> float:
    def below(node: ast.AST) -> int:
        return 1 + max(map(below, ast.iter_child_nodes(node)), default=0)

    return below(ast.parse(code))


def _distinct_triples(code: str) -> float:
    words = re.findall(r"\w+", code)
    return len(set(zip(words, words[1:], words[2:], strict=False))) / max(1, len(words))


def _entropy(code: str) -> float:
    shares = np.array(list(Counter(code).values())) / len(code)
    return float(-(shares * np.log(shares)).sum())


#: Quantities of a text that no split is levelled by, by name.
OTHERS: dict[str, Callable[[str], float]] = {
    "depth": _depth,
    "longest_function": lambda code: max(map(_of, _functions(code)), default=0),
    "kernel_share": _kernel_share,
    "distinct_triples": _distinct_triples,
    "entropy": _entropy,
    "spread_of_lines": lambda code: float(np.std(_lengths(code))),
    "median_line": lambda code: float(np.median(_lengths(code))),
    "last_line": lambda code: len(code.rstrip().splitlines()[-1]),
    "vowels": _share(lambda x: x in "aeiou"),
    "letters": _share(str.isalpha),
    "blanks": _share(str.isspace),
    "digits": _share(str.isdigit),
    "smallest_power": lambda code: min(
        [n for n in _numbers(code) if n >= 8 and n & (n - 1) == 0] or [0]
    ),
    "from_256": lambda code: sum(n >= 256 for n in _numbers(code)),
    **{f"number {n}": _times(n) for n in (1, 16, 32, 64, 128)},
} | {
    pattern: _words(pattern)
    for pattern in (
        r"^\s*\w[\w, ]* = ",
        r"[+\-*/]=",
        r"\w\(",
        r"\w\.\w",
        ",",
        r"\(",
        ":",
        "=",
        r"\+",
        "-",
        "/",
        "//",
        "%",
        "<",
        "&",
        "stride",
        "arange",
        "cdiv",
        "off",
        "acc",
        "ptr",
        r"\.view|reshape",
        r"tl\.trans|\.T\b|\.mT|\.t\(",
        "float16",
        r"\blog",
        r"\bassert\b",
        r"maximum|\bmax\b",
        r"range\(",
        r"^\s*\w+, ",
        r"^\s*(import|from) ",
        "return",
        r"\bnot\b",
        "shape",
        "device",
        "dtype=",
        r"\d\.\d|\de-?\d",
        "ieee",
        "multiple_of|max_contiguous",
        "[\"']",
        "grid",
    )
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--split", default="eval")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--others", action="store_true")
    args = parser.parse_args()
    rows = open_archive(args.archive).arrow(
        args.split, columns=["task", "speedup", "candidate_code"]
    )
    tasks = np.array(rows["task"].to_pylist())
    speedups = rows["speedup"].to_numpy()
    codes = rows["candidate_code"].to_pylist()
    texts = [{n: q(c) for n, q in OTHERS.items()} if args.others else quantities(c) for c in codes]
    members = [np.flatnonzero(tasks == task) for task in sorted(set(tasks))]

    def recovered(values: np.ndarray) -> float:
        return float(
            np.mean(
                [recovered_at(expected=values[i], speedups=speedups[i]).mean() for i in members]
            )
        )

    chance = [recovered_at(expected=np.ones(len(i)), speedups=speedups[i]).mean() for i in members]
    lines: list[tuple[str, float, float, float]] = []
    for name in OTHERS if args.others else QUANTITIES:
        values = np.array([text[name] for text in texts], dtype=np.float64)
        ranks = [rank_correlation(values[i], speedups[i]) for i in members]
        best = max(recovered(values), recovered(-values))
        lines.append((name, best, float(np.mean(ranks)), max(ranks, key=abs)))
    lines.sort(key=lambda line: -line[1])
    table = [
        ("random order", float(np.mean(chance)), 0.0, 0.0),
        *lines,
        ("oracle", recovered(speedups), 1.0, 1.0),
    ]
    form = (
        "| {:<20} | {:>11.1f} | {:>+11.2f} | {:>+16.2f} |"
        if args.markdown
        else "{:<20} {:>9.1f} % {:>+8.2f} {:>+10.2f}"
    )
    print(f"{len(tasks)} rows of {args.split}, {len(members)} tasks")
    if args.markdown:
        print(
            "| quantity | recovered, % | mean rank correlation | furthest in a task |\n| --- | "
            "--- | --- | --- |"
        )
    for line in table:
        print(form.format(*line))
    n, rng = len(lines), np.random.default_rng(0)
    drawn = [rng.permutation(len(tasks)).astype(np.float64) for _ in range(20_000)]
    orders = np.array([max(recovered(values), recovered(-values)) for values in drawn]) - np.mean(
        chance
    )
    far = np.abs(
        [[rank_correlation(values[i], speedups[i]) for i in members] for values in drawn]
    ).max(1)
    for name, values in (
        ("points above a random order", orders),
        ("rank correlation in a task", far),
    ):
        most = rng.choice(values, (2000, n)).max(1)
        print(
            f"by chance, the most {name} of {n}: {most.mean():.2f} in the mean, "
            f"{np.quantile(most, 0.95):.2f} at 95 %"
        )


if __name__ == "__main__":
    main()
