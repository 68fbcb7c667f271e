"""A gradient-boosted ordinal model on static features, as it is and as an order alone.

The ordinal model is one binary classifier for "is the speedup above this edge?", with the edge as a feature on which
the answer may only fall (Frank and Hall's decomposition with shared trees). Every pair enters once per inner bin
edge; differences of the answers at neighbouring edges are the bins' probabilities, never negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.bins import SCHEMES, assign_bins
from kernel_archive.errors import MissingExtraError
from kernel_archive.forecasters.features import pair_features
from kernel_archive.forecasters.spreading import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kernel_archive.bins import Scheme
    from kernel_archive.forecasters.pairs import AskedPairs, ProgramPairs, TrainingPairs
    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.splits import Split

# Chosen with benchmarks/tune.py: CRPS of the 105 naturally written training programs, every bin weighing the same, authors left
# out and problems left out (even bins: 0.1875). With 150 rounds and pairs as they come 0.190 and 0.215, with these 0.192 and 0.194;
# 4 to 8 leaves, 20 to 60 pairs per leaf and larger shares of natural pairs were no better. No evaluation split was read.
SETTINGS: Final[dict[str, Any]] = {
    "max_iter": 60,
    "learning_rate": 0.06,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
#: Share of the weight that goes to pairs made as the split's rows are (anchor = reference, or = parent).
NATIVE_SHARE: Final = 0.5
#: Share of the weight that goes to pairs with a naturally written candidate; None: no more than they come with.
NATURAL_SHARE: Final[float | None] = 0.3
#: More training pairs than this are sampled, with the seed.
MAX_PAIRS: Final = 20_000
#: Least probability of a bin.
FLOOR: Final = 1e-3


def log_edges(scheme: Scheme) -> Floats:
    """The seven inner edges of a scheme, in octaves."""
    return np.asarray(np.log2(np.asarray(SCHEMES[scheme].edges)))


def _useful(features: Floats) -> NDArray[np.bool_]:
    """Columns with at least two different values."""
    with np.errstate(invalid="ignore"):
        low = np.min(np.where(np.isnan(features), np.inf, features), axis=0)
        high = np.max(np.where(np.isnan(features), -np.inf, features), axis=0)
    return np.asarray(high > low)


def pair_weights(
    training: TrainingPairs, split: Split, scheme: Scheme, *, natural_share: float | None = NATURAL_SHARE
) -> Floats:
    """Weight of every pair, shape (n,): like the split's rows by its definition, half of it on pairs made as those rows are.

    Args:
        training: n pairs.
        split: whose rows are asked.
        scheme: bin scheme of its labels.
        natural_share: of the weight, how much goes to pairs with a naturally written candidate; None: as it comes.
    """
    bins = assign_bins(training.speedups, scheme)
    native = training.native(split)
    weights = np.empty(len(training))
    for part, share in ((native, NATIVE_SHARE), (~native, 1.0 - NATIVE_SHARE)):
        if part.any():
            inside = design_weights(tuple(np.asarray(training.problems)[part]), bins[part], split)
            weights[part] = inside * (1.0 if native.all() else share * len(training) / part.sum())
    natural = training.natural
    if natural_share is not None and natural.any() and not natural.all():
        for part, share in ((natural, natural_share), (~natural, 1.0 - natural_share)):
            weights[part] *= share * len(training) / weights[part].sum()
    return weights


def _with_edges(features: Floats, edges: Floats) -> Floats:
    return np.column_stack([np.repeat(features, len(edges), axis=0), np.tile(edges, len(features))])


def fit_above(
    known: Floats, logs: Floats, weights: Floats, edges: Floats, seed: int, settings: Mapping[str, Any] = SETTINGS
) -> Callable[[Floats], Floats]:
    """Fit on (known, logs): from features to the probability of being above each edge, shape (n, 7), falling along them.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped] # scikit-learn brings it
    except ImportError as error:
        raise MissingExtraError(
            f"the boosted baselines need scikit-learn ({error}). Install it with: pip install 'kernel-archive[learn]'"
        ) from None

    columns = _useful(known)
    known = known[:, columns]
    answers = np.repeat(logs, len(edges)) > np.tile(edges, len(logs))
    if answers.all() or not answers.any():
        # All speedups are in one end bin: nothing to learn but that.
        return lambda asked: np.full((len(asked), len(edges)), float(answers[0]))
    falls = np.zeros(known.shape[1] + 1, dtype=int)
    falls[-1] = -1
    model = HistGradientBoostingClassifier(**settings, monotonic_cst=falls, random_state=seed)
    # One thread: parallel sums would add in another order on another machine.
    with threadpool_limits(limits=1):
        model.fit(_with_edges(known, edges), answers, sample_weight=np.repeat(weights, len(edges)))

    def predict(asked: Floats) -> Floats:
        with threadpool_limits(limits=1):
            above = model.predict_proba(_with_edges(asked[:, columns], edges))[:, 1].reshape(len(asked), len(edges))
        return np.asarray(np.minimum.accumulate(above, axis=1))

    return predict


