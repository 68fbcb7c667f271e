"""A baseline that reads no program: bin frequencies of the training pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.bins import N_BINS, assign_bins

if TYPE_CHECKING:
    from kernel_archive.baselines.pairs import AskedPairs, TrainingPairs
    from kernel_archive.bins import Scheme
    from kernel_archive.scoring.arrays import Floats

#: Pseudo-observations of the frequencies over all problems that smooth those of one problem.
PRIOR_WEIGHT: Final = 4.0


def bin_counts(speedups: Floats, scheme: Scheme) -> Floats:
    """Count speedups per bin: shape (8,)."""
    counts = np.bincount(assign_bins(speedups, scheme), minlength=N_BINS + 1)[1:]
    return counts.astype(np.float64)


def prior(asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Forecast the smoothed bin frequencies of the problem's training pairs: shape (n, 8).

    Only pairs made as the split's rows are (``seed`` for eval, ``parent_edit`` for discovery)
    count. The frequencies over all problems, with one pseudo-observation per bin, smooth those of
    each problem; a problem without training pairs has the frequencies of all.
    """
    native = training.native(asked.split)
    overall = bin_counts(training.speedups[native], asked.scheme) + 1.0
    overall /= overall.sum()
    names = np.asarray(training.problems)
    by_problem: dict[str, Floats] = {}
    for problem in dict.fromkeys(asked.problems):
        counts = bin_counts(training.speedups[native & (names == problem)], asked.scheme)
        smoothed = counts + PRIOR_WEIGHT * overall
        by_problem[problem] = smoothed / smoothed.sum()
    rows = [by_problem[problem] for problem in asked.problems]
    return np.asarray(rows).reshape(len(asked), N_BINS)
