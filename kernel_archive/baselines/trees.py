"""Models that order the programs of a problem: on static features, or on dry runs as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from kernel_archive.baselines.features import pair_features, program_features
from kernel_archive.baselines.launches import launch_matrix
from kernel_archive.baselines.order import centred, in_languages, spread
from kernel_archive.baselines.pairs import AskedPairs, ProgramPairs, TrainingPairs
from kernel_archive.errors import MissingExtraError
from kernel_archive.scoring.arrays import Floats

N_TREES: Final = 300
#: Trees beside support vectors: with authors left out, more of them order no better.
FEW_TREES: Final = 100
MIN_ROWS_PER_LEAF: Final = 2
SHARE_OF_FEATURES: Final = 0.35
#: How much a support vector machine may bend to fit a training row.
PENALTY: Final = 2.0
#: What stands for a feature that is not known.
MISSING: Final = -1.0


def _relative(values: Floats, problems: tuple[str, ...]) -> Floats:
    """Subtract from each column the median of its problem's rows: no label is needed for that."""
    names = np.asarray(problems)
    relative = values.copy()
    for problem in dict.fromkeys(problems):
        rows = names == problem
        followed = rows & ~np.isnan(values).all(axis=1)
        if followed.any():
            has_values = ~np.isnan(values[followed]).all(axis=0)  # a median of nothing is a warning
            medians = np.nanmedian(np.where(has_values, values[followed], 0.0), axis=0)
            relative[rows] = values[rows] - medians
    return relative


def _with_launches(pairs: ProgramPairs) -> Floats:
    """Describe candidates by text and by launches, absolute and relative to their problem."""
    launches = launch_matrix(pairs.launches, pairs.candidates, pairs.problems)
    text = np.array([program_features(code) for code in pairs.candidates])
    return np.hstack(
        [_relative(launches, pairs.problems), _relative(text, pairs.problems), launches]
    )


def _launch_difference(pairs: ProgramPairs) -> Floats:
    """Describe how text and launches of the candidates differ from those of their anchors."""
    sides = []
    for codes in (pairs.anchors, pairs.candidates):
        launches = launch_matrix(pairs.launches, codes, pairs.problems)
        sides.append(np.hstack([launches, [program_features(code) for code in codes]]))
    return np.asarray(sides[1] - sides[0])


def _order(
    describe: Callable[[ProgramPairs], Floats],
    new_model: Callable[[], Any],
    asked: AskedPairs,
    training: TrainingPairs,
) -> Floats:
    """Forecast with a model on features of pairs: shape (n, 8).

    It learns speedups relative to the mean of their problem, from pairs made as the split's rows
    are, natural ones alone where there are any. The pairs learnt from and those asked about are
    described together, so that features relative to a problem mean the same.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """

    def ranker(pairs: TrainingPairs, wanted: ProgramPairs) -> Floats:
        pairs = pairs.take(pairs.alike(asked.split))
        features = np.nan_to_num(describe(pairs.joined(wanted)), nan=MISSING)
        n, targets = len(pairs), centred(np.log2(pairs.speedups), pairs.problems)
        try:
            model = new_model()
        except ImportError as error:
            raise MissingExtraError(
                f"this baseline needs scikit-learn ({error}). Install it with: "
                "pip install 'kernel-archive[learn]'"
            ) from None
        return np.asarray(np.round(model.fit(features[:n], targets).predict(features[n:]), 6))

    return spread(ranker, asked, training)


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
    return _order(pair_features, partial(_trees, N_TREES, seed), asked, training)


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
    spoken = in_languages(asked, training, np.arange(len(training)))
    return _order(describe, new_model, asked, training.take(spoken))  # others were not run dry
