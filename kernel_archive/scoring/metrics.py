"""Every metric, from ``metrics.toml``, and how it is computed.

Scores, comparisons, summaries, the board and the documentation are made from :data:`METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, get_args

import msgspec
import numpy as np

from kernel_archive.scoring import calibration, order, rules
from kernel_archive.scoring.arrays import Bools, Floats, Ints
from kernel_archive.scoring.recovery import BUDGETS, fastest_tenth, recovery_area
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.splits import Kind, SplitSpec
from kernel_archive.toml_files import toml_beside

__all__ = [
    "COMPARED",
    "HEADLINE",
    "METRICS",
    "metrics_of",
    "rankings_of",
    "shown_first",
]

#: Cues of an edit that find discoveries without reading it.
SHORTCUTS: Final = ("parent_speedup", "language_change")


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: an entry of ``metrics.toml``."""

    name: str
    title: str
    unit: str = ""  # after the figure; empty for a pure number
    better: Literal["higher", "lower", "neither"]
    decimals: int = 3
    meaning: str  # what it says, in half a sentence
    formula: str  # what it is, exactly
    #: Kinds of split that have it; that it is a headline metric of; in whose comparisons it stands.
    kinds: tuple[Kind, ...] = ("eval", "close", "discovery")
    headline: tuple[Kind, ...] = ()
    compared: tuple[Kind, ...] = ()
    #: Which figures of a comparison are corrected together: the paper's, or this project's.
    family: Literal["paper", "order"] = "paper"
    #: Whether entries may be ordered by it: an oracle is best by it, and a forecast that knows
    #: nothing does not come out well.
    ranks: bool = False
    #: Whether single tasks or families have it: with an interval, as a value alone, or not at all.
    groups: Literal["interval", "value", "none"] = "interval"
    #: Metric less a figure of the rows alone: two forecasters differ in it as in that metric.
    excess_of: str = ""

    def format(self, value: float | None) -> str:
        """Show a figure with its unit, or a dash.

        >>> METRICS["speedup_recovered"].format(81.25), METRICS["ece"].format(None)
        ('81.2 %', '-')
        >>> METRICS["crps_skill"].format(-0.0001)
        '0.000'
        """
        return "-" if value is None else f"{value:z.{self.decimals}f}{self.unit}"

    @property
    def sign(self) -> int:
        """1 where lower is better, else -1: the smaller ``sign * value`` is the better figure."""
        return -1 if self.better == "higher" else 1

    def sort_key(self, value: float | None) -> tuple[bool, float]:
        """Return what figures are sorted by: the best one first, undefined ones last."""
        return value is None, self.sign * (value or 0.0)

    @property
    def per_row(self) -> bool:
        """Whether it is the mean of a value that every row has."""
        return self.name in _ROW_FORMULAS

    def compute(self, sample: RowSample) -> Floats:
        """Compute the metric in every draw of rows, mean over the repeats: shape (D,)."""
        if self.name not in sample.figures:
            if self.per_row:
                figure = sample.mean_over_rows(_ROW_FORMULAS[self.name](sample.rows))
            else:
                figure = _DRAW_FORMULAS[self.name](sample)
            sample.figures[self.name] = figure
        return sample.figures[self.name]


def _recovered(sample: RowSample, budgets: tuple[int, ...] = BUDGETS) -> Floats:
    """Average the recovery curve over budgets, which are percent of the candidates."""
    mean: Floats = sample.curve[[c - 1 for c in budgets]].mean(axis=0)
    return mean


def _pooled(sample: RowSample) -> Floats:
    """Take all rows as one candidate set."""
    everywhere = np.arange(len(sample.rows))
    return np.asarray(sample.recovered(everywhere, sample.weights, BUDGETS).mean(axis=0))


def _of_confidence(
    sample: RowSample, formula: Callable[..., Floats], **values: Floats | Bools
) -> Floats:
    """Apply a formula of confidence and one value of every parsed row, shape (R, n)."""
    rows = sample.rows
    return sample.mean(
        lambda r: formula(
            confidence=rows.confidence[r],
            weights=sample.weights * rows.parsed[r][:, None],
            **{name: value[r] for name, value in values.items()},
        )
    )


def _precision(sample: RowSample, scores: Floats, positive: Bools) -> Floats:
    """Compute the average precision of positive rows, shape (n,), by scores, shape (R, n)."""
    precision = partial(order.average_precision, positive=positive, weights=sample.weights)
    return sample.mean(lambda r: precision(scores=scores[r]))


def _average_precision(sample: RowSample, cutoff: float) -> Floats:
    """Compute the average precision of finding speedups of at least a cutoff, in x."""
    positive = sample.rows.split.speedups >= cutoff
    return _precision(sample, sample.rows.exceedance(cutoff), positive)


def _fastest_tenth(sample: RowSample) -> Floats:
    """Compute the average precision of finding a task's fastest tenth, mean over the tasks."""
    rows = sample.rows

    def precision_of(_: str, positions: Ints) -> Floats:
        positive = fastest_tenth(rows.split.speedups[positions])
        weights = sample.inside(positions)
        precision = partial(order.average_precision, positive=positive, weights=weights)
        return sample.mean(lambda r: precision(scores=rows.expected[r, positions]))

    return sample.over_tasks(precision_of)


