"""Speedup bins: eight half-octave classes of reference time over candidate time, under two schemes.

``paper`` is the table printed in the GPU Forecasters paper (arXiv 2605.31464, appendix):
right-closed intervals with inner edges at exact half octaves. ``released`` is the rule that the
published tables follow, ``clamp(floor(2 log2 S) + 4, 1, 8)``: left-closed, one bin lower for most
speedups between 0.25x and 2.83x. Every labelled table stores which scheme its labels follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernel_archive.errors import DataError, Finding, UsageError, suggestion

Scheme = Literal["paper", "released"]
N_BINS: Final = 8
DEFAULT_SCHEME: Final[Scheme] = "paper"
BIN_NAMES: Final[tuple[str, ...]] = (
    "severe_slowdown",
    "significant_slowdown",
    "moderate_slowdown",
    "minor_slowdown",
    "minor_speedup",
    "significant_speedup",
    "high_speedup",
    "extreme_speedup",
)


class BinScheme(msgspec.Struct, frozen=True):
    """A rule that assigns a speedup to one of eight bins."""

    name: Scheme
    edges: tuple[float, ...]  # the seven inner ones, ascending, in x
    right_closed: bool  # whether an edge belongs to the bin below it
    #: Representatives of bins 1 and 8 where no row gives an empirical mean.
    fallback_ends: tuple[float, float]

    def interval(self, bin_: int) -> tuple[float, float]:
        """Give lower and upper edge of a bin, in x; 0 and infinity at the ends."""
        edges = (0.0, *self.edges, math.inf)
        return edges[bin_ - 1], edges[bin_]

    def describe(self, bin_: int) -> str:
        """Write the interval as text, for example ``0.25 < S <= 0.5``."""
        low, high = self.interval(bin_)
        above, up_to = (">", "<=") if self.right_closed else (">=", "<")
        if bin_ == 1:
            return f"S {up_to} {high:.4g}"
        if bin_ == N_BINS:
            return f"S {above} {low:.4g}"
        return f"{low:.4g} {above.replace('>', '<')} S {up_to} {high:.4g}"


_R = 2.0**0.5
_H = 2.0**-0.5
SCHEMES: Final[dict[Scheme, BinScheme]] = {
    "paper": BinScheme("paper", (0.25, 0.5, _H, 1.0, _R, 2.0, 4.0), True, (0.25 / _R, 4.0 * _R)),
    "released": BinScheme(
        "released", (0.5, _H, 1.0, _R, 2.0, 2.0**1.5, 4.0), False, (0.5 / _R, 4.0 * _R)
    ),
}


def checked_scheme(name: str) -> Scheme:
    """Return the name of a scheme; any other is a UsageError."""
    if name not in SCHEMES:
        raise UsageError(f"unknown bin scheme {name!r}. {suggestion(name, SCHEMES)}")
    return name


def scheme_of(name: str) -> BinScheme:
    """Look up a scheme by name; any other is a UsageError."""
    return SCHEMES[checked_scheme(name)]


def bin_of(speedup: float, name: Scheme = DEFAULT_SCHEME) -> int:
    """Assign one speedup to its bin, 1 to 8; errors as in :func:`assign_bins`.

    >>> bin_of(1.71), bin_of(1.71, "released")
    (6, 5)
    """
    return int(assign_bins([speedup], name)[0])


def assign_bins(
    speedups: ArrayLike, name: Scheme = DEFAULT_SCHEME, *, row_ids: Sequence[str] | None = None
) -> NDArray[np.int8]:
    """Assign every speedup to its bin, 1 to 8.

    Speedups are an array of any shape, in x; the bins are int8 of the same shape.

    Raises:
        DataError: a speedup is not finite or not above 0; 20 such rows are named, by ``row_ids``.
    """
    s = np.asarray(speedups, dtype=np.float64)
    bad = ~(np.isfinite(s) & (s > 0))
    if bad.any():
        message = "a speedup must be finite and above 0"
        rows = [
            (row_ids[i] if row_ids is not None else i, float(s.flat[i]))
            for i in np.flatnonzero(bad)[:20]
        ]
        raise DataError.from_findings(
            Finding(code="bad-speedup", message=message, field=f"speedup[{row}]", value=repr(value))
            for row, value in rows
        )
    rule = scheme_of(name)
    side: Literal["left", "right"] = "left" if rule.right_closed else "right"
    return (np.searchsorted(np.asarray(rule.edges), s, side=side) + 1).astype(np.int8)


def outcome_speedups(passes: ArrayLike) -> NDArray[np.float64]:
    """Encode pass and fail as speedups, so that metrics of bins apply to outcomes.

    8x (bin 8) where ``passes`` is above 0, else 1/8x (bin 1).
    """
    return np.where(np.asarray(passes) > 0, 8.0, 0.125)


def representatives(
    speedups: ArrayLike, bins: ArrayLike, name: Scheme = DEFAULT_SCHEME
) -> NDArray[np.float64]:
    """Compute the representative speedup m_b of every bin, in x (docs/metrics.md, "Speedup bins").

    Bins 2 to 7 take the geometric centre of their interval. Bins 1 and 8 take the arithmetic mean
    of the speedups in them (``speedups`` and ``bins``, of shape (n,)), or the scheme's fallback.
    """
    rule = scheme_of(name)
    inner = np.asarray(rule.edges)
    m = np.concatenate(([0.0], np.sqrt(inner[:-1] * inner[1:]), [0.0]))
    for b, fallback in zip((1, N_BINS), rule.fallback_ends, strict=True):
        chosen = np.asarray(speedups, dtype=np.float64)[np.asarray(bins) == b]
        m[b - 1] = math.fsum(chosen.tolist()) / len(chosen) if len(chosen) else fallback
    return m
