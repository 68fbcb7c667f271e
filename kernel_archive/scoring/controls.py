"""Compute controls and bounds: what can be had without reading, what can be had at all.

A **control** uses one cue on the surface of the programs, or no cue. A figure that does not
beat the best of them shows no understanding. A control is given more than a forecaster has:

* its bin probabilities start from the bin frequencies of the whole split;
* it ranks the rows of a task by its cue and spreads the ranks over the frequencies by a Gaussian
  copula;
* the strength of the copula, and with it the direction of the cue, has the least CRPS on the *other
  tasks of the split*, so that no label makes its own forecast. With a single task it is 0.

Rows that a control can't tell apart tie: a constant is a random order. A **bound** knows more:
``goal`` what the author was told to reach, ``oracle_bins`` every true bin, ``oracle_speedups``
every speedup, too. Neither is ranked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.scoring.arrays import Floats, group_ties
from kernel_archive.scoring.cues import CUES, EDIT_CUES, LAUNCH_CUES, TRANSFER_CUES
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.rules import crps
from kernel_archive.scoring.split import Split

#: Names of the bounds, which know what no question shows: goals or labels.
BOUNDS: Final = ("goal", "oracle_bins", "oracle_speedups")
#: Strengths of a cue that are tried: correlations of the copula.
STRENGTHS: Final = tuple(round(0.1 * i, 1) for i in range(-9, 10))
#: Of a larger task this many rows, evenly spaced, decide on a strength.
_MAX_FITTED: Final = 300


@dataclass(frozen=True, eq=False, kw_only=True)
class Control:
    """One control or bound."""

    name: str
    title: str  # the cue that it uses, for people
    bound: bool  # whether it knows the labels
    forecasts: Forecasts


@cache
def _normal_table() -> tuple[Floats, Floats]:
    """Tabulate the normal distribution function, to six decimals."""
    x = np.linspace(-9.0, 9.0, 3601)
    return x, np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x.tolist()])


def _quantile(shares: Floats) -> Floats:
    """Invert the normal distribution function; infinite at 0 and 1."""
    law, ends = NormalDist(), {0.0: -math.inf, 1.0: math.inf}
    inner = np.clip(shares, 0.0, 1.0).tolist()
    return np.array([ends[s] if s in ends else law.inv_cdf(s) for s in inner])


def normal_scores(cue: Floats) -> Floats:
    """Compute normal scores of the rows' mean ranks by a value: (n,); rows that tie share one."""
    ties = group_ties(cue)
    sizes = np.bincount(ties)
    middle = np.cumsum(sizes) - 0.5 * sizes
    return _quantile(middle / len(cue))[ties]


def spread_ranks(scores: Floats, cumulative: Floats, strength: float) -> Floats:
    """Spread rows with normal scores over bins, by a Gaussian copula: shape (n, 7), cumulative.

    Averaged over evenly spread ranks they are the ``cumulative`` frequencies, shape (7,), again,
    whatever the strength: the correlation of the copula, above -1 and below 1.
    """
    edges = _quantile(cumulative)
    quantiles = (edges - strength * scores[:, None]) / math.sqrt(1.0 - strength * strength)
    return np.interp(quantiles, *_normal_table())


def to_bins(cumulative: Floats) -> Floats:
    """Turn cumulative probabilities into those of the eight bins: shape (n, 8)."""
    n = len(cumulative)
    steps = np.diff(cumulative, axis=1, prepend=np.zeros((n, 1)), append=np.ones((n, 1)))
    return np.maximum(steps, 0.0)


