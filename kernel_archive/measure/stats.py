"""The arithmetic of timing: distributions, the stop rule, the order of a pair, the reference's band. No clock here."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.measure.settings import Settings

StopReason = Literal["precise", "max_runs", "time"]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one function on one case, all in ns.

    Attributes:
        runs: number of timed calls.
        mean: arithmetic mean.
        median: median.
        std: sample standard deviation (0 for one run).
        err: standard error of the mean.
        best: least.
        worst: largest.
    """

    runs: int
    mean: float
    median: float
    std: float
    err: float
    best: float
    worst: float


def describe(times: Sequence[float]) -> Distribution:
    """The distribution of times in ns; at least one.

    >>> describe([2.0, 4.0]).std == 2.0**0.5
    True
    """
    n = len(times)
    mean = math.fsum(times) / n
    std = math.sqrt(math.fsum((t - mean) ** 2 for t in times) / (n - 1)) if n > 1 else 0.0
    return Distribution(
        runs=n,
        mean=mean,
        median=statistics.median(times),
        std=std,
        err=std / math.sqrt(n),
        best=min(times),
        worst=max(times),
    )


def candidate_first(index: int) -> bool:
    """Who runs first in pair ``index``: pairs alternate, so that a drift takes both alike."""
    return index % 2 == 0


def stop_reason(candidate: Sequence[float], reference: Sequence[float], settings: Settings) -> StopReason | None:
    """Whether the loop over pairs ends here, and why.

    Both means must be precise (standard error under ``stop_relative_error``); else ``max_runs`` or the time cap ends
    it, never before ``min_runs``.

    Args:
        candidate: times so far, ns.
        reference: times so far, ns; as many.
        settings: the protocol's numbers.
    """
    n = len(candidate)
    if n < settings.min_runs:
        return None
    if n > 1 and all(d.err < settings.stop_relative_error * d.mean for d in (describe(candidate), describe(reference))):
        return "precise"
    if n >= settings.max_runs:
        return "max_runs"
    if math.fsum(candidate) + math.fsum(reference) >= settings.max_case_seconds * 1e9:
        return "time"
    return None


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers.

    >>> round(geometric_mean([1.0, 4.0]), 12)
    2.0
    """
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


class ReferenceBand:
    """The usual time of the reference per case of one task on one device, learnt as measurements come in.

    Until ``settle`` measurements of a case are known, nothing is outside the band.
    """

    def __init__(self, factor: float, settle: int = 5) -> None:
        self.factor = factor
        self.settle = settle
        self._seen: dict[str, list[float]] = {}

    def usual(self, case: str) -> float | None:
        """Median of what was seen, ns; ``None`` before it is settled."""
        seen = self._seen.get(case, [])
        return statistics.median(seen) if len(seen) >= self.settle else None

    def ratio(self, case: str, time: float) -> float:
        """``time`` over the usual one; 1.0 before it is settled."""
        usual = self.usual(case)
        return time / usual if usual else 1.0

    def outside(self, case: str, time: float) -> bool:
        """Whether a reference time is off the usual one by more than the factor, either way."""
        ratio = self.ratio(case, time)
        return ratio > self.factor or ratio < 1.0 / self.factor

    def learn(self, case: str, time: float) -> None:
        """Remember one reference time, ns (the last 201 of a case count)."""
        seen = self._seen.setdefault(case, [])
        seen.append(time)
        if len(seen) > 201:
            del seen[0]