def _lift(sample: RowSample, cutoff: float) -> Floats:
    """Compare the average precision with that of the better shortcut; NaN without one."""
    split = sample.rows.split
    precision = partial(order.average_precision, positive=split.speedups >= cutoff)
    cues = [split.row_facts.cues[name] for name in SHORTCUTS if name in split.row_facts.cues]
    if not cues:
        return np.full(sample.weights.shape[1], np.nan)
    once = np.ones((len(split), 1))
    better = max(cues, key=lambda cue: precision(scores=cue, weights=once).item())
    value = METRICS[f"average_precision_{cutoff:g}"].compute(sample)
    return value - precision(scores=better, weights=sample.weights)


def _skill(sample: RowSample) -> Floats:
    """Compare the CRPS with that of the zero: 1 is perfect."""
    value = METRICS["crps"].compute(sample)
    zero = sample.mean_over_rows(sample.rows.zero_crps[None])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(zero > 0, 1.0 - value / zero, np.nan)


def _of_probabilities(formula: Callable[..., Floats], rows: ForecastRows) -> Floats:
    """Apply a formula of the probabilities and the true bins: shape (R, n)."""
    return formula(probabilities=rows.probabilities, bins=rows.split.bins)


#: Metric -> its value for every row, shape (R, n), where the metric is the mean over the rows.
_ROW_FORMULAS: Final[dict[str, Callable[[ForecastRows], Floats | Bools]]] = {
    "forecast_error": lambda r: r.errors,
    "faster": lambda r: order.named_faster(above=r.exceedance(1.0), speedups=r.split.speedups),
    "accuracy": lambda r: r.hits,
    "within_one": lambda r: rules.within_one(predicted=r.predicted, bins=r.split.bins),
    "brier": partial(_of_probabilities, rules.brier),
    "crps": partial(_of_probabilities, rules.crps),
    "nll": partial(_of_probabilities, rules.nll),
    "entropy": lambda r: rules.entropy(probabilities=r.probabilities),
}
#: Metric -> its value in every draw of rows, mean over the repeats, where it is no such mean.
_DRAW_FORMULAS: Final[dict[str, Callable[[RowSample], Floats]]] = {
    "speedup_recovered": _recovered,
    **{f"speedup_recovered_at_{c}": partial(_recovered, budgets=(c,)) for c in BUDGETS},
    "simple_regret": lambda s: 100.0 - _recovered(s, (1,)),
    "average_precision_tenth": _fastest_tenth,
    "speedup_recovered_pooled": _pooled,
    "recovery_area": lambda s: recovery_area(curve=s.curve),
    "ece": lambda s: _of_confidence(s, calibration.ece, correct=s.rows.hits),
    "confidence_monotonicity": lambda s: _of_confidence(
        s, calibration.confidence_monotonicity, errors=s.rows.errors
    ),
    "aurc": lambda s: _of_confidence(s, calibration.aurc, losses=s.rows.errors),
    "crps_skill": _skill,
    "pair_accuracy": lambda s: s.pair_accuracy(close=False),
    "close_pairs": lambda s: s.pair_accuracy(close=True),
    **{f"average_precision_{x:g}": partial(_average_precision, cutoff=x) for x in order.CUTOFFS},
    "average_precision_failures": lambda s: _precision(
        s, -s.rows.exceedance(1.0), s.rows.split.speedups < 1.0
    ),
    **{f"lift_{x:g}": partial(_lift, cutoff=x) for x in order.CUTOFFS},
}
_STATED: Final = toml_beside(__file__)
#: Name -> metric, in the order in which they are shown.
METRICS: Final = {
    name: msgspec.convert({"name": name, **entry}, MetricInfo) for name, entry in _STATED.items()
}


def metrics_of(kind: Kind) -> dict[str, MetricInfo]:
    """List the metrics that a kind of split has."""
    return {name: metric for name, metric in METRICS.items() if kind in metric.kinds}


#: Kind of split -> its headline metrics in the paper.
HEADLINE: Final[dict[Kind, tuple[str, ...]]] = {
    kind: tuple(name for name, metric in METRICS.items() if kind in metric.headline)
    for kind in get_args(Kind)
}
#: Kind of split -> the metrics of its comparisons; Holm's correction is over these.
COMPARED: Final[dict[Kind, tuple[str, ...]]] = {
    kind: (*HEADLINE[kind], *(name for name, metric in METRICS.items() if kind in metric.compared))
    for kind in HEADLINE
}


def shown_first(split: SplitSpec) -> tuple[str, ...]:
    """List what is shown first of a split: its headline figure, close pairs, the paper's figures.

    >>> from kernel_archive.splits import SPLITS
    >>> shown_first(SPLITS["eval_search"])[:3]
    ('pair_accuracy', 'close_pairs', 'speedup_recovered')
    """
    return (split.lead, *(["close_pairs"] if split.kind == "eval" else []), *HEADLINE[split.kind])


def rankings_of(split: SplitSpec) -> tuple[str, ...]:
    """List what entries of a split may be ordered by, its headline figure first."""
    names = [name for name, metric in metrics_of(split.kind).items() if metric.ranks]
    return tuple(dict.fromkeys([split.lead, *names]))
