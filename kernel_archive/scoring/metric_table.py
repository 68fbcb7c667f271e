"""State every metric: its name, title, unit, direction, formula and how it is computed.

:data:`METRICS` is the one place where a metric is stated. Scores, comparisons, summaries, the board
and the documentation are made from it, so a further metric is one entry more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from kernel_archive.scoring import calibration, forecasts
from kernel_archive.scoring.order import CUTOFFS
from kernel_archive.scoring.recovery import BUDGETS, recovery_area
from kernel_archive.splits import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.samples import ForecastRows, RowSample

_EVAL: Final[tuple[Kind, ...]] = ("eval",)
_DISCOVERY: Final[tuple[Kind, ...]] = ("discovery",)
_BOTH: Final[tuple[Kind, ...]] = (*_EVAL, *_DISCOVERY)


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """State one metric."""

    #: Key in score records, and name for people.
    name: str
    title: str
    #: After the figure; empty for a pure number.
    unit: str = ""
    better: Literal["higher", "lower", "neither"]
    decimals: int = 3
    #: What it says, in half a sentence, and what it is, exactly.
    meaning: str
    formula: str
    #: Its value for every row, shape (R, n), when the metric is the mean over the rows.
    rows: Callable[[ForecastRows], Floats] | None = None
    #: Its value in every draw of rows, shape (D,), mean over the repeats, where that is not all.
    draws: Callable[[RowSample], Floats] | None = None
    #: Kinds of split that have it; that it is a headline metric of; in whose comparisons it stands.
    kinds: tuple[Kind, ...] = _BOTH
    headline: tuple[Kind, ...] = ()
    compared: tuple[Kind, ...] = ()
    #: Which figures of a comparison are corrected together: the paper's, or this project's.
    family: Literal["paper", "order"] = "paper"
    #: Whether entries may be ordered by it: an oracle is best by it, and a forecast that knows
    #: nothing does not come out well.
    ranks: bool = False
    #: Whether single tasks or families have it: with an interval, as a value alone, or not at all.
    groups: Literal["interval", "value", "none"] = "interval"
    #: Another metric with the same differences between any two forecasters, drawn instead.
    differs_as: str = ""
    #: Whether it is also stated for the rows alone that a forecaster did not defer.
    accepted: bool = True

    def format(self, value: float | None) -> str:
        """Show a figure with its unit, or a dash.

        >>> METRICS["speedup_recovered"].format(81.25), METRICS["ece"].format(None)
        ('81.2 %', '-')
        """
        return "-" if value is None else f"{value:.{self.decimals}f}{self.unit}"

    @property
    def sign(self) -> int:
        """1 where lower is better, else -1: the smaller ``sign * value`` is the better figure."""
        return -1 if self.better == "higher" else 1

    def of(self, sample: RowSample) -> Floats:
        """Compute the metric in every draw of rows, mean over the repeats: shape (D,)."""
        if self.draws is not None:
            return self.draws(sample)
        if self.rows is None:
            raise ValueError(f"{self.name} states neither its rows nor its draws")
        return sample.mean_over_rows(self.rows(sample.rows))


def budget_name(budget: int) -> str:
    """Metric name of one budget of speedup recovered."""
    return f"speedup_recovered_at_{budget}"


def cutoff_name(cutoff: float) -> str:
    """Metric name of average precision at one cutoff."""
    return f"average_precision_{cutoff:g}"


def _recovered(sample: RowSample, *, budgets: tuple[int, ...]) -> Floats:
    """Speedup recovered, mean over budgets."""
    mean: Floats = sample.curve[[c - 1 for c in budgets]].mean(axis=0)
    return mean


def _by_confidence(sample: RowSample, *, formula: Callable[..., Floats], against: str) -> Floats:
    """Apply a formula of confidences to the hits or the errors, mean over the repeats."""
    rows = sample.rows
    values = rows.hits if against == "correct" else rows.errors

    def of_repeat(r: int) -> Floats:
        given = {"confidence": rows.confidence[r], against: values[r], "parsed": rows.parsed[r]}
        return formula(**given, weights=sample.weights)

    return sample.mean(of_repeat)


def _skill(sample: RowSample) -> Floats:
    """CRPS skill over the best control."""
    own = METRICS["crps"].of(sample)
    control = sample.mean_over_rows(sample.rows.control_crps[None])
    with np.errstate(invalid="ignore", divide="ignore"):
        skill: Floats = np.where(control > 0, 1.0 - own / control, np.nan)
    return skill


def _of_probabilities(rows: ForecastRows, *, formula: Callable[..., Floats]) -> Floats:
    return formula(probabilities=rows.probabilities, bins=rows.bins)


#: What the recovery metrics have in common.
_RECOVERY: Final[dict[str, Any]] = {
    "unit": " %",
    "better": "higher",
    "decimals": 1,
    "kinds": _EVAL,
    "accepted": False,
}
_PROPER: Final[dict[str, Any]] = {"better": "lower", "compared": _BOTH, "ranks": True}

_ALL: Final = (
    MetricInfo(
        name="speedup_recovered",
        title="Speedup recovered",
        meaning="best measured speedup among the chosen candidates over the best of the task: mean "
        f"over budgets of {BUDGETS} %, then over tasks",
        formula="mean over tasks and budgets c of 100 * max S among the k = "
        "max(1, ceil(c n / 100)) candidates with the largest expected speedup / max S of the task; "
        "a tie at the cut counts with its expectation over random orders",
        draws=partial(_recovered, budgets=BUDGETS),
        headline=_EVAL,
        **_RECOVERY,
    ),
    MetricInfo(
        name="ece",
        title="ECE",
        better="lower",
        meaning="expected calibration error over ten equal-width confidence buckets",
        formula="sum over the ten buckets min(floor(10 q), 9) of |B| / n * |share of hits - mean "
        "confidence|, rows with a distribution only",
        draws=partial(_by_confidence, formula=calibration.ece, against="correct"),
        headline=_EVAL,
        compared=_DISCOVERY,
    ),
    MetricInfo(
        name="forecast_error",
        title="Forecast error",
        unit="x",
        better="lower",
        meaning="mean distance from the predicted bin's m_b to S",
        formula="mean |m_b - S| with b the predicted bin; without a distribution the mean of "
        "|m_b - S| over the eight bins",
        rows=lambda r: r.errors,
        headline=_EVAL,
        compared=_DISCOVERY,
    ),
    MetricInfo(
        name="crps_skill",
        title="CRPS skill",
        better="higher",
        meaning="how much of the CRPS of the best control a forecaster takes away: 0 knows no more "
        "than a surface cue, 1 knows every bin",
        formula="1 - CRPS / CRPS of the best control, which is the one with the least CRPS on the "
        "split's rows",
        draws=_skill,
        compared=_BOTH,
        family="order",
        ranks=True,
    ),
    MetricInfo(
        name="pair_accuracy",
        title="Pair accuracy",
        better="higher",
        meaning="share of the pairs of one task and language that are put in the right order",
        formula="over pairs of candidates whose speedups differ by more than 1.05x and by more than"
        " the spread of either's measurements: mean of 1 where the faster one has the larger "
        "expected speedup, 1/2 where they tie, else 0; a stated expected_speedup "
        "orders what the bins tie",
        draws=lambda s: s.pair_accuracy,
        kinds=_EVAL,
        compared=_EVAL,
        family="order",
        ranks=True,
        accepted=False,
    ),
    *(
        MetricInfo(
            name=budget_name(c),
            title=f"Speedup recovered at {c} %",
            meaning=f"the same at a budget of {c} %",
            formula=f"speedup recovered with the one budget c = {c}",
            draws=partial(_recovered, budgets=(c,)),
            **_RECOVERY,
        )
        for c in BUDGETS
    ),
    MetricInfo(
        name="speedup_recovered_pooled",
        title="Speedup recovered, pooled",
        meaning="the same with the rows of all tasks as one candidate set",
        formula="speedup recovered of a single task that holds every row",
        draws=lambda s: s.pooled,
        groups="none",
        **_RECOVERY,
    ),
    MetricInfo(
        name="recovery_area",
        title="Recovery curve, area",
        meaning="mean height of the recovery curve over budgets of 1 to 100 %",
        formula="area by the trapezoid rule under speedup recovered at c = 1..100 %, mean over "
        "tasks, divided by 99",
        draws=lambda s: recovery_area(curve=s.curve),
        compared=_EVAL,
        groups="none",
        **_RECOVERY,
    ),
    MetricInfo(
        name="accuracy",
        title="Accuracy",
        meaning="share of rows whose predicted bin is the true one",
        formula="mean 1[predicted bin = y]; 0 for a row without a distribution",
        rows=lambda r: r.hits.astype(float),
        **{**_PROPER, "better": "higher"},
    ),
    MetricInfo(
        name="within_one",
        title="Within one bin",
        meaning="share of rows at most one bin off",
        formula="mean 1[|predicted bin - y| <= 1]; 0 for a row without a distribution",
        rows=lambda r: forecasts.within_one(predicted=r.predicted, bins=r.bins).astype(float),
        **{**_PROPER, "better": "higher"},
    ),
    MetricInfo(
        name="brier",
        title="Brier",
        meaning="half the squared distance to the true bin's indicator",
        formula="mean 1/2 sum_b (p_b - 1[b = y])^2; without a distribution p is uniform",
        rows=partial(_of_probabilities, formula=forecasts.brier),
        **_PROPER,
    ),
    MetricInfo(
        name="crps",
        title="CRPS",
        decimals=4,
        meaning="ranked probability score over the bins",
        formula="mean 1/7 sum_{k=1..7} (F_k - 1[y <= k])^2 with F_k = p_1 + ... + p_k; without a "
        "distribution p is uniform",
        rows=partial(_of_probabilities, formula=forecasts.crps),
        **_PROPER,
    ),
    MetricInfo(
        name="nll",
        title="NLL",
        unit=" nats",
        meaning="negative log likelihood of the true bin",
        formula="mean -ln max(p_y, 1e-12); without a distribution p is uniform",
        rows=partial(_of_probabilities, formula=forecasts.nll),
        **_PROPER,
    ),
    MetricInfo(
        name="entropy",
        title="Entropy",
        unit=" nats",
        better="neither",
        meaning="mean entropy of the forecasts",
        formula="mean -sum_b p_b ln p_b, with 0 ln 0 = 0",
        rows=lambda r: forecasts.entropy(probabilities=r.probabilities),
    ),
    MetricInfo(
        name="ece_adaptive",
        title="Adaptive ECE",
        better="lower",
        meaning="calibration error over ten buckets of equal count",
        formula="as ECE, with the rows in order of confidence cut into ten buckets of n/10; rows "
        "on a cut are shared out",
        draws=partial(_by_confidence, formula=calibration.adaptive_ece, against="correct"),
        groups="value",
    ),
    MetricInfo(
        name="confidence_monotonicity",
        title="D_mono",
        better="lower",
        meaning="how far the forecast error rises with confidence: 0 only falls, 1 only rises",
        formula="sum max(0, e_{m+1} - e_m) / sum |e_{m+1} - e_m| over the mean forecast errors e_m "
        "of the non-empty confidence buckets; 0 when all are equal",
        draws=partial(
            _by_confidence, formula=calibration.confidence_monotonicity, against="errors"
        ),
        groups="value",
    ),
    MetricInfo(
        name="aurc",
        title="AURC",
        unit="x",
        better="lower",
        meaning="mean forecast error of the most confident rows, over all coverages",
        formula="mean over k = 1..n of the mean forecast error of the k most confident rows; ties "
        "at their expectation",
        draws=lambda s: s.risks[0],
        compared=_EVAL,
        groups="value",
    ),
    MetricInfo(
        name="aurc_error_rate",
        title="AURC, error rate",
        better="lower",
        meaning="mean error rate of the most confident rows",
        formula="as AURC, with 1[predicted bin != y] as the loss",
        draws=lambda s: s.risks[1],
        groups="value",
    ),
    *(
        MetricInfo(
            name=cutoff_name(x),
            title=f"Average precision at {x:g}x",
            better="higher",
            meaning=f"of finding the children at least {x:g} times as fast",
            formula=f"sum_n (R_n - R_{{n-1}}) P_n over the distinct scores Pr[g >= {x:g}] of the "
            f"forecasts; g >= {x:g} is positive",
            draws=partial(lambda s, x: s.average_precisions[x], x=x),
            kinds=_DISCOVERY,
            headline=_DISCOVERY,
        )
        for x in CUTOFFS
    ),
    *(
        MetricInfo(
            name=f"lift_{x:g}",
            title=f"Lift at {x:g}x",
            better="higher",
            meaning="average precision over that of the better of two shortcuts: the slowest "
            "parent first, or a change of language",
            formula=f"average precision at {x:g}x - the larger one of ordering by the parent's "
            "speedup, falling, and by whether the language changes",
            draws=partial(lambda s, x: s.lift(x), x=x),
            kinds=_DISCOVERY,
            compared=_DISCOVERY,
            family="order",
            groups="none",
            differs_as=cutoff_name(x),
            accepted=False,
        )
        for x in CUTOFFS
    ),
)

#: Name -> metric, in the order in which they are shown.
METRICS: Final[dict[str, MetricInfo]] = {metric.name: metric for metric in _ALL}


def metrics_of(kind: Kind) -> dict[str, MetricInfo]:
    """List the metrics that a kind of split has."""
    return {name: metric for name, metric in METRICS.items() if kind in metric.kinds}


#: What a board ranks by: proper, ordinal, and best for a forecaster that knows every bin.
RANKED_BY: Final = "crps"
#: The figure that a board and the command line show first; it orders as :data:`RANKED_BY` does.
LEAD: Final = "crps_skill"
#: Kind of split -> its headline metrics.
HEADLINE: Final[dict[Kind, tuple[str, ...]]] = {
    kind: tuple(name for name, metric in METRICS.items() if kind in metric.headline)
    for kind in get_args(Kind)
}
#: Kind of split -> what entries may be ordered by, the default first.
RANKINGS: Final[dict[Kind, tuple[str, ...]]] = {
    kind: tuple(dict.fromkeys([LEAD, *(n for n, m in metrics_of(kind).items() if m.ranks)]))
    for kind in HEADLINE
}
#: Kind of split -> the metrics of its comparisons; Holm's correction is over these.
COMPARED: Final[dict[Kind, tuple[str, ...]]] = {
    kind: (*HEADLINE[kind], *(name for name, metric in METRICS.items() if kind in metric.compared))
    for kind in HEADLINE
}
