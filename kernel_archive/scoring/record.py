"""A score as one JSON document: what a summary or the board needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.errors import DataError, printable
from kernel_archive.scoring.split import SplitIdentity
from kernel_archive.splits import Kind, SplitSpec, split_of

#: Raised when a definition changes; scores of different versions are never ranked together.
METRIC_VERSION: Final = "2"
#: With fewer clusters an interval says little, and is shown with a remark.
FEW_CLUSTERS: Final = 15


class Metric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure; ``None`` where it is not defined (no parsed row, no positive)."""

    mean: float | None  # over the repeats
    std: float | None  # population standard deviation over the repeats
    repeats: tuple[float | None, ...]
    low: float | None = None  # ends of the 95 % interval; ``None`` where none was computed
    high: float | None = None


class ForecastFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was scored; a cell is one repeat of one row."""

    name: str  # of the forecaster
    source: str  # its file as its user named it, made printable
    digest: str  # sha256 of the file's content; empty where there is no file
    n_repeats: int
    n_cells: int
    n_present: int  # cells with a line
    n_parsed: int  # cells with a distribution
    n_deferred: int
    coverage: float
    parse_rate: float | None  # of the lines with a distribution, of those that need one
    n_stated: int  # cells with a stated bin and a distribution
    n_stated_differs: int  # of those, cells with another bin as the argmax
    n_raw_sum_rejected: int  # cells whose raw sum was so far from 1 that they count as not parsed
    input_tokens: float | None  # of all cells; ``None`` when not stated
    output_tokens: float | None
    latency_s: float | None  # mean seconds per forecast

    @property
    def deferral_rate(self) -> float:
        """Share of the cells that are deferred."""
        return self.n_deferred / self.n_cells

    @property
    def tokens_per_forecast(self) -> float | None:
        """Tokens read and written per forecast line; ``None`` where not stated."""
        stated = [n for n in (self.input_tokens, self.output_tokens) if n is not None]
        return sum(stated) / max(self.n_present, 1) if stated else None


class Bucket(msgspec.Struct, frozen=True):
    """One of ten equal confidence buckets, all repeats; means are ``None`` in an empty one."""

    count: int
    confidence: float | None
    accuracy: float | None
    error: float | None  # mean forecast error, x


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery curve: percent of the best speedup found at budgets of 1 to 100 %."""

    mean: tuple[float, ...]  # over tasks and repeats
    low: tuple[float, ...]  # pointwise 95 % band, empty without a bootstrap
    high: tuple[float, ...]
    random: tuple[float, ...]  # the curve of candidates measured in random order


class RiskCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """What accepting only the most confident rows gives; parsed rows, mean over repeats."""

    error_rate: tuple[float, ...]  # share of wrong bins in the surest 1 to 100 % of the rows


class Deferral(msgspec.Struct, frozen=True, kw_only=True):
    """What deferring changes; only where a forecast defers."""

    accepted: dict[str, Metric]  # metric that is a mean over rows -> figure over the rows kept
    deferred_accuracy: float | None  # on the deferred rows with a distribution
    n_deferred_parsed: int  # their number


class DiscoveryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Precision and recall of the pairs at least ``cutoff`` times as fast."""

    cutoff: float  # in x
    n_positive: int
    base_rate: float  # share of positives: the average precision of a constant forecast
    recall: tuple[float, ...] = ()  # 0.01 to 1
    precision: tuple[float, ...] = ()  # at the first score that reaches it, mean over the repeats


class PairBand(msgspec.Struct, frozen=True, kw_only=True):
    """How many pairs of some distance are in the right order."""

    title: str  # such as ``1.05x to 1.2x``, or ``close pairs``
    n_pairs: int
    accuracy: float | None  # share in the right order, all repeats together
    ceiling: float | None  # the share of an order by one more measurement


class ControlFigures(msgspec.Struct, frozen=True):
    """The figures of one control or bound on the same rows."""

    name: str
    title: str  # the cue that it uses
    bound: bool  # whether it knows the labels
    metrics: dict[str, float | None]


class DrawnUnits(msgspec.Struct, frozen=True, kw_only=True):
    """What the draws of intervals and comparisons are of."""

    unit: str  # ``authors``, ``chains``, ``problems`` or ``rows``
    n: int

    @property
    def text(self) -> str:
        """Number and unit in words, with a warning where they are few.

        >>> DrawnUnits(unit="problems", n=12).text
        '12 problems, few: the true figure is outside more often than 1 time in 20'
        """
        few = self.unit != "rows" and self.n < FEW_CLUSTERS
        remark = ", few: the true figure is outside more often than 1 time in 20" if few else ""
        return f"{self.n:,} {self.unit}{remark}"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What figures were computed under; comparable figures agree in it."""

    metric_version: str = METRIC_VERSION
    package: str = __version__
    kind: Kind
    split: SplitIdentity = msgspec.field(name="target")  # as stored scores call it
    scheme: str  # bin scheme of the labels
    predicted_bin: str  # ``argmax`` or ``stated``
    seed: int
    draws: int  # 0 when there are no intervals
    drawn: DrawnUnits | None = None

    @property
    def spec(self) -> SplitSpec:
        """What the rows of its split are."""
        return split_of(self.split.table)


class Score(Terms, frozen=True, kw_only=True):
    """A score; ``kernel_archive.scoring.metrics`` states the metrics and their units."""

    relabelled: bool  # the labels were computed anew under ``scheme``; the split has another one
    forecasts: ForecastFacts
    metrics: dict[str, Metric]  # metric -> figure over the whole split
    groups: dict[str, dict[str, Metric]]  # task or problem family -> metric -> figure
    group_rows: dict[str, int]  # task or problem family -> number of rows
    #: Counts, rows measured bin, columns predicted bin, of all repeats, parsed rows only.
    confusion: tuple[tuple[int, ...], ...]
    buckets: tuple[Bucket, ...]  # from the least to the greatest confidence
    recovery: Recovery | None  # for ``eval`` only
    pairs: tuple[PairBand, ...] = ()  # by their distance, for ``eval`` and ``close``
    risk: RiskCoverage | None  # ``None`` without a parsed row
    deferral: Deferral | None  # ``None`` where nothing is deferred
    discovery: tuple[DiscoveryCurve, ...]  # one curve per cutoff, for ``discovery`` only
    controls: tuple[ControlFigures, ...] = ()  # and bounds, on the same rows
    best_controls: dict[str, str] = {}  # metric -> the control with the best figure
    beats_control: dict[str, bool] = {}  # metric -> whether the whole interval is better than that

    def to_json(self) -> bytes:
        """Write the record as JSON, keys in a fixed order."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    def control(self, metric: str) -> float | None:
        """Return the figure of the best control; ``None`` without one."""
        best = self.best_controls.get(metric)
        return next((c.metrics.get(metric) for c in self.controls if c.name == best), None)

    def is_weak(self, metric: str) -> bool:
        """Whether a figure gets a star: it does not beat the best control, which could be beaten.

        An ECE of 0 is a control's by construction: of the bin frequencies, which may be even odds.
        """
        is_by_construction = metric == "ece" and (self.control(metric) or 0.0) < 1e-9
        return not self.beats_control.get(metric, True) and not is_by_construction

    @property
    def uniform(self) -> dict[str, float | None]:
        """Metric -> figure of the uniform forecast, for scale."""
        return next((c.metrics for c in self.controls if c.name == "uniform"), {})


def read_record(source: bytes | str | Path) -> Score:
    """Read the score record in JSON bytes or a file.

    Raises:
        DataError: it can't be read or is not one score record.
    """
    source_name = "this" if isinstance(source, bytes) else printable(source, 300)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        return msgspec.json.decode(data, type=Score)
    except OSError as error:
        raise DataError(f"{source_name} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fix = "Make one with: kernel-archive score FILE -o RECORD"
        reason = printable(error, 200)
        raise DataError(f"{source_name} is not a score record: {reason}. {fix}") from None
