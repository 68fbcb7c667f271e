"""The results of timing: distributions, when the loop over pairs ends, and what a worker says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from kernel_measure import guards
from kernel_measure.settings import Settings
from kernel_measure.tasks.base import Case

StopReason = Literal["precise", "max_runs", "time"]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Times of ``runs`` calls of one function on one case, ns.

    ``std`` is the sample's (0 for one run), ``err`` that of the mean.
    """

    runs: int
    mean: float
    median: float
    std: float
    err: float
    best: float
    worst: float


def describe(times: Sequence[float]) -> Distribution:
    """Describe times in ns, at least one, by their distribution.

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


def stop_reason(
    candidate: Sequence[float], reference: Sequence[float], settings: Settings
) -> StopReason | None:
    """Tell why the loop over pairs ends after these times, ns; ``None`` while it goes on.

    Both means must be precise (standard error under ``stop_relative_error``); else ``max_runs`` or
    the time cap ends it, never before ``min_runs``.
    """
    n, share = len(candidate), settings.stop_relative_error
    if n < settings.min_runs:
        return None
    if n > 1 and all(d.err < share * d.mean for d in map(describe, (candidate, reference))):
        return "precise"
    if n >= settings.max_runs:
        return "max_runs"
    if math.fsum(candidate) + math.fsum(reference) >= settings.max_case_seconds * 1e9:
        return "time"
    return None


class CaseResult(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The distributions of one timed case."""

    shape: Case
    candidate: Distribution
    reference: Distribution
    stop: str = ""  # why timing stopped
    over_limit: float | None = None  # candidate time over the physical limit, where it is known


class Result(msgspec.Struct, kw_only=True):
    """One evaluation as the worker reports it."""

    cases: list[CaseResult] = []  # those timed before the first failure, in order
    failure_kind: Literal["none", guards.FailureKind] = "none"
    failed_case: Case | None = None  # the first that was tried where the program does not load
    error: str = ""
    error_name: str = ""  # name of the exception or guard
    salt: str = ""  # with the seed, gives the inputs again
    narrow_domain: str = ""  # what went wrong on ``stress`` inputs after a success, if anything
