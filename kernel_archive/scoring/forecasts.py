"""Forecasts as checked arrays of R repeats x n rows, in the order of the split."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernel_archive.bins import N_BINS
from kernel_archive.errors import DataError, Finding
from kernel_archive.scoring.arrays import Bools, Floats, row_sums
from kernel_archive.scoring.rules import normalise, predicted_bins
from kernel_archive.scoring.split import Split

#: Whether the most probable bin is scored, or the stated one.
PredictedBinRule = Literal["argmax", "stated"]
#: A raw sum outside these bounds is a parse failure, not a forecast.
RAW_SUM_BOUNDS: Final = (0.5, 1.5)
#: A board lists an entry that covers less of the rows and repeats, and does not rank it.
MIN_COVERAGE: Final = 0.95


@dataclass(frozen=True, eq=False, kw_only=True)
class Forecasts:
    """One forecaster's forecasts of one split; all arrays have shape (R, n)."""

    name: str  # name of the forecaster
    probabilities: Floats  # shape (R, n, 8), rows sum to 1; uniform where ``parsed`` is false
    parsed: Bools  # there is a distribution
    present: Bools  # the file has a line, with or without a distribution
    deferred: Bools  # the forecaster left this candidate to a measurement
    stated_bins: NDArray[np.int8]  # the bin that the forecaster named, 0 for none
    #: The speedup that the forecaster stated, x; NaN for none. It orders what bins tie.
    expected_speedups: Floats
    raw_sums: Floats  # sum of the raw probabilities; NaN without them
    input_tokens: Floats  # NaN where not stated
    output_tokens: Floats
    latency_s: Floats
    source: str = ""  # file that they come from, as the user named it; empty for arrays
    digest: str = ""  # sha256 of the file's content without its compression; empty for arrays
    #: Prompts that the lines answer, in order; the empty text where some name none.
    prompts: tuple[str, ...] = ("",)
    remarks: tuple[Finding, ...] = ()  # warnings of the reader
    rationales: dict[tuple[int, int], str] = field(default_factory=dict)  # by repeat and row

    @classmethod
    def from_arrays(
        cls,
        split: Split,
        probabilities: ArrayLike,
        *,
        name: str = "forecasts",
        parsed: ArrayLike | None = None,
        deferred: ArrayLike | None = None,
        stated_bins: ArrayLike | None = None,
        expected_speedups: ArrayLike | None = None,
    ) -> Forecasts:
        """Make forecasts from plain arrays, rows in the order of ``split.row_ids``.

        ``probabilities`` have shape (n, 8) or (R, n, 8), raw: finite, at least 0, with a sum above
        0 where ``parsed``. The others have shape (n,) or (R, n): stated bins 1 to 8 and 0 for none,
        expected speedups in x and NaN for none.

        Raises:
            DataError: a shape is wrong, or a value is not what it must be.

        >>> from kernel_archive.scoring import Split
        >>> split = Split.from_arrays(row_ids=["a"], tasks=["t"], speedups=[0.9])
        >>> Forecasts.from_arrays(split, [[0, 0, 0, 1, 0, 0, 0, 0]]).n_repeats
        1
        """
        raw = np.asarray(probabilities, dtype=np.float64)
        raw = raw[None] if raw.ndim == 2 else raw
        shape = (raw.shape[0], len(split))
        if raw.shape != (*shape, N_BINS) or shape[0] == 0:
            expected = f"(repeats, {len(split)}, {N_BINS})"
            raise DataError(f"probabilities have shape {raw.shape}, expected {expected}")
        usable = _shaped(parsed, shape, True, "parsed")
        if not np.isfinite(raw[usable]).all() or (raw[usable] < 0).any():
            raise DataError("probabilities must be finite and at least 0")
        sums = np.full(shape, np.nan)
        sums[usable] = row_sums(raw[usable])
        if (sums <= 0).any():
            raise DataError("the probabilities of a row must not all be 0")
        valid = (sums >= RAW_SUM_BOUNDS[0]) & (sums <= RAW_SUM_BOUNDS[1])  # never of NaN
        bins = _shaped(stated_bins, shape, 0, "stated_bins")
        if ((bins < 0) | (bins > N_BINS)).any():
            raise DataError("stated bins must be 1 to 8, or 0 for none")
        speedups = _shaped(expected_speedups, shape, math.nan, "expected_speedups").astype(float)
        if np.isinf(speedups).any() or (speedups <= 0).any():
            raise DataError("expected speedups must be positive and finite, or NaN for none")
        nothing = np.full(shape, np.nan)
        return cls(
            name=name,
            probabilities=normalise(raw=np.where(valid[..., None], raw, split.uniform)),
            parsed=valid,
            present=np.ones(shape, bool),
            deferred=_shaped(deferred, shape, False, "deferred"),
            stated_bins=bins.astype(np.int8),
            expected_speedups=speedups,
            raw_sums=sums,
            input_tokens=nothing,
            output_tokens=nothing,
            latency_s=nothing,
        )

    @property
    def n_repeats(self) -> int:
        """Number of repeats R."""
        return int(self.parsed.shape[0])

    @property
    def coverage(self) -> float:
        """Share of the row and repeat cells for which there is a line."""
        return float(self.present.mean())

    @property
    def parse_rate(self) -> float | None:
        """Share of the lines with a distribution, of those that don't defer without one."""
        answerable = self.present & (self.parsed | ~self.deferred)
        return float(self.parsed[answerable].mean()) if answerable.any() else None

    def counts(self) -> dict[str, Any]:
        """Count lines by what they hold, for reports."""
        return {
            "n_repeats": self.n_repeats,
            "n_present": int(self.present.sum()),
            "n_parsed": int(self.parsed.sum()),
            "n_deferred": int(self.deferred.sum()),
            "coverage": self.coverage,
            "parse_rate": self.parse_rate,
        }

    def predicted(self, rule: PredictedBinRule = "argmax") -> NDArray[np.int8]:
        """Predict bins, shape (R, n), 0 without a distribution; by ``stated`` those named."""
        best = predicted_bins(probabilities=self.probabilities, stated_bins=self.stated_bins)
        if rule == "stated":
            best = np.where(self.stated_bins > 0, self.stated_bins, best)
        return np.where(self.parsed, best, 0).astype(np.int8)

    def take(self, rows: NDArray[np.intp]) -> Forecasts:
        """Select rows of the split, in this order."""
        arrays: dict[str, Any] = {
            k: v[:, rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, rationales={}, **arrays)


def _shaped(
    values: ArrayLike | None, shape: tuple[int, int], default: float | bool, name: str
) -> NDArray[Any]:
    """Spread values over all repeats, or the default without any."""
    array = np.asarray(default if values is None else values)
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        expected = f"{shape} or ({shape[1]},)"
        raise DataError(f"{name} has shape {array.shape}, expected {expected}") from None
