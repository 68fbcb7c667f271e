"""The card's pictures: what the templates ``cards/*.svg`` draw, from the counted facts.

Plain text out of plain numbers: the same bytes on every machine (``validate`` compares them), which a plotting library
does not promise from one version to the next. Each picture brings its own background and follows the reader's light or
dark setting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.bins import N_BINS, SCHEMES, BinScheme, Scheme, bin_of
from kernel_archive.publishing.templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One colour per bin, slow (warm) to fast (cool); apart for colour-blind readers too.
BIN_COLOURS: Final = ("#b2182b", "#d6604d", "#ee9268", "#e6b08f", "#8fb9d8", "#5a9fcb", "#3a7fb8", "#215f9e")
_METHOD_COLOURS: Final = ("#2f6fb2", "#b26a00", "#1d7f5f", "#a8457f", "#6a5fb0", "#b0472f", "#6b747d")
#: More problems or GPUs than this are drawn together as "others".
MAX_ROWS: Final = 12
#: Octaves of the speedup axis, and bars in each.
_LOW, _HIGH, _PER_OCTAVE = -6, 6, 4


def _short_range(rule: BinScheme, bin_: int) -> str:
    low, high = rule.interval(bin_)
    if bin_ == 1:
        return f"to {high:.3g}x"
    return f"over {low:.3g}x" if bin_ == N_BINS else f"{low:.2g}\N{EN DASH}{high:.2g}x"


def _bins(facts: dict[str, Any], rule: BinScheme) -> str:
    grid = facts["problems"].largest(MAX_ROWS)
    rows = list(zip(grid.rows, grid.counts, strict=True))
    described = "; ".join(f"{name}: {', '.join(map(str, counts))}" for name, counts in rows)
    return render(
        "bins.svg",
        title="Kernels per problem and speedup bin",
        description=f"Counts for bins 1 to 8. {described}",
        height=148 + 30 * len(rows),
        rule=rule,
        bins=[
            {"number": b, "colour": BIN_COLOURS[b - 1], "interval": rule.describe(b), "short": _short_range(rule, b)}
            for b in range(1, N_BINS + 1)
        ],
        rows=rows,
        most=max((n for counts in grid.counts for n in counts), default=0),
        totals=grid.column_totals,
    )


def _gpus(facts: dict[str, Any]) -> str:
    grid = facts["gpu_methods"].largest(MAX_ROWS)
    methods = [
        {"label": name.replace("_", " ")[:22], "colour": _METHOD_COLOURS[min(i, len(_METHOD_COLOURS) - 1)]}
        for i, name in enumerate(grid.columns)
    ]
    rows = [
        (gpu, [{"count": n, "method": m["label"], "colour": m["colour"]} for n, m in zip(counts, methods, strict=True)])
        for gpu, counts in zip(grid.rows, grid.counts, strict=True)
    ]
    return render(
        "gpus.svg",
        title="Kernels per GPU and generation method",
        description="; ".join(f"{gpu}: {n}" for gpu, n in zip(grid.rows, grid.row_totals, strict=True)),
        height=108 + 34 * len(rows),
        methods=methods,
        rows=rows,
        most=max(grid.row_totals, default=0),
    )


def _histogram(name: str, speedups: Sequence[float], scheme: Scheme) -> dict[str, Any]:
    counts = [0] * ((_HIGH - _LOW) * _PER_OCTAVE)
    for s in speedups:
        counts[min(len(counts) - 1, max(0, math.floor((math.log2(s) - _LOW) * _PER_OCTAVE)))] += 1
    edges = [2.0 ** (_LOW + i / _PER_OCTAVE) for i in range(len(counts) + 1)]
    bars = [
        {
            "slot": i,
            "count": n,
            "span": f"{edges[i]:.3g} to {edges[i + 1]:.3g}x",
            "colour": BIN_COLOURS[bin_of(math.sqrt(edges[i] * edges[i + 1]), scheme) - 1],
        }
        for i, n in enumerate(counts)
    ]
    return {"name": name, "total": len(speedups), "most": max(counts), "bars": bars}


def _speedups(facts: dict[str, Any], rule: BinScheme) -> str:
    by_problem = {row["name"]: row["values"] for row in facts["speedups"]}
    largest = sorted(by_problem, key=lambda p: (-len(by_problem[p]), p))[:MAX_ROWS]
    drawn = {name: values for name, values in by_problem.items() if name in largest}
    left_out = len(by_problem) - len(drawn)
    return render(
        "speedups.svg",
        title="Distribution of measured speedups",
        description="; ".join(f"{p}: {len(s)} kernels, {s[0]:.3g}x to {s[-1]:.3g}x" for p, s in drawn.items()),
        height=118 + 58 * len(drawn) + (22 if left_out else 0),
        rule=rule,
        octaves=range(_LOW, _HIGH + 1),
        rows=[_histogram(name, values, rule.name) for name, values in drawn.items()],
        left_out=left_out,
    )


def pictures(facts: dict[str, Any], scheme: Scheme) -> dict[str, bytes]:
    """File name in the archive -> SVG."""
    rule = SCHEMES[scheme]
    drawn = {"bins": _bins(facts, rule), "gpus": _gpus(facts), "speedups": _speedups(facts, rule)}
    return {f"assets/{name}.svg": text.encode("utf-8", "replace") for name, text in drawn.items()}
