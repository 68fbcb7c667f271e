"""From an order to probabilities: what a model knows of a new problem is first of all which program is faster.

How fast the programs of a task are as a whole differs from search to search, and a split takes them evenly over the bins by
its own definition. So a model gives scores, the scores order the candidates of a task, and their ranks are spread over the
bins that the split's definition leads to expect (:func:`kernel_archive.scoring.controls.spread_ranks`). How sure the
forecasts are is learnt by leaving whole problems out of training: with no order learnt, nothing but those bins is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.bins import N_BINS, assign_bins
from kernel_archive.scoring.controls import normal_scores, spread_ranks, to_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kernel_archive.forecasters.pairs import AskedPairs, ProgramPairs, TrainingPairs
    from kernel_archive.scoring.arrays import Floats

    #: Training pairs and pairs to order -> scores, shape (n,), the larger the faster.
    Ranker = Callable[[TrainingPairs, ProgramPairs], Floats]

#: At most so many portions of problems are left out.
FOLDS: Final = 5
#: So many rows without any order pull the strength towards 0.
PSEUDO: Final = 20.0
#: The largest strength: nobody is certain of a program that was not measured.
_MOST: Final = 0.95


def expected_bins(asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Bin frequencies that are known without the labels: even for an evaluation split, which is cut so; else those of training.

    Of training pairs those count that are made as the split's rows are, natural ones alone where there are any.
    """
    if asked.split.kind == "eval":
        return np.full(N_BINS, 1.0 / N_BINS)
    rows = training.alike(asked.split)
    counts = np.bincount(assign_bins(training.speedups[rows], asked.scheme), minlength=N_BINS + 1)[1:] + 1.0
    return np.asarray(counts / counts.sum())


def _left_out(training: TrainingPairs, rows: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Problems left out in turn, or searches where there is one problem: (rows to learn from, rows to order)."""
    problems = np.asarray(training.problems)
    units = problems if len(set(problems[rows])) > 1 else np.asarray(training.searches)
    names = sorted(set(units[rows]))
    programs = [np.asarray(texts) for texts in (training.anchors, training.candidates)]
    for start in range(min(FOLDS, len(names))):
        inside = np.isin(units, names[start::FOLDS])
        test = rows[inside[rows]]
        seen = programs[1][inside]
        kept = ~inside & ~np.isin(programs[0], seen) & ~np.isin(programs[1], seen)
        if kept.any() and len(test):
            yield np.flatnonzero(kept), test


def learnt_strength(ranker: Ranker, asked: AskedPairs, training: TrainingPairs) -> float:
    """How well the order inside problems that were left out is found: a correlation of normal scores, 0 to 0.95.

    Few rows pull it towards 0 (:data:`PSEUDO`).
    """
    together, known, found, count = 0.0, 0.0, 0.0, 0
    for learn, test in _left_out(training, training.alike(asked.split)):
        scores = ranker(training.take(learn), training.take(test))
        problems = np.asarray([training.problems[i] for i in test])
        for problem in sorted(set(problems)):
            at = np.flatnonzero(problems == problem)
            if len(at) > 1:
                x, y = normal_scores(scores[at]), normal_scores(training.speedups[test[at]])
                together += float(x @ y)
                known += float(y @ y)
                found += float(x @ x)
                count += len(at)
    if min(known, found) <= 0:
        return 0.0
    correlation = together / float(np.sqrt(known * found))
    return float(np.clip(correlation * count / (count + PSEUDO), 0.0, _MOST))


def spread(ranker: Ranker, asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Forecasts of a model that orders: shape (n, 8)."""
    strength = learnt_strength(ranker, asked, training)
    scores = ranker(training, asked)
    cumulative = np.cumsum(expected_bins(asked, training))[:-1]
    problems = np.asarray(asked.problems)
    out = np.empty((len(asked), N_BINS))
    for problem in dict.fromkeys(asked.problems):
        at = np.flatnonzero(problems == problem)
        out[at] = to_bins(spread_ranks(normal_scores(scores[at]), cumulative, strength))
    return out
