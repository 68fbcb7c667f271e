"""The score record: everything that a summary, a plot or the board needs of a score, as one JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.errors import DataError, printable
from kernel_archive.scoring.metrics import HEADLINE
from kernel_archive.scoring.target import TargetFacts  # noqa: TC001 - msgspec resolves annotations at run time
from kernel_archive.splits import Kind  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Raised when a definition changes; scores of different versions are never ranked together.
METRIC_VERSION: Final = "1"


#: Figures that hang on a few rows of each task.
_OF_FEW: Final = "speedup_recovered_at_"


class Metric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure.

    Attributes:
        mean: mean over the repeats; ``None`` where it is not defined (no parsed row, no positive).
        std: population standard deviation over the repeats.
        repeats: the value of each repeat.
        low: lower end of the 95 % interval; ``None`` where none was computed.
        high: upper end.
    """

    mean: float | None
    std: float | None
    repeats: tuple[float | None, ...]
    low: float | None = None
    high: float | None = None


class ForecastFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was scored.

    Attributes:
        name: the forecaster, made printable.
        source: the file, as its user named it, made printable.
        digest: sha256 of its content.
        n_repeats: repeats R.
        n_cells: rows x repeats.
        n_present: cells with a line.
        n_parsed: cells with a distribution.
        n_deferred: cells that the forecaster deferred.
        coverage: n_present / n_cells.
        parse_rate: share of the lines that give a distribution, of those that don't defer without one.
        n_stated: cells with a stated bin and a distribution.
        n_stated_differs: of those, the stated bin is not the predicted one (the argmax).
        n_raw_sum_rejected: cells whose raw sum was so far from 1 that they count as not parsed.
        raw_sum: least, mean and largest raw sum, ``None`` without any.
        input_tokens: sum over all cells, ``None`` when not stated.
        output_tokens: likewise.
        latency_s: mean seconds per forecast, ``None`` when not stated.
    """

    name: str
    source: str
    digest: str
    n_repeats: int
    n_cells: int
    n_present: int
    n_parsed: int
    n_deferred: int
    coverage: float
    parse_rate: float | None
    n_stated: int
    n_stated_differs: int
    n_raw_sum_rejected: int
    raw_sum: tuple[float, float, float] | None
    input_tokens: float | None
    output_tokens: float | None
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
    """One confidence bucket of the reliability diagram, all repeats together; means are ``None`` in an empty one.

    Attributes:
        low: lower edge of the confidence.
        high: upper edge.
        count: forecasts in it.
        confidence: their mean confidence.
        accuracy: their share of hits.
        error: their mean forecast error, x.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None
    error: float | None


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery curve: percent of the best speedup found at each budget, mean over tasks and repeats.

    Attributes:
        budgets: percent of a task's candidates, 1 to 100.
        mean: the curve.
        low: lower end of its pointwise 95 % band, empty without a bootstrap.
        high: upper end.
        random: the curve of candidates measured in random order.
    """

    budgets: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    random: tuple[float, ...]


class RiskCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Selective forecasting, mean over repeats, parsed rows only.

    Attributes:
        coverage: 0.01 to 1: share of the rows that is accepted, most confident first.
        error: their mean forecast error, x.
        error_rate: their share of wrong bins.
        coverage_at_error: limit in x -> largest coverage whose error is within it.
        coverage_at_error_rate: limit -> largest coverage whose error rate is within it.
        accuracy_at: confidence threshold -> accuracy of the rows at or above it (``None`` without one), mean share of rows.
    """

    coverage: tuple[float, ...]
    error: tuple[float, ...]
    error_rate: tuple[float, ...]
    coverage_at_error: dict[str, float]
    coverage_at_error_rate: dict[str, float]
    accuracy_at: dict[str, tuple[float | None, float]]


