"""The arithmetic of timing: distributions, the stop rule, the order of a pair, the reference's band. No clock here."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.measure.settings import Settings

StopReason = Literal["precise", "max_runs", "time"]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Times of ``runs`` calls of one function on one case, ns: ``std`` is the sample's (0 for one run), ``err`` that of the mean."""

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
    median, best, worst = statistics.median(times), min(times), max(times)
    return Distribution(runs=n, mean=mean, median=median, std=std, err=std / math.sqrt(n), best=best, worst=worst)


def candidate_first(index: int) -> bool:
    """Who runs first in pair ``index``: pairs alternate, so that a drift takes both alike."""
    return index % 2 == 0


def stop_reason(candidate: Sequence[float], reference: Sequence[float], settings: Settings) -> StopReason | None:
    """Whether the loop over pairs ends after these times, ns, and why.

    Both means must be precise (standard error under ``stop_relative_error``); else ``max_runs`` or the time cap ends
    it, never before ``min_runs``.
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


class ReferenceBand:
    """The usual time of the reference per case of one task on one device, learnt as measurements come in.

    Until ``settle`` measurements of a case are known, nothing is outside the band.
    """

    def __init__(self, factor: float, settle: int = 5) -> None:
        self.factor, self.settle = factor, settle
        self._seen: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=201))

    def usual(self, case: str) -> float | None:
        """Median of what was seen, ns; ``None`` before it is settled."""
        seen = self._seen[case]
        return statistics.median(seen) if len(seen) >= self.settle else None

    def outside(self, case: str, time: float) -> bool:
        """Whether a reference time is off the usual one by more than the factor, either way."""
        usual = self.usual(case)
        return usual is not None and not usual / self.factor <= time <= usual * self.factor

    def learn(self, case: str, time: float) -> None:
        """Remember one reference time, ns (the last 201 of a case count)."""
        self._seen[case].append(time)
