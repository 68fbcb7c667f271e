"""The baselines by name: an archive in, an ordinary forecast file out. Those that learn nothing stand here themselves."""

from __future__ import annotations

import gzip
import importlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS, SCHEMES, assign_bins
from kernel_archive.errors import UsageError, suggestion
from kernel_archive.forecasters.pairs import NOTHING, load_asked_pairs, load_training_pairs, recorded_pairs
from kernel_archive.scoring.controls import CUES, by_cue
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.splits import REPLAY
from kernel_archive.storage import write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from kernel_archive.archive.open import Archive
    from kernel_archive.bins import Scheme
    from kernel_archive.forecasters.pairs import AskedPairs, TrainingPairs
    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.worlds import Worlds

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


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        forecast: from the rows asked for, the training pairs and a seed to probabilities of shape (n, 8).
        learns: whether it needs training pairs; one that does not gets none.
    """

    name: str
    title: str
    forecast: Callable[[AskedPairs, TrainingPairs, int], Floats]
    learns: bool = False


def _from(module: str, name: str) -> Callable[[AskedPairs, TrainingPairs, int], Floats]:
    """A forecaster of a module of this room that is imported when it forecasts: what it needs is slow to import."""

    def forecast(asked: AskedPairs, training: TrainingPairs, seed: int) -> Floats:
        found = getattr(importlib.import_module(f"kernel_archive.forecasters.{module}"), name)
        made: Floats = found(asked, training, seed=seed) if module == "boosted" else found(asked, training)
        return made

    return forecast


#: Name -> baseline. A further one is one entry more.
BASELINES: Final[dict[str, Baseline]] = {
    b.name: b
    for b in (
        Baseline("uniform", "one eighth for every bin", lambda asked, _, __: uniform(asked)),
        Baseline(
            "prior", "bin frequencies of the problem's training pairs, smoothed",
            lambda asked, training, _: prior(asked, training), learns=True,
        ),
        Baseline("slow", "always slower than 0.71x", lambda asked, _, __: constant(asked, "slow")),
        Baseline("near", "always within half an octave of 1x", lambda asked, _, __: constant(asked, "near")),
        Baseline("fast", "always faster than 1.41x", lambda asked, _, __: constant(asked, "fast")),
        Baseline("nearest", "nearest neighbours on code tokens of both programs", _from("text", "nearest"), learns=True),
        Baseline(
            "boosted", "gradient-boosted ordinal model on static features of both programs and GPU facts", _from("boosted", "boosted"),
            learns=True,
        ),
        Baseline(
            "boosted-order", "its order alone, spread over even bins as surely as it orders problems left out",
            _from("boosted", "boosted_order"),
            learns=True,
        ),
        Baseline("text", "ridge regression on hashed token pairs of the text, spread in the same way", _from("text", "text"), learns=True),
    )
}  # fmt: skip


class BaselineForecasts(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of one baseline.

    Attributes:
        probabilities: shape (n, 8), rows sum to 1.
        n_training: pairs that it learnt from; 0 for one that does not learn.
    """

    name: str
    split: str
    seed: int
    row_ids: tuple[str, ...]
    probabilities: Floats
    n_training: int


def make_baseline(name: str, archive: Archive, split: str = "eval", *, seed: int = 0) -> BaselineForecasts:
    """Forecast a split of an archive.

    Args:
        name: one of :data:`BASELINES`.
        archive: an opened archive.
        split: name of the split, for example ``eval`` or ``discovery``.
        seed: of everything random; same archive and seed give the same forecasts.

    Raises:
        UsageError: unknown baseline, or the archive has no such split.
        DataError: the baseline learns and the archive has nothing to learn from.
        MissingExtraError: the baseline needs scikit-learn.
    """
    chosen = BASELINES.get(name)
    if chosen is None:
        raise UsageError(f"unknown baseline {name!r}. {suggestion(name, BASELINES)}")
    asked = load_asked_pairs(archive, split)
    training = load_training_pairs(archive) if chosen.learns else NOTHING
    return BaselineForecasts(
        name=name,
        split=asked.split.name,
        seed=seed,
        row_ids=asked.row_ids,
        probabilities=chosen.forecast(asked, training, seed),
        n_training=len(training),
    )


def forecast_lines(made: BaselineForecasts) -> Iterable[bytes]:
    """The lines of a forecast file, in the order of the split; probabilities to six decimals."""
    for row_id, row in zip(made.row_ids, made.probabilities, strict=True):
        rounded = [round(float(p), 6) for p in row]
        yield msgspec.json.encode({"row_id": row_id, "repeat": 0, "probabilities": rounded}) + b"\n"


def write_forecasts(made: BaselineForecasts, path: Path, *, force: bool = False) -> None:
    """Write a forecast file, whole or not at all: plain, or compressed by the suffix ``.zst`` or ``.gz``.

    Raises:
        TargetExistsError: something is there, and ``force`` is not given.
        UsageError: there is no such directory.
    """
    import pyarrow as pa

    data = b"".join(forecast_lines(made))
    if path.suffix == ".zst":
        data = pa.Codec("zstd", compression_level=9).compress(data, asbytes=True)
    elif path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    write_new(path, data, force=force)


def forecasts_by_name(name: str, archive: Archive, worlds: Worlds, *, seed: int = 0) -> Forecasts:
    """Forecasts of the rows of recorded worlds.

    A baseline learns from the archive's training pairs alone. A cue is spread over the bins as the controls of a score are:
    its direction and strength come from the other problems, with their labels.

    Raises:
        UsageError: there is no baseline and no cue of that name.
    """
    asked = recorded_pairs(archive, worlds) if worlds.split == REPLAY.name else load_asked_pairs(archive, worlds.split)
    at = {row: i for i, row in enumerate(asked.row_ids)}
    asked = asked.take([at[row] for row in worlds.row_ids])
    target = worlds.target()
    if name in CUES:
        values = np.array([CUES[name][1](code) for code in asked.candidates])
        counts = np.bincount(target.bins, minlength=N_BINS + 1)[1:]
        made = by_cue(values, target.bins, target.task_rows, np.cumsum(counts)[:-1] / len(target))
    elif name in BASELINES:
        training = load_training_pairs(archive) if BASELINES[name].learns else NOTHING
        made = BASELINES[name].forecast(asked, training, seed)
    else:
        raise UsageError(f"no forecaster {name!r} to replay. {suggestion(name, [*BASELINES, *CUES])}")
    return Forecasts.from_arrays(target, made, name=name)