class Deferral(msgspec.Struct, frozen=True, kw_only=True):
    """What deferring changes; only where a forecast defers.

    Attributes:
        rate: share of the row and repeat cells that are deferred.
        accepted: metric -> figure over the rows that are not deferred.
        deferred_accuracy: accuracy that the forecaster would have had on the deferred rows that it gave a distribution for.
        n_deferred_parsed: number of those.
        error_by_confidence: forecast error, x, when the forecaster's own confidence keeps as many rows as it kept.
        error_by_chance: likewise, when chance does.
        measured: share of the candidates that a search measures which measures the deferred ones of each task and, of the
            others, the one with the largest expected speedup; ``None`` where the rows are no candidates for one place.
        found: percent of the best speedup of a task that it finds so, mean over tasks.
        found_by_expected: likewise, when as many candidates are chosen by expected speedup alone.
        found_by_chance: likewise, in random order.
    """

    rate: float
    accepted: dict[str, Metric]
    deferred_accuracy: float | None
    n_deferred_parsed: int
    error_by_confidence: float | None = None
    error_by_chance: float | None = None
    measured: float | None = None
    found: float | None = None
    found_by_expected: float | None = None
    found_by_chance: float | None = None


class DiscoveryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Precision and recall of the pairs at least ``cutoff`` times as fast.

    Attributes:
        cutoff: in x.
        n_positive: pairs that are.
        base_rate: their share: the average precision of a constant forecast.
        low: least average precision over the repeats.
        high: largest.
        recall: 0.01 to 1.
        precision: precision at the first score that reaches this recall, mean over repeats.
        precision_low: least over the repeats.
        precision_high: largest.
        shortcuts: shortcut -> average precision of ordering by it; empty where none is known.
    """

    cutoff: float
    n_positive: int
    base_rate: float
    low: float | None
    high: float | None
    recall: tuple[float, ...]
    precision: tuple[float, ...]
    precision_low: tuple[float, ...]
    precision_high: tuple[float, ...]
    shortcuts: dict[str, float] = {}


class ControlFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one control or bound on the same rows.

    Attributes:
        name: its name.
        title: what it goes by.
        bound: whether it knows the labels.
        metrics: metric -> figure; ``None`` where it is not defined.
    """

    name: str
    title: str
    bound: bool
    metrics: dict[str, float | None]


