"""Draw the card's picture, kernels per problem and speedup bin, as SVG.

It is plain text made from plain numbers: the same bytes on every machine, so that ``validate``
can compare them. It brings its own background and follows light and dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kernel_archive.bins import N_BINS, BinScheme
from kernel_archive.publishing.templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One colour per bin, slow (warm) to fast (cool), distinct for colour-blind readers too.
BIN_COLOURS: Final = (
    "#b2182b",
    "#d6604d",
    "#ee9268",
    "#e6b08f",
    "#8fb9d8",
    "#5a9fcb",
    "#3a7fb8",
    "#215f9e",
)
#: Problems drawn; with more, the smallest are summed in one row of others.
MAX_PROBLEMS: Final = 12


def _short_range(rule: BinScheme, bin_: int) -> str:
    low, high = rule.interval(bin_)
    if bin_ == 1:
        return f"to {high:.3g}x"
    return f"over {low:.3g}x" if bin_ == N_BINS else f"{low:.2g}\N{EN DASH}{high:.2g}x"


def _largest(problems: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """Keep the problems with the most kernels, in their order; sum the rest as others."""
    rows = [(str(row["name"]), list(row["bins"])) for row in problems]
    if len(rows) <= MAX_PROBLEMS:
        return rows
    by_size = sorted(rows, key=lambda row: (-sum(row[1]), row[0]))
    shown, rest = by_size[: MAX_PROBLEMS - 1], by_size[MAX_PROBLEMS - 1 :]
    others = [sum(counts) for counts in zip(*(counts for _, counts in rest), strict=True)]
    return [*sorted(shown), (f"{len(rest)} others", others)]


def draw_bins(problems: Sequence[dict[str, Any]], rule: BinScheme) -> bytes:
    """Draw the counts of each problem in the eight bins."""
    rows = _largest(problems)
    described = "; ".join(f"{name}: {', '.join(map(str, counts))}" for name, counts in rows)
    picture = render(
        "bins.svg",
        title="Kernels per problem and speedup bin",
        description=f"Counts for bins 1 to 8. {described}",
        height=148 + 30 * len(rows),
        rule=rule,
        bins=[
            {
                "number": b,
                "colour": BIN_COLOURS[b - 1],
                "interval": rule.describe(b),
                "short": _short_range(rule, b),
            }
            for b in range(1, N_BINS + 1)
        ],
        rows=rows,
        most=max((n for _, counts in rows for n in counts), default=0),
        totals=[sum(counts[b] for _, counts in rows) for b in range(N_BINS)],
    )
    return picture.encode("utf-8", "replace")