def by_cue(cue: Floats, split: Split) -> Floats:
    """Forecast by a cue, the strength for each task from the others: shape (n, 8)."""
    cumulative = np.cumsum(_frequencies(split))[:-1]
    scores = {task: normal_scores(cue[rows]) for task, rows in split.task_rows.items()}
    losses: dict[str, Floats] = {}
    for task, rows in split.task_rows.items():
        n = len(rows)
        fitted = np.linspace(0, n - 1, min(n, _MAX_FITTED)).astype(np.intp)
        below = split.bins[rows][fitted, None] <= np.arange(1, N_BINS)
        spread = (spread_ranks(scores[task][fitted], cumulative, rho) for rho in STRENGTHS)
        losses[task] = np.array([((p - below) ** 2).mean() * n for p in spread])
    total = np.sum(list(losses.values()), axis=0)
    probabilities = np.empty((len(split), N_BINS))
    for task, rows in split.task_rows.items():
        best = STRENGTHS[int(np.argmin(total - losses[task]))]
        strength = best if len(losses) > 1 else 0.0
        probabilities[rows] = to_bins(spread_ranks(scores[task], cumulative, strength))
    return probabilities


def _frequencies(split: Split) -> Floats:
    return np.bincount(split.bins, minlength=N_BINS + 1)[1:] / len(split)


def controls_of(split: Split) -> tuple[Control, ...]:
    """Make the controls and bounds of a split's rows, bounds last."""
    n, row_facts = len(split), split.row_facts
    titles = {name: title for name, (title, _) in CUES.items()}
    titles |= EDIT_CUES | LAUNCH_CUES | TRANSFER_CUES
    certain = np.eye(N_BINS)[split.bins - 1]
    no_cue = "the split's bin frequencies for every row: a random order"
    if split.spec.asks_outcome:
        no_cue = "the split's share of programs that pass for every row: a random order"
    titled = {
        "uniform": ("even odds: the unedited template", np.tile(split.uniform, (n, 1))),
        "frequencies": (no_cue, np.tile(_frequencies(split), (n, 1))),
    }
    titled |= {name: (titles[name], by_cue(cue, split)) for name, cue in row_facts.cues.items()}
    if split.zero is not None:
        title = f"the zero of CRPS skill: the baseline {split.zero.name}, from training programs"
        titled[zero_name(split)] = title, split.zero.probabilities
    if row_facts.goals is not None:
        goals = np.nan_to_num(row_facts.goals, nan=float(np.nanmean(row_facts.goals)))
        title = "the range of speedups that the author was told to land in"
        titled["goal"] = title, by_cue(goals, split)
    titled["oracle_bins"] = "certain of every true bin", certain
    titled["oracle_speedups"] = "the same, and states every measured speedup", certain
    controls = []
    for name, (title, probabilities) in titled.items():
        stated = split.speedups if name == "oracle_speedups" else None
        forecasts = Forecasts.from_arrays(split, probabilities, name=name, expected_speedups=stated)
        controls.append(Control(name=name, title=title, bound=name in BOUNDS, forecasts=forecasts))
    return tuple(controls)


def zero_name(split: Split) -> str:
    """Name the control that a skill of 0 stands for; empty where none is fixed."""
    return split.zero.name.replace("-", "_") if split.zero is not None else ""


def best_cue(split: Split) -> tuple[str, Floats]:
    """Find the cue with the least CRPS, and return its CRPS of every row, shape (n,)."""
    losses = {
        c.name: crps(probabilities=c.forecasts.probabilities[0], bins=split.bins)
        for c in split.cached(controls_of)
        if not c.bound and c.name != zero_name(split)
    }
    name = min(losses, key=lambda control: (float(losses[control].mean()), control))
    return name, losses[name]


def zero_of(split: Split) -> tuple[str, Floats]:
    """Return the control that a skill of 0 stands for, and its CRPS of every row, shape (n,).

    Where none is fixed it is the best cue; of two outcomes the base rate.
    """
    if split.zero is not None:
        name, p = zero_name(split), split.zero.probabilities
    elif split.spec.asks_outcome:
        name, p = "frequencies", np.tile(_frequencies(split), (len(split), 1))
    else:
        return split.cached(best_cue)
    return name, crps(probabilities=p, bins=split.bins)
