"""Models that order the programs of a problem, and what their order says in probabilities.

What a model knows of a new problem is first of all which program is faster: how fast the programs
of a task are as a whole differs from search to search, and a split takes them evenly over the bins
by its own definition. So a model gives scores, the scores order the candidates of a task, and
their ranks are spread over the bins that the definition leads to expect. How sure the forecasts
are is learnt by leaving out of training what the split has new: whole problems, or authors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernel_archive.baselines.features import PROGRAM_FEATURES, pair_features, program_features
from kernel_archive.baselines.pairs import TrainingPairs
from kernel_archive.bins import N_BINS, Scheme, assign_bins
from kernel_archive.ids import program_id
from kernel_archive.program_text import language_of
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.asked import AskedPairs, ProgramPairs
from kernel_archive.scoring.controls import normal_scores, spread_ranks, to_bins
from kernel_archive.scoring.split import positions_of

#: Training pairs and pairs to order -> scores, shape (n,), the larger the faster.
Ranker = Callable[[TrainingPairs, ProgramPairs], Floats]

#: Portions in which problems are left out.
FOLDS: Final = 5
#: Rows without any order that pull the strength towards 0.
PSEUDO_ROWS: Final = 20.0
#: The largest strength: no model is certain of a program that was not measured.
MAX_STRENGTH: Final = 0.95
N_TREES: Final = 300
#: Trees beside support vectors: with authors left out, more of them order no better.
FEW_TREES: Final = 100
MIN_ROWS_PER_LEAF: Final = 2
SHARE_OF_FEATURES: Final = 0.35
#: How much a support vector machine may bend to fit a training row.
PENALTY: Final = 2.0
#: What stands for a feature that is not known.
MISSING: Final = -1.0


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
    rows = training.comparable_rows(asked.split)
    counts = bin_counts(training.speedups[rows], asked.scheme) + 1.0
    return np.asarray(counts / counts.sum())


def in_languages(
    asked: AskedPairs, training: TrainingPairs, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the rows in languages that are asked about; all rows if no row is."""
    languages = set(map(language_of, asked.candidates))
    found = [i for i in rows if language_of(training.candidates[i]) in languages]
    return np.array(found, dtype=np.intp) if found else rows


def _left_out(
    asked: AskedPairs, training: TrainingPairs
) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the unit of each pair that is left out as a whole, and the rows that are ordered.

    A unit is what the rows asked about are new in. Where most of them are of problems of training,
    that is the author, and rows of these problems are ordered; else it is the problem. Training
    data of one author leave out problems, of one problem authors.
    """
    rows = in_languages(asked, training, training.comparable_rows(asked.split))
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
    for of_problem in positions_of(training.problems).values():
        rows = of_problem[~np.isnan(predicted[of_problem])]
        if len(rows) > 1:
            scores.append(normal_scores(predicted[rows]))
            truths.append(normal_scores(training.speedups[rows]))
    x, y = (np.concatenate([[], *values]) for values in (scores, truths))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    if scale <= 0:
        return 0.0
    correlation = float(x @ y) / scale
    return float(np.clip(correlation * len(x) / (len(x) + PSEUDO_ROWS), 0.0, MAX_STRENGTH))


def spread_order(ranker: Ranker, asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Forecast with a model's order, spread over the expected bins: shape (n, 8)."""
    strength = learnt_strength(ranker, asked, training)
    scores = ranker(training, asked)
    cumulative = np.cumsum(expected_bins(asked, training))[:-1]
    probabilities = np.empty((len(asked), N_BINS))
    for rows in positions_of(asked.problems).values():
        spread = spread_ranks(normal_scores(scores[rows]), cumulative, strength)
        probabilities[rows] = to_bins(spread)
    return probabilities


def _described(pairs: ProgramPairs, codes: tuple[str, ...]) -> Floats:
    """Describe programs by what they launch, NaN where that is not known, and by their text."""
    unknown = np.full(len(next(iter(pairs.launch_features.values()), ())), np.nan)
    keys = zip(map(program_id, codes), pairs.problems, pairs.gpus, strict=True)
    features = [pairs.launch_features.get(key, unknown) for key in keys]
    return np.hstack([features, program_features(codes)])


def _with_launches(pairs: ProgramPairs) -> Floats:
    """Describe candidates relative to the medians of their problem, and launches as they are."""
    values = _described(pairs, pairs.candidates)
    relative = values.copy()
    for rows in positions_of(pairs.problems).values():
        has_values = ~np.isnan(values[rows]).all(axis=0)  # a median of nothing is a warning
        medians = np.nanmedian(np.where(has_values, values[rows], 0.0), axis=0)
        relative[rows] -= medians
    return np.hstack([relative, values[:, : -len(PROGRAM_FEATURES)]])


def _launch_difference(pairs: ProgramPairs) -> Floats:
    """Describe how candidates differ from their anchors."""
    return _described(pairs, pairs.candidates) - _described(pairs, pairs.anchors)


def _forecast_with_model(
    describe: Callable[[ProgramPairs], Floats],
    new_model: Callable[[], Any],
    asked: AskedPairs,
    training: TrainingPairs,
) -> Floats:
    """Forecast with a model on features of pairs: shape (n, 8).

    It learns speedups relative to the mean of their problem, from pairs made as the split's rows
    are, natural ones alone where there are any. The pairs learnt from and those asked about are
    described together, so that features relative to a problem mean the same.
    """

    def ranker(pairs: TrainingPairs, wanted: ProgramPairs) -> Floats:
        pairs = pairs.take(pairs.comparable_rows(asked.split))
        features = np.nan_to_num(describe(pairs.joined(wanted)), nan=MISSING)
        n, targets = len(pairs), centred(np.log2(pairs.speedups), pairs.problems)
        model = new_model().fit(features[:n], targets)
        return np.asarray(np.round(model.predict(features[n:]), 6))

    return spread_order(ranker, asked, training)


def _trees(n_trees: int, seed: int) -> Any:
    """Make extra trees that are still to be fitted."""
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(
        n_trees,
        min_samples_leaf=MIN_ROWS_PER_LEAF,
        max_features=SHARE_OF_FEATURES,
        random_state=seed,
    )


def trees(asked: AskedPairs, training: TrainingPairs, seed: int = 0) -> Floats:
    """Forecast with trees on static features of both programs: shape (n, 8)."""
    return _forecast_with_model(pair_features, partial(_trees, N_TREES, seed), asked, training)


def dry_run(asked: AskedPairs, training: TrainingPairs, seed: int = 0) -> Floats:
    """Forecast with trees and support vectors on what the candidates launch and on their text.

    Shape (n, 8).
    """

    def new_model() -> Any:
        from sklearn.ensemble import VotingRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVR

        vectors = make_pipeline(StandardScaler(), SVR(C=PENALTY))
        return VotingRegressor([("trees", _trees(FEW_TREES, seed)), ("vectors", vectors)])

    describe = _launch_difference if asked.split.kind == "close" else _with_launches
    rows = in_languages(asked, training, np.arange(len(training)))  # others were not run dry
    return _forecast_with_model(describe, new_model, asked, training.take(rows))
