"""Forecasts that read no program: uniform, constants, and the bin frequencies of a problem's training pairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from kernel_archive.bins import N_BINS, SCHEMES, assign_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernel_archive.bins import Scheme
    from kernel_archive.forecasters.pairs import AskedPairs, TrainingPairs

#: So many pseudo-observations of the frequencies over all problems smooth the frequencies of one.
PRIOR_WEIGHT: Final = 4.0


def uniform(asked: AskedPairs) -> NDArray[np.float64]:
    """One eighth for every bin: shape (n, 8)."""
    return np.full((len(asked), N_BINS), 1.0 / N_BINS)


def constant(asked: AskedPairs, kind: Literal["slow", "near", "fast"]) -> NDArray[np.float64]:
    """The same certainty for every row: shape (n, 8).

    ``near`` spreads over the bins within half an octave of 1x, ``slow`` over those below, ``fast`` over those above.
    """
    low, high = math.sqrt(0.5), math.sqrt(2.0)
    row = np.zeros(N_BINS)
    for b in range(1, N_BINS + 1):
        start, end = SCHEMES[asked.scheme].interval(b)
        place = "slow" if end <= low else "fast" if start >= high else "near"
        row[b - 1] = float(place == kind)
    return np.tile(row / row.sum(), (len(asked), 1))


def _frequencies(speedups: NDArray[np.float64], scheme: Scheme) -> NDArray[np.float64]:
    return np.bincount(assign_bins(speedups, scheme), minlength=N_BINS + 1)[1:].astype(np.float64)


def prior(asked: AskedPairs, training: TrainingPairs) -> NDArray[np.float64]:
    """Bin frequencies of the problem's training pairs, smoothed: shape (n, 8).

    Only pairs made as the split's rows are (``seed`` for eval, ``parent_edit`` for discovery) are counted. All
    problems together, with one pseudo-observation per bin, smooth each problem by :data:`PRIOR_WEIGHT`; a problem
    without training pairs has the frequencies of all.
    """
    native = training.native(asked.split)
    everything = _frequencies(training.speedups[native], asked.scheme) + 1.0
    everything /= everything.sum()
    names = np.asarray(training.problems)
    by_problem: dict[str, NDArray[np.float64]] = {}
    for problem in dict.fromkeys(asked.problems):
        counts = _frequencies(training.speedups[native & (names == problem)], asked.scheme)
        smoothed = counts + PRIOR_WEIGHT * everything
        by_problem[problem] = smoothed / smoothed.sum()
    return np.asarray([by_problem[problem] for problem in asked.problems]).reshape(len(asked), N_BINS)