class OtherScheme(msgspec.Struct, frozen=True, kw_only=True):
    """The same forecasts scored under the other bin scheme.

    Attributes:
        scheme: the other one.
        n_differ: rows whose label differs.
        metrics: metric -> mean over the repeats.
        uniform: the same of the uniform forecast.
        outside: metrics whose figure there lies outside the 95 % interval here: what is said of them depends on the scheme.
        turned: headline metrics by which the forecaster beats the uniform forecast under one scheme only.
    """

    scheme: str
    n_differ: int
    metrics: dict[str, float | None]
    uniform: dict[str, float | None]
    outside: tuple[str, ...]
    turned: tuple[str, ...]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What figures were computed under; two of them can be compared only when this agrees.

    Attributes:
        metric_version: version of the definitions.
        package: version of kernel_archive that computed it.
        kind: ``eval`` or ``discovery``.
        target: identity of the archive and the split.
        scheme: bin scheme of the labels.
        predicted_bin: ``argmax`` or ``stated``.
        seed: of the draws.
        draws: how many; 0 when there are no intervals.
    """

    metric_version: str = METRIC_VERSION
    package: str = __version__
    kind: Kind
    target: TargetFacts
    scheme: str
    predicted_bin: str
    seed: int
    draws: int


class ScoreRecord(Terms, frozen=True, kw_only=True):
    """A score.

    Attributes:
        relabelled: the labels were computed anew under ``scheme``, the split has another one.
        forecasts: what was scored.
        metrics: metric -> figure over the whole split. Names and units: ``kernel_archive.scoring.metrics``.
        groups: task (for discovery: problem family) -> metric -> figure.
        group_rows: task or family -> number of rows.
        uniform: metric -> figure of the uniform forecast, for scale.
        confusion: counts, rows measured bin, columns predicted bin, all repeats together, parsed rows only.
        buckets: ten confidence buckets.
        recovery: the recovery curve, for ``eval``.
        risk: selective forecasting; ``None`` without a parsed row.
        deferral: ``None`` where nothing is deferred.
        discovery: one curve per cutoff, for ``discovery``.
        other_scheme: the same forecasts under the other bin scheme.
        controls: what surface controls and bounds reach on the same rows.
        best_controls: metric -> the control with the best figure.
        beats_control: metric -> whether the whole 95 % interval is better than that figure; only where there is an interval.
    """

    relabelled: bool
    forecasts: ForecastFacts
    metrics: dict[str, Metric]
    groups: dict[str, dict[str, Metric]]
    group_rows: dict[str, int]
    uniform: dict[str, float | None]
    confusion: tuple[tuple[int, ...], ...]
    buckets: tuple[Bucket, ...]
    recovery: Recovery | None
    risk: RiskCoverage | None
    deferral: Deferral | None
    discovery: tuple[DiscoveryCurve, ...]
    other_scheme: OtherScheme
    controls: tuple[ControlFigures, ...] = ()
    best_controls: dict[str, str] = {}
    beats_control: dict[str, bool] = {}

    def to_json(self, *, indent: int = 1) -> bytes:
        """The record as JSON, keys in a fixed order."""
        return msgspec.json.format(msgspec.json.encode(self), indent=indent)

    def in_sums(self) -> ScoreRecord:
        """What may be published where the labels are withheld: figures over all rows, to three decimals, and nothing finer.

        Curves, buckets, confusions, groups, repeats and the best of few picks tell labels of single rows to whoever knows
        the forecasts, and these are public.
        """

        def kept(figures: dict[str, float | None]) -> dict[str, float | None]:
            return {k: None if v is None else round(v, 3) for k, v in figures.items() if not k.startswith(_OF_FEW)}

        def summed(figure: Metric) -> Metric:
            found = kept({name: getattr(figure, name) for name in ("mean", "std", "low", "high")})
            return Metric(**found, repeats=())

        replace = msgspec.structs.replace
        return replace(
            self,
            metrics={k: summed(figure) for k, figure in self.metrics.items() if not k.startswith(_OF_FEW)},
            groups={},
            uniform=kept(self.uniform),
            confusion=(),
            buckets=(),
            recovery=None,
            risk=None,
            deferral=None,
            discovery=(),
            other_scheme=replace(
                self.other_scheme, metrics=kept(self.other_scheme.metrics), uniform=kept(self.other_scheme.uniform)
            ),
            controls=tuple(replace(control, metrics=kept(control.metrics)) for control in self.controls),
        )

    def control(self, metric: str) -> float | None:
        """The figure of the best control; ``None`` where there is none."""
        best = self.best_controls.get(metric)
        return next((c.metrics.get(metric) for c in self.controls if c.name == best), None)

    @property
    def headline(self) -> dict[str, Metric]:
        """The headline metrics of this kind of split."""
        return {name: self.metrics[name] for name in HEADLINE[self.kind]}


def records_to_json(records: Sequence[ScoreRecord]) -> bytes:
    """One record as JSON, several as a JSON list."""
    data = msgspec.json.encode(records[0] if len(records) == 1 else records)
    return msgspec.json.format(data, indent=1) + b"\n"


def read_record(source: bytes | str | Path) -> ScoreRecord:
    """The one score record in JSON bytes or a file.

    Raises:
        DataError: it can't be read or is not one score record.
    """
    records = read_records(source)
    if len(records) != 1:
        raise DataError(f"there are {len(records)} score records in it, expected one")
    return records[0]


def read_records(source: bytes | str | Path) -> list[ScoreRecord]:
    """The score records in JSON bytes or a file: one, or a list of them.

    Raises:
        DataError: it can't be read or is not a score record.
    """
    from pathlib import Path

    what = "this" if isinstance(source, bytes) else printable(str(source), 300)
    try:
        data: Any = source if isinstance(source, bytes) else Path(source).read_bytes()
        if data[:64].lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[ScoreRecord])
        return [msgspec.json.decode(data, type=ScoreRecord)]
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{what} is not a score record: {printable(str(error), 200)}. Make one with: kernel-archive score FILE -o RECORD"
        ) from None
