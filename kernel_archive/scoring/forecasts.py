"""Forecasts in normal form: arrays of repeats x rows, in the order of the target's rows, with masks."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import DataError, Finding
from kernel_archive.scoring import rowwise
from kernel_archive.scoring.arrays import row_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kernel_archive.scoring.target import Target

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

#: A raw sum outside these bounds is a parse failure, not a forecast (docs/metrics.md, "From a forecast to numbers").
RAW_SUM_BOUNDS: Final = (0.5, 1.5)


@dataclass(frozen=True, eq=False, kw_only=True)
class Forecasts:
    """One forecaster's forecasts of one split.

    All arrays have shape (R, n): R repeats, n rows in the order of the target.

    Attributes:
        name: name of the forecaster.
        probabilities: shape (R, n, 8), rows sum to 1; uniform where ``parsed`` is false.
        parsed: there is a distribution.
        present: the file has a line, with or without a distribution.
        deferred: the forecaster left this candidate to a measurement.
        stated: int8, the bin that the forecaster named, 0 where it named none.
        expected_speedups: the speedup that the forecaster stated, x; NaN where it stated none. It orders what bins tie.
        raw_sums: sum of the raw probabilities; NaN where there are none.
        input_tokens: tokens read for this forecast; NaN where not stated.
        output_tokens: tokens written.
        latency_s: seconds.
        source: file that they come from, as the user named it; empty for arrays.
        digest: sha256 of that file's content without its compression; of the arrays where there is no file.
        remarks: what the reader has to say about the file (warnings; a fault would have been refused).
        rationales: (repeat, row) -> text, when the reader was asked to keep them.
    """

    name: str
    probabilities: Floats
    parsed: Bools
    present: Bools
    deferred: Bools
    stated: NDArray[np.int8]
    expected_speedups: Floats
    raw_sums: Floats
    input_tokens: Floats
    output_tokens: Floats
    latency_s: Floats
    source: str = ""
    digest: str = ""
    remarks: tuple[Finding, ...] = ()
    rationales: dict[tuple[int, int], str] | None = None

    @classmethod
    def from_arrays(
        cls,
        target: Target,
        probabilities: ArrayLike,
        *,
        name: str = "forecasts",
        parsed: ArrayLike | None = None,
        deferred: ArrayLike | None = None,
        stated: ArrayLike | None = None,
        expected_speedups: ArrayLike | None = None,
        raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
    ) -> Forecasts:
        """Forecasts from plain arrays, rows in the order of ``target.row_ids``.

        Args:
            target: what they are forecasts of.
            probabilities: shape (n, 8) or (R, n, 8), raw: finite, at least 0, with a sum above 0 where ``parsed``.
            name: name of the forecaster.
            parsed: shape (n,) or (R, n); all rows when not given.
            deferred: likewise; none when not given.
            stated: likewise, bins 1 to 8 and 0 for none.
            expected_speedups: likewise, positive, in x, and NaN for none.
            raw_sum_bounds: a raw sum outside is a parse failure.

        Raises:
            DataError: a shape is wrong, or a probability is not finite, negative, or all are 0.

        >>> from kernel_archive.scoring import Target
        >>> t = Target.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
        >>> Forecasts.from_arrays(t, [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]]).n_repeats
        1
        """
        raw = np.asarray(probabilities, dtype=np.float64)
        if raw.ndim == 2:
            raw = raw[None]
        shape = (raw.shape[0], len(target))
        if raw.shape != (*shape, N_BINS) or shape[0] == 0:
            raise DataError(f"probabilities have shape {raw.shape}, expected (repeats, {len(target)}, {N_BINS})")
        use = _shaped(parsed, shape, True, "parsed")
        given = raw[use]
        if not np.isfinite(given).all() or (given < 0).any():
            raise DataError("probabilities must be finite and at least 0")
        sums = np.full(shape, np.nan)
        sums[use] = row_sums(given)
        if (sums[use] <= 0).any():
            raise DataError("the probabilities of a row must not all be 0")
        low, high = raw_sum_bounds
        with np.errstate(invalid="ignore"):
            kept = use & (sums >= low) & (sums <= high)
        normal = np.full(raw.shape, 1.0 / N_BINS)
        normal[kept] = rowwise.normalise(raw=raw[kept])
        bins = np.asarray(_shaped(stated, shape, 0, "stated"))
        if ((bins < 0) | (bins > N_BINS)).any():
            raise DataError("stated bins must be 1 to 8, or 0 for none")
        nothing = np.full(shape, np.nan)
        speedups = np.asarray(_shaped(expected_speedups, shape, math.nan, "expected_speedups"), dtype=np.float64)
        if np.isinf(speedups).any() or (speedups <= 0).any():
            raise DataError("expected speedups must be positive and finite, or NaN for none")
        return cls(
            name=name,
            probabilities=normal,
            parsed=kept,
            present=np.ones(shape, bool),
            deferred=_shaped(deferred, shape, False, "deferred"),
            stated=bins.astype(np.int8),
            expected_speedups=speedups,
            raw_sums=sums,
            input_tokens=nothing,
            output_tokens=nothing,
            latency_s=nothing,
            digest=_digest(np.where(kept[..., None], raw, -1.0), *([] if np.isnan(speedups).all() else [speedups])),
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
        """Share of the lines that give a distribution, of those that don't defer without one; ``None`` without any."""
        asked = self.present & (self.parsed | ~self.deferred)
        return float(self.parsed[asked].mean()) if asked.any() else None

    def predicted(self, rule: str = "argmax") -> NDArray[np.int8]:
        """Predicted bins, shape (R, n), 0 where there is no distribution.

        Args:
            rule: ``argmax`` (docs/metrics.md), or ``stated``: the bin that the forecaster named, where it named one.
        """
        best = rowwise.predicted_bins(probabilities=self.probabilities, stated=self.stated)
        if rule == "stated":
            best = np.where(self.stated > 0, self.stated, best)
        return np.where(self.parsed, best, 0).astype(np.int8)

    def take(self, rows: NDArray[np.intp]) -> Forecasts:
        """The same forecasts for only these rows of the target, in this order."""
        return replace(
            self,
            **{
                key: getattr(self, key)[:, rows]
                for key in (
                    "probabilities", "parsed", "present", "deferred", "stated", "expected_speedups", "raw_sums",
                    "input_tokens", "output_tokens", "latency_s",
                )
            },
            rationales=None,
        )  # fmt: skip


def _digest(*arrays: Floats) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return f"sha256:{found.hexdigest()}"


def _shaped(values: ArrayLike | None, shape: tuple[int, int], default: float | bool, name: str) -> NDArray[np.bool_]:
    if values is None:
        return np.full(shape, default)
    array = np.asarray(values)
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise DataError(f"{name} has shape {array.shape}, expected {shape} or ({shape[1]},)") from None
