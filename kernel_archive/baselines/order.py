"""From an order to probabilities.

What a model knows of a new problem is first of all which program is faster: how fast the programs
of a task are as a whole differs from search to search, and a split takes them evenly over the bins
by its own definition. So a model gives scores, the scores order the candidates of a task, and
their ranks are spread over the bins that the definition leads to expect. How sure the forecasts
are is learnt by leaving out of training what the split has new: whole problems, or authors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernel_archive.baselines.pairs import AskedPairs, ProgramPairs, TrainingPairs
from kernel_archive.bins import N_BINS, Scheme, assign_bins
from kernel_archive.program_text import language_of
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.controls import normal_scores, spread_ranks, to_bins

#: Training pairs and pairs to order -> scores, shape (n,), the larger the faster.
Ranker = Callable[[TrainingPairs, ProgramPairs], Floats]

#: Portions in which problems are left out.
FOLDS: Final = 5
#: Rows without any order that pull the strength towards 0.
PSEUDO_ROWS: Final = 20.0
#: The largest strength: no model is certain of a program that was not measured.
MAX_STRENGTH: Final = 0.95


def bin_counts(speedups: Floats, scheme: Scheme) -> Floats:
    """Count speedups per bin: shape (8,)."""
    counts = np.bincount(assign_bins(speedups, scheme), minlength=N_BINS + 1)[1:]
    return counts.astype(np.float64)


def centred(values: Floats, names: tuple[str, ...]) -> Floats:
    """Subtract from each value the mean of the rows of its name: shape (n,)."""
    _, groups = np.unique(np.asarray(names), return_inverse=True)
    means = np.bincount(groups, weights=values) / np.bincount(groups)
    return np.asarray(values - means[groups])


def expected_bins(asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Return bin frequencies that are known without labels: shape (8,).

    An evaluation split is cut evenly over the bins. Of discovery pairs the frequencies are those
    of training pairs made alike, natural ones alone where there are any.
    """
    if asked.split.kind == "eval":
        return np.full(N_BINS, 1.0 / N_BINS)
    counts = bin_counts(training.speedups[training.alike(asked.split)], asked.scheme) + 1.0
    return np.asarray(counts / counts.sum())


def in_languages(
    asked: AskedPairs, training: TrainingPairs, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the rows in languages that are asked about; all of them where there are none."""
    languages = set(map(language_of, asked.candidates))
    spoken = [i for i in rows if language_of(training.candidates[i]) in languages]
    return np.array(spoken, dtype=np.intp) if spoken else rows


def _left_out(
    asked: AskedPairs, training: TrainingPairs
) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the unit of each pair that is left out as a whole, and the rows that are ordered.

    Where most rows asked about are of problems of training, what is new are authors, and rows of
    these problems are ordered. Else problems are new. Where one is all there is, the other one.
    """
    rows = in_languages(asked, training, training.alike(asked.split))
    problems, authors = np.asarray(training.problems), np.asarray(training.authors)
    known = np.isin(asked.problems, problems[rows])
    if 2 * known.sum() <= len(known):
        return (problems if len(set(problems[rows])) > 1 else authors), rows
    same = rows[np.isin(problems[rows], asked.problems)]
    return (authors, same) if len(set(authors[same])) > 1 else (problems, rows)


def _folds(
    training: TrainingPairs, units: NDArray[np.str_], rows: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Leave units out in turn: rows to learn from, rows to order."""
    names = sorted(set(units[rows]))
    texts = list(zip(training.anchors, training.candidates, strict=True))
    for start in range(min(FOLDS, len(names))):
        inside = np.isin(units, names[start::FOLDS])
        left_out = rows[inside[rows]]
        programs = {texts[i][1] for i in np.flatnonzero(inside)}
        learnt = [i for i in np.flatnonzero(~inside) if programs.isdisjoint(texts[i])]
        if learnt and len(left_out):
            yield np.array(learnt), left_out


def learnt_strength(ranker: Ranker, asked: AskedPairs, training: TrainingPairs) -> float:
    """Measure how well what is left out is ordered: a correlation of normal scores, 0 to 0.95.

    Few rows pull it towards 0 (:data:`PSEUDO_ROWS`).
    """
    scores: list[Floats] = []
    truths: list[Floats] = []
    predicted = np.full(len(training), np.nan)
    for learn, test in _folds(training, *_left_out(asked, training)):
        predicted[test] = ranker(training.take(learn), training.take(test))
    problems, ordered = np.asarray(training.problems), ~np.isnan(predicted)
    for problem in sorted(set(problems[ordered])):
        rows = np.flatnonzero(ordered & (problems == problem))
        if len(rows) > 1:
            scores.append(normal_scores(predicted[rows]))
            truths.append(normal_scores(training.speedups[rows]))
    if not scores:
        return 0.0
    x, y = np.concatenate(scores), np.concatenate(truths)
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if scale <= 0:
        return 0.0
    correlation = float(x @ y) / scale
    return float(np.clip(correlation * len(x) / (len(x) + PSEUDO_ROWS), 0.0, MAX_STRENGTH))


def spread(ranker: Ranker, asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Forecast with a model that orders: shape (n, 8)."""
    strength = learnt_strength(ranker, asked, training)
    scores = ranker(training, asked)
    cumulative = np.cumsum(expected_bins(asked, training))[:-1]
    problems = np.asarray(asked.problems)
    masses = np.empty((len(asked), N_BINS))
    for problem in dict.fromkeys(asked.problems):
        rows = np.flatnonzero(problems == problem)
        masses[rows] = to_bins(spread_ranks(normal_scores(scores[rows]), cumulative, strength))
    return masses