def bins_of(above: Floats) -> Floats:
    """Probabilities of the eight bins from those of being above the seven edges: shape (n, 8)."""
    bounds = np.column_stack([np.ones(len(above)), above, np.zeros(len(above))])
    masses = np.maximum(-np.diff(bounds, axis=1), FLOOR)
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


def _sampled(training: TrainingPairs, split: Split, seed: int) -> TrainingPairs:
    if len(training) <= MAX_PAIRS:
        return training
    native = training.native(split)
    first = np.random.default_rng(seed).permutation(len(training))
    order = np.concatenate([first[native[first]], first[~native[first]]])[:MAX_PAIRS]
    return training.take(np.sort(order))


def design_weights(problems: tuple[str, ...], bins: NDArray[np.int8], split: Split) -> Floats:
    """Weights that make training rows look like the split by its own definition, mean 1.

    The evaluation split takes the same number of kernels from every problem and bin, which searches do not give: they
    prefer what runs fast. So every problem and bin weighs the same; discovery pairs are taken as they come.
    """
    weights = np.ones(len(bins))
    if split.kind == "eval":
        names = np.asarray(problems)
        for problem in dict.fromkeys(problems):
            for b in np.unique(bins[names == problem]):
                cell = (names == problem) & (bins == b)
                # Two pseudo-rows: one lucky row of an empty cell does not outweigh a full one.
                weights[cell] = 1.0 / (cell.sum() + 2.0)
    return np.asarray(weights / weights.mean())


def boosted_model(
    training: TrainingPairs, split: Split, scheme: Scheme, *, seed: int = 0
) -> Callable[[ProgramPairs], Floats]:
    """Learn once, forecast often: from pairs made as the rows of a split are to probabilities, shape (n, 8).

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    training = _sampled(training, split, seed)
    known = tuple(sorted(set(training.problems)))
    weights = pair_weights(training, split, scheme)
    above = fit_above(pair_features(training, known), training.log_speedups, weights, log_edges(scheme), seed)
    return lambda asked: bins_of(above(pair_features(asked, known)))


def boosted(asked: AskedPairs, training: TrainingPairs, *, seed: int = 0) -> Floats:
    """Forecasts of the boosted ordinal model: shape (n, 8).

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    return boosted_model(training, asked.split, asked.scheme, seed=seed)(asked)


def boosted_order(asked: AskedPairs, training: TrainingPairs, *, seed: int = 0) -> Floats:
    """The order of the same model, spread over the bins as surely as it orders problems left out: shape (n, 8).

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    training = _sampled(training, asked.split, seed)
    edges = log_edges(asked.scheme)

    def ranker(known: TrainingPairs, wanted: ProgramPairs) -> Floats:
        # Names of problems are no features here: those asked for may be new.
        weights = pair_weights(known, asked.split, asked.scheme)
        above = fit_above(pair_features(known), known.log_speedups, weights, edges, seed)(pair_features(wanted))
        return np.asarray(np.round(above.sum(axis=1), 6))

    return spread(ranker, asked, training)
