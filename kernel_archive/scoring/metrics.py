"""Every metric: its name, title, unit, direction, formula and how it is computed.

:data:`METRICS` is the one place where a metric is stated. The score record, comparisons, the summaries, the standings,
the board's page and the documentation are made from it, so a further metric is one entry more.

The formulas themselves are functions on arrays: no files, no validation, no randomness. Their arguments are
keyword-only, since many have the same shape; n is the number of rows, and ``...`` stands for any leading axes. Exact
definitions, to the last edge case: docs/metrics.md; their source is the GPU Forecasters paper (arXiv 2605.31464), sections
3.1, 4.1, 4.3 and 4.5. Two figures that are equal in exact arithmetic count as equal here, too: ranks and confidence
buckets allow for the rounding of the renormalisation.

>>> import numpy as np
>>> p = np.array([[0, 0, 0, 0.1, 0.2, 0.7, 0, 0]])
>>> predicted_bins(probabilities=p).tolist()
[6]
>>> brier(probabilities=p, bins=np.array([6])).round(6).tolist()
[0.07]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from kernel_archive.scoring.calibration import (
    N_BUCKETS,
    accuracy_at,
    adaptive_ece,
    aurc,
    bucket_of,
    confidence_monotonicity,
    coverage_at,
    ece,
    selective_risk,
)
from kernel_archive.scoring.forecasts import (
    brier,
    confidence,
    confusion,
    correct,
    crps,
    entropy,
    expected_speedup,
    forecast_errors,
    nll,
    normalise,
    predicted_bins,
    within_one,
)
from kernel_archive.scoring.order import (
    average_precision,
    exceedance,
    order_keys,
    pair_accuracy,
    precision_recall,
    rank_correlation,
)
from kernel_archive.scoring.recovery import BUDGETS, budget_ranks, recovered_at, recovered_at_random, recovery_area
from kernel_archive.splits import SPLITS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.samples import ForecastRows, RowSample

__all__ = [
    "BUDGETS",
    "COMPARED",
    "CUTOFFS",
    "FURTHER",
    "HEADLINE",
    "LEAD",
    "METRICS",
    "N_BUCKETS",
    "RANKED_BY",
    "RANKINGS",
    "MetricInfo",
    "accuracy_at",
    "adaptive_ece",
    "aurc",
    "average_precision",
    "brier",
    "bucket_of",
    "budget_name",
    "budget_ranks",
    "confidence",
    "confidence_monotonicity",
    "confusion",
    "correct",
    "coverage_at",
    "crps",
    "cutoff_name",
    "ece",
    "entropy",
    "exceedance",
    "expected_speedup",
    "forecast_errors",
    "metrics_of",
    "nll",
    "normalise",
    "order_keys",
    "pair_accuracy",
    "precision_recall",
    "predicted_bins",
    "rank_correlation",
    "recovered_at",
    "recovered_at_random",
    "recovery_area",
    "selective_risk",
    "within_one",
]

#: A pair is a discovery when the child is at least so many times as fast as its parent.
CUTOFFS: Final = SPLITS["discovery"].cutoffs
_EVAL: Final[tuple[Kind, ...]] = ("eval",)
_DISCOVERY: Final[tuple[Kind, ...]] = ("discovery",)
_BOTH: Final[tuple[Kind, ...]] = (*_EVAL, *_DISCOVERY)


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """One metric.

    Attributes:
        name: key in score records.
        title: name for people.
        unit: after the figure; empty for a pure number.
        better: which way is better.
        decimals: decimals to print.
        meaning: what it says, in half a sentence.
        formula: what it is, exactly.
        rows: its value for every row, shape (R, n), when the metric is the mean over the rows; else ``None``.
        draws: its value in every draw of rows, shape (D,), mean over the repeats, when it is more than such a mean.
        kinds: kinds of split that have it.
        headline: kinds of split that it is a headline metric of.
        compared: kinds of split in whose comparisons it stands, beside the headline metrics.
        family: which figures of a comparison are corrected together: ``paper``, or the ones that this project adds.
        ranks: whether entries may be ordered by it: nobody without the labels can be expected to get a better figure than
            the oracle, and a forecast that knows nothing does not come out well. The paper's three do not have that: a
            uniform forecast is well calibrated, and ties in the open top bin decide what is recovered.
        groups: whether single tasks or families have it: with an interval, as a value alone, or not at all.
        accepted: whether it is also stated for the rows alone that a forecaster did not defer.
    """

    name: str
    title: str
    unit: str = ""
    better: Literal["higher", "lower", "neither"]
    decimals: int = 3
    meaning: str
    formula: str
    rows: Callable[[ForecastRows], Floats] | None = None
    draws: Callable[[RowSample], Floats] | None = None
    kinds: tuple[Kind, ...] = _BOTH
    headline: tuple[Kind, ...] = ()
    compared: tuple[Kind, ...] = ()
    family: Literal["paper", "order"] = "paper"
    ranks: bool = False
    groups: Literal["interval", "value", "none"] = "interval"
    accepted: bool = True

    def format(self, value: float | None) -> str:
        """The figure with its unit, or a dash.

        >>> METRICS["speedup_recovered"].format(81.25), METRICS["ece"].format(None)
        ('81.2 %', '-')
        """
        return "-" if value is None else f"{value:.{self.decimals}f}{self.unit}"

    @property
    def sign(self) -> int:
        """1 where lower is better, -1 where higher is: the smaller ``sign * value`` is the better figure."""
        return -1 if self.better == "higher" else 1

    def of(self, sample: RowSample) -> Floats:
        """The metric in every draw of rows, mean over the repeats: shape (D,)."""
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


def _calibration(formula: Callable[..., Floats], s: RowSample) -> Floats:
    """A calibration error, mean over the repeats."""
    rows = s.rows
    return s.mean(
        lambda r: formula(confidence=rows.confidence[r], correct=rows.hits[r], parsed=rows.parsed[r], weights=s.weights)
    )


def _skill(sample: RowSample) -> Floats:
    """CRPS skill over the best control, in every draw."""
    own = METRICS["crps"].of(sample)
    control = sample.mean_over_rows(sample.rows.control_crps[None])
    with np.errstate(invalid="ignore", divide="ignore"):
        skill: Floats = np.where(control > 0, 1.0 - own / control, np.nan)
    return skill


#: Class of distance of a pair -> what it says.
_DISTANCES: Final = {
    "1.4": "up to 1.4x apart", "2": "1.4x to 2x apart", "4": "2x to 4x apart", "more": "more than 4x apart",
}  # fmt: skip

_ALL: Final = (
    MetricInfo(
        name="speedup_recovered", title="Speedup recovered", unit=" %", better="higher", decimals=1,
        meaning=f"best measured speedup among the chosen candidates over the best of the task: mean over budgets of {BUDGETS} %, "
        "then over tasks",
        formula="mean over tasks and budgets c of 100 * max S among the k = max(1, ceil(c n / 100)) candidates with the "
        "largest expected speedup / max S of the task; a tie at the cut counts with its expectation over random orders",
        draws=lambda s: s.curve[[c - 1 for c in BUDGETS]].mean(axis=0), kinds=_EVAL, headline=_EVAL, accepted=False,
    ),
    MetricInfo(
        name="ece", title="ECE", better="lower",
        meaning="expected calibration error over ten equal-width confidence buckets",
        formula="sum over the ten buckets min(floor(10 q), 9) of |B| / n * |share of hits - mean confidence|, rows with a "
        "distribution only",
        draws=lambda s: _calibration(ece, s),
        headline=_EVAL, compared=_DISCOVERY,
    ),
    MetricInfo(
        name="forecast_error", title="Forecast error", unit="x", better="lower",
        meaning="mean distance from the predicted bin's m_b to S",
        formula="mean |m_b - S| with b the predicted bin; without a distribution the mean of |m_b - S| over the eight bins",
        rows=lambda r: r.errors, headline=_EVAL, compared=_DISCOVERY,
    ),
    MetricInfo(
        name="crps_skill", title="CRPS skill", better="higher",
        meaning="how much of the CRPS of the best control a forecaster takes away: 0 knows no more than a surface cue, 1 "
        "knows every bin",
        formula="1 - CRPS / CRPS of the best control, which is the one with the least CRPS on the split's rows",
        draws=_skill, compared=_BOTH, family="order", ranks=True,
    ),
    MetricInfo(
        name="pair_accuracy", title="Pair accuracy", better="higher",
        meaning="share of the pairs of one task and language that are put in the right order",
        formula="over pairs of candidates whose speedups differ by more than 1.05x and by more than the spread of either's "
        "measurements: mean of 1 where the faster one has the larger expected speedup, 1/2 where they tie, else 0; a stated "
        "expected_speedup orders what the bins tie",
        draws=lambda s: s.pair_accuracies[0].copy(), kinds=_EVAL, compared=_EVAL, family="order", ranks=True, accepted=False,
    ),
    *(
        MetricInfo(
            name=f"pair_accuracy_{name}", title=f"Pair accuracy, {said}", better="higher", meaning=f"the same for pairs {said}",
            formula=f"pair accuracy of the pairs whose larger speedup over the smaller lies {said.removesuffix(' apart')}",
            draws=lambda s, k=k: s.pair_accuracies[k].copy(),  # type: ignore[misc]  # k is bound now
            kinds=_EVAL, compared=_EVAL, family="order", ranks=True, groups="none", accepted=False,
        )
        for k, (name, said) in enumerate(_DISTANCES.items(), 1)
    ),
    MetricInfo(
        name="rank_correlation", title="Rank correlation", better="higher",
        meaning="how the order of a task's candidates goes with the measured one",
        formula="Spearman's correlation of expected and measured speedups within a task, ties by mean rank, 0 where all tie; "
        "a stated expected_speedup orders what the bins tie; mean over tasks",
        draws=lambda s: s.rank_correlation, kinds=_EVAL, compared=_EVAL, family="order", ranks=True, accepted=False,
    ),
    MetricInfo(
        name="selection_skill", title="Selection skill", better="higher",
        meaning="speedup recovered, from 0 for a random order to 1 for the oracle's",
        formula="(R - random) / (100 - random) with R = speedup recovered, a stated expected_speedup ordering what the bins "
        "tie, and random = its expectation in random order",
        draws=lambda s: s.selection_skill, kinds=_EVAL, compared=_EVAL, family="order", ranks=True, accepted=False,
    ),
    *(
        MetricInfo(
            name=budget_name(c), title=f"Speedup recovered at {c} %", unit=" %", better="higher", decimals=1,
            meaning=f"the same at a budget of {c} %", formula=f"speedup recovered with the one budget c = {c}",
            draws=lambda s, c=c: s.curve[c - 1].copy(), kinds=_EVAL, accepted=False,  # type: ignore[misc]  # c is bound now; a copy, so that the curve itself is not kept
        )
        for c in BUDGETS
    ),
    MetricInfo(
        name="speedup_recovered_pooled", title="Speedup recovered, pooled", unit=" %", better="higher", decimals=1,
        meaning="the same with the rows of all tasks as one candidate set",
        formula="speedup recovered of a single task that holds every row",
        draws=lambda s: s.pooled, kinds=_EVAL, groups="none", accepted=False,
    ),
    MetricInfo(
        name="recovery_area", title="Recovery curve, area", unit=" %", better="higher", decimals=1,
        meaning="mean height of the recovery curve over budgets of 1 to 100 %",
        formula="area by the trapezoid rule under speedup recovered at c = 1..100 %, mean over tasks, divided by 99",
        draws=lambda s: recovery_area(curve=s.curve), kinds=_EVAL, compared=_EVAL, groups="none", accepted=False,
    ),
    MetricInfo(
        name="accuracy", title="Accuracy", better="higher", meaning="share of rows whose predicted bin is the true one",
        formula="mean 1[predicted bin = y]; 0 for a row without a distribution",
        rows=lambda r: r.hits.astype(float), compared=_BOTH, ranks=True,
    ),
    MetricInfo(
        name="within_one", title="Within one bin", better="higher", meaning="share of rows at most one bin off",
        formula="mean 1[|predicted bin - y| <= 1]; 0 for a row without a distribution",
        rows=lambda r: within_one(predicted=r.predicted, bins=r.bins).astype(float), compared=_BOTH, ranks=True,
    ),
    MetricInfo(
        name="brier", title="Brier", better="lower", meaning="half the squared distance to the true bin's indicator",
        formula="mean 1/2 sum_b (p_b - 1[b = y])^2; without a distribution p is uniform",
        rows=lambda r: brier(probabilities=r.probabilities, bins=r.bins), compared=_BOTH, ranks=True,
    ),
    MetricInfo(
        name="crps", title="CRPS", better="lower", decimals=4, meaning="ranked probability score over the bins",
        formula="mean 1/7 sum_{k=1..7} (F_k - 1[y <= k])^2 with F_k = p_1 + ... + p_k; without a distribution p is uniform",
        rows=lambda r: crps(probabilities=r.probabilities, bins=r.bins), compared=_BOTH, ranks=True,
    ),
    MetricInfo(
        name="nll", title="NLL", unit=" nats", better="lower", meaning="negative log likelihood of the true bin",
        formula="mean -ln max(p_y, 1e-12); without a distribution p is uniform",
        rows=lambda r: nll(probabilities=r.probabilities, bins=r.bins), compared=_BOTH, ranks=True,
    ),
    MetricInfo(
        name="entropy", title="Entropy", unit=" nats", better="neither", meaning="mean entropy of the forecasts",
        formula="mean -sum_b p_b ln p_b, with 0 ln 0 = 0", rows=lambda r: entropy(probabilities=r.probabilities),
    ),
    MetricInfo(
        name="ece_adaptive", title="Adaptive ECE", better="lower", meaning="calibration error over ten buckets of equal count",
        formula="as ECE, with the rows in order of confidence cut into ten buckets of n/10; rows on a cut are shared out",
        draws=lambda s: _calibration(adaptive_ece, s),
        groups="value",
    ),
    MetricInfo(
        name="confidence_monotonicity", title="D_mono", better="lower",
        meaning="how far the forecast error rises with confidence: 0 only falls, 1 only rises",
        formula="sum max(0, e_{m+1} - e_m) / sum |e_{m+1} - e_m| over the mean forecast errors e_m of the non-empty "
        "confidence buckets; 0 when all are equal",
        draws=lambda s: s.mean(
            lambda r: confidence_monotonicity(
                confidence=s.rows.confidence[r], errors=s.rows.errors[r], parsed=s.rows.parsed[r], weights=s.weights
            )
        ),
        groups="value",
    ),
    MetricInfo(
        name="aurc", title="AURC", unit="x", better="lower",
        meaning="mean forecast error of the most confident rows, over all coverages",
        formula="mean over k = 1..n of the mean forecast error of the k most confident rows; ties at their expectation",
        draws=lambda s: s.risks[0], compared=_EVAL, groups="value",
    ),
    MetricInfo(
        name="aurc_error_rate", title="AURC, error rate", better="lower",
        meaning="mean error rate of the most confident rows", formula="as AURC, with 1[predicted bin != y] as the loss",
        draws=lambda s: s.risks[1], groups="value",
    ),
    *(
        MetricInfo(
            name=cutoff_name(x), title=f"Average precision at {x:g}x", better="higher",
            meaning=f"of finding the children at least {x:g} times as fast",
            formula=f"sum_n (R_n - R_{{n-1}}) P_n over the distinct scores Pr[g >= {x:g}] of the forecasts; g >= {x:g} is positive",
            draws=lambda s, x=x: s.found(x),  # type: ignore[misc]  # x is bound now
            kinds=_DISCOVERY, headline=_DISCOVERY,
        )
        for x in CUTOFFS
    ),
    *(
        MetricInfo(
            name=f"lift_{x:g}", title=f"Lift at {x:g}x", better="higher",
            meaning="average precision over that of the better of two shortcuts: the slowest parent first, or a change of language",
            formula=f"average precision at {x:g}x - the larger one of ordering by the parent's speedup, falling, and by whether "
            "the language changes",
            draws=lambda s, x=x: s.lift(x),  # type: ignore[misc]  # x is bound now
            kinds=_DISCOVERY, compared=_DISCOVERY, family="order", groups="none", accepted=False,
        )
        for x in CUTOFFS
    ),
    *(
        MetricInfo(
            name=f"average_precision_within_{x:g}", title=f"Average precision at {x:g}x within a language", better="higher",
            meaning="the same over the edits that stay within one language",
            formula=f"average precision at {x:g}x of the pairs whose parent and child are of one language",
            draws=lambda s, x=x: s.within_language.found(x),  # type: ignore[misc]  # x is bound now
            kinds=_DISCOVERY, groups="none", accepted=False,
        )
        for x in CUTOFFS
    ),
    *(
        MetricInfo(
            name=f"lift_within_{x:g}", title=f"Lift at {x:g}x within a language", better="higher",
            meaning="the lift over the edits that stay within one language",
            formula=f"lift at {x:g}x of the pairs whose parent and child are of one language",
            draws=lambda s, x=x: s.within_language.lift(x),  # type: ignore[misc]  # x is bound now
            kinds=_DISCOVERY, groups="none", accepted=False,
        )
        for x in CUTOFFS
    ),
)  # fmt: skip

#: Name -> metric, in the order in which they are shown.
METRICS: Final[dict[str, MetricInfo]] = {metric.name: metric for metric in _ALL}


def metrics_of(kind: Kind) -> dict[str, MetricInfo]:
    """The metrics that a kind of split has."""
    return {name: metric for name, metric in METRICS.items() if kind in metric.kinds}


#: What a board ranks by: proper, ordinal, and won by whoever knows every bin. Shown as ``crps_skill``.
RANKED_BY: Final = "crps"
#: The figure that a board and the command line show first.
LEAD: Final = "crps_skill"
#: Kind of split -> its headline metrics, and those in its table of a comparison (Holm's correction is over these).
HEADLINE: Final[dict[Kind, tuple[str, ...]]] = {
    kind: tuple(name for name, metric in METRICS.items() if kind in metric.headline) for kind in get_args(Kind)
}
#: Kind of split -> what entries may be ordered by, first what they are ranked by unless somebody asks for another one.
RANKINGS: Final[dict[Kind, tuple[str, ...]]] = {
    kind: (LEAD, *(name for name, metric in METRICS.items() if metric.ranks and kind in metric.kinds and name != LEAD))
    for kind in HEADLINE
}
COMPARED: Final[dict[Kind, tuple[str, ...]]] = {
    kind: (*HEADLINE[kind], *(name for name, metric in METRICS.items() if kind in metric.compared)) for kind in HEADLINE
}
#: Shown beside the headline metrics where there is room for two more.
FURTHER: Final = ("accuracy", "crps")
