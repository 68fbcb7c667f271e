"""The baselines by name: an archive in, an ordinary forecast file out."""

from __future__ import annotations

import gzip
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.errors import UsageError, suggestion
from kernel_archive.forecasters import simple
from kernel_archive.forecasters.pairs import NOTHING, load_asked_pairs, load_training_pairs
from kernel_archive.storage import write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.forecasters.pairs import AskedPairs, TrainingPairs
    from kernel_archive.scoring.arrays import Floats


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        name: what users call it.
        title: one line on what it does.
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
        Baseline("uniform", "one eighth for every bin", lambda asked, _, __: simple.uniform(asked)),
        Baseline(
            "prior", "bin frequencies of the problem's training pairs, smoothed",
            lambda asked, training, _: simple.prior(asked, training), learns=True,
        ),
        Baseline("slow", "always slower than 0.71x", lambda asked, _, __: simple.constant(asked, "slow")),
        Baseline("near", "always within half an octave of 1x", lambda asked, _, __: simple.constant(asked, "near")),
        Baseline("fast", "always faster than 1.41x", lambda asked, _, __: simple.constant(asked, "fast")),
        Baseline("nearest", "nearest neighbours on code tokens of both programs", _from("nearest", "nearest"), learns=True),
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
        name: the baseline.
        split: name of the split.
        seed: of everything random in it.
        row_ids: n names.
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
