"""Hold a score as one JSON document: what a summary or the board needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.errors import DataError, printable
from kernel_archive.scoring.metrics import HEADLINE
from kernel_archive.scoring.split import TargetFacts  # noqa: TC001 - msgspec resolves annotations at run time
from kernel_archive.splits import Kind  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Raised when a definition changes; scores of different versions are never ranked together.
METRIC_VERSION: Final = "2"
#: With fewer clusters an interval says little, and whoever shows it says so.
FEW: Final = 15
#: Metrics that hang on a few rows of each task start with this.
_OF_FEW: Final = "speedup_recovered_at_"


class Metric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one figure; ``None`` where it is not defined (no parsed row, no positive)."""

    #: Mean and population standard deviation over the repeats.
    mean: float | None
    std: float | None
    repeats: tuple[float | None, ...]
    #: Ends of the 95 % interval; ``None`` where none was computed.
    low: float | None = None
    high: float | None = None


class ForecastFacts(msgspec.Struct, frozen=True, kw_only=True):
    """State what was scored; a cell is one repeat of one row."""

    #: The forecaster, and its file as its user named it, made printable.
    name: str
    source: str
    #: sha256 of the file's content.
    digest: str
    n_repeats: int
    n_cells: int
    #: Cells with a line, with a distribution, and deferred.
    n_present: int
    n_parsed: int
    n_deferred: int
    coverage: float
    #: Share of the lines with a distribution, of those that don't defer without one.
    parse_rate: float | None
    #: Cells with a stated bin and a distribution, and of those with another bin as the argmax.
    n_stated: int
    n_stated_differs: int
    #: Cells whose raw sum was so far from 1 that they count as not parsed.
    n_raw_sum_rejected: int
    #: Tokens of all cells; ``None`` when not stated.
    input_tokens: float | None
    output_tokens: float | None
    #: Mean seconds per forecast.
    latency_s: float | None

    @property
    def deferral_rate(self) -> float:
        """Share of the cells that are deferred."""
        return self.n_deferred / self.n_cells

    @property
    def tokens_per_forecast(self) -> float | None:
        """Tokens read and written per forecast line; ``None`` where not stated."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return ((self.input_tokens or 0.0) + (self.output_tokens or 0.0)) / max(self.n_present, 1)


class Bucket(msgspec.Struct, frozen=True):
    """Hold one confidence bucket of all repeats; means are ``None`` in an empty one."""

    #: Edges of the confidence.
    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None
    #: Mean forecast error, x.
    error: float | None


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the recovery curve: percent of the best speedup found at each budget."""

    #: Percent of a task's candidates, 1 to 100.
    budgets: tuple[int, ...]
    #: Mean over tasks and repeats, with its pointwise 95 % band, empty without a bootstrap.
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    #: The curve of candidates measured in random order.
    random: tuple[float, ...]


class RiskCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what accepting only the most confident rows gives; parsed rows, mean over repeats."""

    #: 0.01 to 1: share of the rows that is accepted.
    coverage: tuple[float, ...]
    #: Their mean forecast error, x, and their share of wrong bins.
    error: tuple[float, ...]
    error_rate: tuple[float, ...]


class Deferral(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what deferring changes; only where a forecast defers."""

    #: Share of the cells that are deferred.
    rate: float
    #: Metric -> figure over the rows that are not deferred.
    accepted: dict[str, Metric]
    #: Accuracy on the deferred rows with a distribution, and their number.
    deferred_accuracy: float | None
    n_deferred_parsed: int


class DiscoveryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Hold precision and recall of the pairs at least ``cutoff`` times as fast."""

    #: In x.
    cutoff: float
    n_positive: int
    #: Share of positives: the average precision of a constant forecast.
    base_rate: float
    #: Least and largest average precision over the repeats.
    low: float | None = None
    high: float | None = None
    #: 0.01 to 1.
    recall: tuple[float, ...] = ()
    #: Precision at the first score that reaches this recall, mean over the repeats.
    precision: tuple[float, ...] = ()


class PairBand(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how many pairs of some distance are in the right order."""

    #: Such as ``1.05x to 1.2x``, or ``close pairs``.
    title: str
    n_pairs: int
    #: Share in the right order, all repeats together, and of an order by one more measurement.
    accuracy: float | None
    ceiling: float | None


class ControlFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the figures of one control or bound on the same rows."""

    name: str
    #: What it goes by.
    title: str
    #: Whether it knows the labels.
    bound: bool
    metrics: dict[str, float | None]


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """State what the draws of intervals and comparisons are of."""

    #: ``authors``, ``chains``, ``problems`` or ``rows``, and how many there are.
    unit: str
    n: int

    @property
    def said(self) -> str:
        """Say it, and where there are few how little an interval carries.

        >>> Drawn(unit="problems", n=12).said
        '12 problems, few: the true figure is outside more often than 1 time in 20'
        """
        few = self.unit != "rows" and self.n < FEW
        remark = ", few: the true figure is outside more often than 1 time in 20" if few else ""
        return f"{self.n:,} {self.unit}{remark}"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """State what figures were computed under; comparable figures agree in it."""

    metric_version: str = METRIC_VERSION
    package: str = __version__
    kind: Kind
    target: TargetFacts
    #: Bin scheme of the labels.
    scheme: str
    #: ``argmax`` or ``stated``.
    predicted_bin: str
    seed: int
    #: 0 when there are no intervals.
    draws: int
    drawn: Drawn | None = None


class Score(Terms, frozen=True, kw_only=True):
    """Hold a score; ``kernel_archive.scoring.metrics`` states the metrics and their units."""

    #: The labels were computed anew under ``scheme``; the split has another one.
    relabelled: bool
    forecasts: ForecastFacts
    #: Metric -> figure over the whole split.
    metrics: dict[str, Metric]
    #: Task (for discovery: problem family) -> metric -> figure, and -> number of rows.
    groups: dict[str, dict[str, Metric]]
    group_rows: dict[str, int]
    #: Metric -> figure of the uniform forecast, for scale.
    uniform: dict[str, float | None]
    #: Counts, rows measured bin, columns predicted bin, of all repeats, parsed rows only.
    confusion: tuple[tuple[int, ...], ...]
    buckets: tuple[Bucket, ...]
    #: For ``eval`` only.
    recovery: Recovery | None
    #: Pairs by the distance of their speedups, then the close ones; for ``eval`` only.
    pairs: tuple[PairBand, ...] = ()
    #: ``None`` without a parsed row.
    risk: RiskCoverage | None
    #: ``None`` where nothing is deferred.
    deferral: Deferral | None
    #: One curve per cutoff, for ``discovery`` only.
    discovery: tuple[DiscoveryCurve, ...]
    #: What surface controls and bounds reach on the same rows.
    controls: tuple[ControlFigures, ...] = ()
    #: Metric -> the control with the best figure, and -> whether the whole interval is better.
    best_controls: dict[str, str] = {}
    beats_control: dict[str, bool] = {}

    def to_json(self, *, indent: int = 1) -> bytes:
        """Write the record as JSON, keys in a fixed order."""
        return msgspec.json.format(msgspec.json.encode(self), indent=indent)

    def in_sums(self) -> Score:
        """Keep what may be published where labels are withheld: figures over all rows, rounded.

        Curves, buckets, groups, repeats and the best of few picks would tell labels of single rows
        to a reader who has the forecasts, which are public.
        """

        def rounded(figures: dict[str, float | None]) -> dict[str, float | None]:
            return {
                name: None if value is None else round(value, 3)
                for name, value in figures.items()
                if not name.startswith(_OF_FEW)
            }

        def summed(metric: Metric) -> Metric:
            ends = {name: getattr(metric, name) for name in ("mean", "std", "low", "high")}
            return Metric(repeats=(), **rounded(ends))

        replace = msgspec.structs.replace
        kept = {name: m for name, m in self.metrics.items() if not name.startswith(_OF_FEW)}
        return replace(
            self,
            metrics={name: summed(metric) for name, metric in kept.items()},
            groups={},
            uniform=rounded(self.uniform),
            confusion=(),
            buckets=(),
            recovery=None,
            risk=None,
            deferral=None,
            discovery=(),
            pairs=(),
            controls=tuple(replace(c, metrics=rounded(c.metrics)) for c in self.controls),
        )

    def control(self, metric: str) -> float | None:
        """Return the figure of the best control; ``None`` where there is none."""
        best = self.best_controls.get(metric)
        return next((c.metrics.get(metric) for c in self.controls if c.name == best), None)

    @property
    def headline(self) -> dict[str, Metric]:
        """The headline metrics of this kind of split."""
        return {name: self.metrics[name] for name in HEADLINE[self.kind]}


def records_to_json(records: Sequence[Score]) -> bytes:
    """Write one record as JSON, several as a JSON list."""
    data = msgspec.json.encode(records[0] if len(records) == 1 else records)
    return msgspec.json.format(data, indent=1) + b"\n"


def read_record(source: bytes | str | Path) -> Score:
    """Read the score record in JSON bytes or a file.

    Raises:
        DataError: it can't be read or is not one score record.
    """
    what = "this" if isinstance(source, bytes) else printable(str(source), 300)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        return msgspec.json.decode(data, type=Score)
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fix = "Make one with: kernel-archive score FILE -o RECORD"
        reason = printable(str(error), 200)
        raise DataError(f"{what} is not a score record: {reason}. {fix}") from None
