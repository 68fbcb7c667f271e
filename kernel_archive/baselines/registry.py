"""The baselines by name: an archive in, an ordinary forecast file out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.baselines.launches import load_launch_features
from kernel_archive.baselines.pairs import TrainingPairs, load_training_pairs
from kernel_archive.baselines.trees import bin_counts, dry_run, trees
from kernel_archive.bins import N_BINS
from kernel_archive.errors import DataError, MissingExtraError, UsageError, install_of, suggestion
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.asked import AskedPairs, load_asked_pairs
from kernel_archive.scoring.split import positions_of
from kernel_archive.scoring.template import stated_forecast
from kernel_archive.splits import SplitSpec

#: Pseudo-observations of the frequencies over all problems that smooth those of one problem.
PRIOR_WEIGHT: Final = 4.0


def uniform(asked: AskedPairs, _: TrainingPairs, __: int = 0) -> Floats:
    """Forecast one eighth for every bin: shape (n, 8)."""
    return np.full((len(asked), N_BINS), 1.0 / N_BINS)


def prior(asked: AskedPairs, training: TrainingPairs, _: int = 0) -> Floats:
    """Forecast the smoothed bin frequencies of the problem's training pairs: shape (n, 8).

    Only pairs made as the split's rows are (``seed`` for eval, ``parent_edit`` for discovery)
    count. The frequencies over all problems, with one pseudo-observation per bin, smooth those of
    each problem; a problem without training pairs has the frequencies of all.
    """
    same_type = training.same_pair_type(asked.split)
    overall = bin_counts(training.speedups[same_type], asked.scheme) + 1.0
    overall /= overall.sum()
    problems = np.asarray(training.problems)
    probabilities = np.empty((len(asked), N_BINS))
    for problem, rows in positions_of(asked.problems).items():
        counts = bin_counts(training.speedups[same_type & (problems == problem)], asked.scheme)
        smoothed = counts + PRIOR_WEIGHT * overall
        probabilities[rows] = smoothed / smoothed.sum()
    return probabilities


@dataclass(frozen=True)
class Baseline:
    """One baseline."""

    title: str
    #: From the rows asked for, training pairs and a seed to probabilities, (n, 8).
    forecast: Callable[[AskedPairs, TrainingPairs, int], Floats]
    learns: bool = True  # whether it needs training pairs; one that does not gets none
    reads_launches: bool = False  # whether it needs the archive's dry runs
    fits_trees: bool = False  # whether it needs scikit-learn


#: Name -> baseline. A further one is one entry more.
BASELINES: Final[dict[str, Baseline]] = {
    "uniform": Baseline("one eighth for every bin", uniform, learns=False),
    "prior": Baseline("bin frequencies of the problem's training pairs, smoothed", prior),
    "trees": Baseline(
        "extra trees on static features of both programs, their order spread over the bins",
        trees,
        fits_trees=True,
    ),
    "dry-run": Baseline(
        "trees and support vectors on what a dry run of the host code launches, and on the text",
        dry_run,
        reads_launches=True,
        fits_trees=True,
    ),
}


class BaselineForecasts(NamedTuple):
    """Forecasts of one baseline."""

    split: SplitSpec
    row_ids: tuple[str, ...]
    probabilities: Floats  # shape (n, 8), rows sum to 1
    n_training: int  # pairs that it learnt from; 0 for one that does not learn


def make_baseline(
    name: str, archive: Archive, split: str = "eval", *, seed: int = 0
) -> BaselineForecasts:
    """Forecast a split of an archive; the same archive and seed give the same forecasts.

    Raises:
        UsageError: unknown baseline, or the archive has no such split, or it asks about outcomes.
        DataError: the archive lacks what the baseline learns from.
        MissingExtraError: the baseline needs scikit-learn.
    """
    baseline = BASELINES.get(name)
    if baseline is None:
        raise UsageError(f"unknown baseline {name!r}. {suggestion(name, BASELINES)}")
    if baseline.fits_trees:
        try:
            import sklearn  # noqa: F401 - tried before the archive is read
        except ImportError as error:
            fix = f"Install it with: {install_of('learn')}"
            needed = f"the baseline {name} needs scikit-learn ({error})"
            raise MissingExtraError(f"{needed}. {fix}") from None
    asked = load_asked_pairs(archive, split)
    if asked.split.asks_outcome:
        raise UsageError(
            f"{name} forecasts speeds, and {split} asks about outcomes. Score other forecasts of "
            "it: the base rate is a control beside every score"
        )
    training = TrainingPairs()
    if baseline.learns:
        training = load_training_pairs(archive).of_builders(asked.split)
    if baseline.reads_launches:
        pairs = (asked, training)
        codes = {c for each in pairs for side in (each.anchors, each.candidates) for c in side}
        features = load_launch_features(archive, codes, (*asked.gpus, *training.gpus))
        if not features:
            raise DataError(
                f"the archive in {archive.path} has no dry runs. Make them with: "
                "kernel-measure dry-run"
            )
        asked = replace(asked, launch_features=features)
        training = replace(training, launch_features=features)
    forecast = baseline.forecast(asked, training, seed) if len(asked) else np.zeros((0, N_BINS))
    return BaselineForecasts(asked.split, asked.row_ids, forecast, n_training=len(training))


def forecast_lines(forecasts: BaselineForecasts) -> Iterable[bytes]:
    """Write the lines of a forecast file in the split's order; probabilities to six decimals."""
    for row_id, row in zip(forecasts.row_ids, forecasts.probabilities, strict=True):
        line = {"row_id": row_id, "repeat": 0, **stated_forecast(forecasts.split, row)}
        yield msgspec.json.encode(line) + b"\n"
