"""Compute controls and bounds: what can be had without reading, what can be had at all.

A **control** goes by one cue on the surface of the programs, or by none. A figure that does not
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
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.ids import program_id
from kernel_archive.program_text import LANGUAGE_ORDER, language_of
from kernel_archive.scoring.arrays import group_ties
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.rules import crps
from kernel_archive.scoring.split import Surface, table_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.split import Split
    from kernel_archive.splits import SplitSpec

_PROSE: Final = re.compile(
    r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|#(?!include|define|pragma)[^\n]*|//[^\n]*|/\*[\s\S]*?\*/'
)
# Plain texts, counted: a pattern with alternatives is far slower, and a cue need not be exact.
_KEYWORDS: Final = (
    *("tl.dot", "num_warps", "num_stages", "autotune", "constexpr", "wmma", "mma_sync", "unroll"),
    *("__launch_bounds__", "__ldg", "__shfl", "__shared__", "cp_async", "float4", "half2"),
    *("multiple_of", "max_contiguous"),
)
_LOOPS: Final = ("for ", "for(", "while ", "while(")
_LAUNCHES: Final = ("](", "<<<")
_MATRIX: Final = ("tl.dot", "wmma", "mma_sync")
_NARROW: Final = ("float16", "bfloat16", "tf32", "half", "float8", "fp8")


def _count(code: str, words: tuple[str, ...]) -> float:
    return float(sum(map(code.count, words)))


def _three_rules(code: str) -> float:
    """Give a point each for matrix units, a single launch, and narrow numbers."""
    single = _count(code, _LAUNCHES) == 1
    return float((_count(code, _MATRIX) > 0) + single + (_count(code, _NARROW) > 0))


def _comment_characters(code: str) -> float:
    return float(sum(map(len, _PROSE.findall(code))))


def _language(code: str) -> float:
    return float(LANGUAGE_ORDER.index(language_of(code)))


#: Cue of a program -> what it is, and its value; its direction is for the controls to find out.
CUES: Final[dict[str, tuple[str, Callable[[str], float]]]] = {
    "code_length": ("characters of the program", lambda code: float(len(code))),
    "comment_characters": ("characters of comments and docstrings", _comment_characters),
    "language": ("the language of the program", _language),
    "keywords": ("words of tuning, counted", partial(_count, words=_KEYWORDS)),
    "loops": ("for and while, counted", partial(_count, words=_LOOPS)),
    "launches": ("places that launch a kernel, counted", partial(_count, words=_LAUNCHES)),
    "three_rules": ("matrix units, one launch, narrow numbers: a point each", _three_rules),
}
#: Multiprocessors of an H100 or H200: a launch of fewer blocks leaves some idle.
MULTIPROCESSORS: Final = 132
#: Cue of a dry run -> what it is, where the archive has the table ``launches``.
LAUNCH_CUES: Final[dict[str, str]] = {
    "launch_idle": f"sum over launches of max(1, {MULTIPROCESSORS} / blocks), from the dry run"
}
#: Cue of an edit -> what it is: a slow parent is easily improved, another language is a big step.
EDIT_CUES: Final[dict[str, str]] = {
    "parent_speedup": "the parent's speedup, the slowest first",
    "language_change": "whether parent and child are of different languages",
    "length_change": "characters of the child over those of the parent",
}
#: Cue of the same program on another GPU -> what it is.
TRANSFER_CUES: Final[dict[str, str]] = {"same": "the measured speedup on the other GPU"}

#: What knows more than a forecaster may: goals, which are none of the question, or labels.
BOUNDS: Final = ("goal", "oracle_bins", "oracle_speedups")
#: Strengths of a cue that are tried: correlations of the copula.
STRENGTHS: Final = tuple(round(0.1 * i, 1) for i in range(-9, 10))
#: Of a kernel this many measurements count for what one more measurement would give.
MAX_MEASURED: Final = 5
#: Of a larger task this many rows, evenly spaced, decide on a strength.
_MAX_FITTED: Final = 300


@dataclass(frozen=True, eq=False, kw_only=True)
class Control:
    """Hold one control or bound."""

    name: str
    title: str  # what it goes by, for people
    bound: bool  # whether it knows the labels
    forecasts: Forecasts


@cache
def _normal_table() -> tuple[Floats, Floats]:
    """The normal distribution function as a table, to six decimals."""
    x = np.linspace(-9.0, 9.0, 3601)
    return x, np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x.tolist()])


def _quantile(shares: Floats) -> Floats:
    """Invert the normal distribution function; infinite at 0 and 1."""
    law, ends = NormalDist(), {0.0: -math.inf, 1.0: math.inf}
    inner = np.clip(shares, 0.0, 1.0).tolist()
    return np.array([ends[s] if s in ends else law.inv_cdf(s) for s in inner])


def normal_scores(cue: Floats) -> Floats:
    """Normal scores of the mean ranks of rows by a value, shape (n,); rows that tie share one."""
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
    at = (edges - strength * scores[:, None]) / math.sqrt(1.0 - strength * strength)
    return np.interp(at, *_normal_table())


def to_bins(cumulative: Floats) -> Floats:
    """Probabilities of the eight bins from cumulative ones: shape (n, 8)."""
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
    out = np.empty((len(split), N_BINS))
    for task, rows in split.task_rows.items():
        best = STRENGTHS[int(np.argmin(total - losses[task]))]
        strength = best if len(losses) > 1 else 0.0
        out[rows] = to_bins(spread_ranks(scores[task], cumulative, strength))
    return out


def _frequencies(split: Split) -> Floats:
    return np.bincount(split.bins, minlength=N_BINS + 1)[1:] / len(split)


def controls_of(split: Split) -> tuple[Control, ...]:
    """Make the controls and bounds of a split's rows, bounds last."""
    n, surface = len(split), split.surface
    titles = {name: title for name, (title, _) in CUES.items()}
    titles |= EDIT_CUES | LAUNCH_CUES | TRANSFER_CUES
    certain = np.eye(N_BINS)[split.bins - 1]
    no_cue = "the split's bin frequencies for every row: a random order"
    masses = {
        "uniform": ("an eighth for every bin: the unedited template", np.full((n, N_BINS), 0.125)),
        "frequencies": (no_cue, np.tile(_frequencies(split), (n, 1))),
    }
    masses |= {name: (titles[name], by_cue(cue, split)) for name, cue in surface.cues.items()}
    if split.zero is not None:
        title = f"the zero of CRPS skill: the baseline {split.zero.name}, from training programs"
        masses[zero_name(split)] = title, split.zero.probabilities
    if surface.goals is not None:
        goals = np.nan_to_num(surface.goals, nan=float(np.nanmean(surface.goals)))
        title = "the range of speedups that the author was told to land in"
        masses["goal"] = title, by_cue(goals, split)
    masses["oracle_bins"] = "certain of every true bin", certain
    masses["oracle_speedups"] = "the same, and states every measured speedup", certain
    controls = []
    for name, (title, p) in masses.items():
        stated = split.speedups if name == "oracle_speedups" else None
        cast = Forecasts.from_arrays(split, p, name=name, expected_speedups=stated)
        controls.append(Control(name=name, title=title, bound=name in BOUNDS, forecasts=cast))
    return tuple(controls)


def zero_name(split: Split) -> str:
    """Name the control that a skill of 0 stands for; empty where none is fixed."""
    return split.zero.name.replace("-", "_") if split.zero is not None else ""


def best_control(split: Split) -> tuple[str, Floats]:
    """Find the cue with the least CRPS, and return its CRPS of every row, shape (n,)."""
    losses = {
        c.name: crps(probabilities=c.forecasts.probabilities[0], bins=split.bins)
        for c in split.once(controls_of)
        if not c.bound and c.name != zero_name(split)
    }
    name = min(losses, key=lambda control: (float(losses[control].mean()), control))
    return name, losses[name]


def zero_of(split: Split) -> tuple[str, Floats]:
    """Return what a skill of 0 stands for, and its CRPS of every row: the best cue if not fixed."""
    if split.zero is None:
        return split.once(best_control)
    return zero_name(split), crps(probabilities=split.zero.probabilities, bins=split.bins)


def read_surface(archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]) -> Surface:
    """Read the surface of rows from their columns, and from the archive's kernels and dry runs."""
    codes = rows[spec.candidate]
    cues = _read_cues(archive, codes, rows[spec.problem_column])
    languages = tuple(map(language_of, codes))
    surface = replace(Surface.plain(len(codes)), languages=languages, cues=cues)
    if spec.known:
        cues["same"] = np.array(rows[spec.known], np.float64)
    if spec.kind == "eval":
        columns = ("speedup_min", "speedup_max", "goal_bin")
        low, high, goals = _of_kernels(archive, rows[spec.kernel], columns)
        # The row's own columns, where it has them: withheld kernels are in no other table.
        own_low, own_high = (np.array(rows[name], np.float64) for name in columns[:2])
        return replace(
            surface,
            spreads=_spread(own_low, own_high, unknown=_spread(low, high)),
            goals=None if np.isnan(goals).all() else goals,
            measured=_repeated(archive, rows[spec.kernel]),
        )
    anchors = rows[spec.anchor]
    if spec.kind == "close":  # what the second program has more than the first one
        first = _read_cues(archive, anchors, rows[spec.task])
        cues = {name: cue - first[name] for name, cue in cues.items()}
        own, of_first = (_repeated(archive, rows[n]) for n in (spec.kernel, "first_kernel_id"))
        measured = None if own is None or of_first is None else own / of_first
        return replace(surface, cues=cues, measured=measured)
    changed = [
        language_of(code) != language for code, language in zip(anchors, languages, strict=True)
    ]
    cues["language_change"] = np.array(changed, np.float64)
    lengths = np.array([[len(code) + 1.0 for code in side] for side in (codes, anchors)])
    cues["length_change"] = np.log(lengths[0] / lengths[1])
    (parents,) = _of_kernels(archive, rows["parent_kernel_id"], ("speedup",))
    if not np.isnan(parents).any():
        cues["parent_speedup"] = -parents
    return surface


def _read_cues(
    archive: Archive, codes: Sequence[str], problems: Sequence[str]
) -> dict[str, Floats]:
    """Compute the cues of programs: name -> shape (n,)."""
    cues = {name: np.array([rule(code) for code in codes]) for name, (_, rule) in CUES.items()}
    idle = launch_idle(archive, codes, problems)
    return cues if idle is None else cues | {"launch_idle": idle}


def launch_idle(archive: Archive, codes: Sequence[str], problems: Sequence[str]) -> Floats | None:
    """Sum max(1, multiprocessors / blocks) over what each program launches, mean over its cases.

    Shape (n,); a program that the dry run did not follow has the median. ``None`` without dry runs.
    """
    columns = ("program_id", "problem", "case", "kind", "n", "grid_x", "grid_y", "grid_z")
    #: Program and problem -> case -> sum over its launches.
    sums: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for program, problem, case, kind, n, *grid in table_rows(archive, "launches", *columns):
        if kind == "launch":
            blocks = math.prod(max(1, side or 1) for side in grid)
            sums[program, problem][case] += n * max(1.0, MULTIPROCESSORS / blocks)
    if not sums:
        return None
    programs = [(program_id(c), problem) for c, problem in zip(codes, problems, strict=True)]
    values = np.array([np.mean([*sums[p].values()]) if p in sums else np.nan for p in programs])
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), np.median(known), values) if len(known) else None


def _of_kernels(archive: Archive, kernels: Sequence[str], columns: Sequence[str]) -> Floats:
    """Look up columns of the table ``kernels``: shape (columns, n), NaN where one is not there."""
    known = {name: row for name, *row in table_rows(archive, "kernels", "kernel_id", *columns)}
    rows = [known.get(name, [None] * len(columns)) for name in kernels]
    return np.array(rows, np.float64).reshape(-1, len(columns)).T


def _repeated(archive: Archive, kernels: Sequence[str]) -> Floats | None:
    """Return the first measured speedups of kernels: shape (n, k); ``None`` without any."""
    speedups: dict[str, list[float]] = {name: [] for name in kernels}
    columns = ("kernel_id", "speedup", "excluded")
    for name, speedup, excluded in table_rows(archive, "evaluations", *columns):
        if name in speedups and speedup and not excluded:
            speedups[name].append(speedup)
    first = [speedups[name][:MAX_MEASURED] for name in kernels]
    out = np.array([row + [np.nan] * (MAX_MEASURED - len(row)) for row in first])
    return None if np.isnan(out).all() else out


def _spread(low: Floats, high: Floats, unknown: Floats | float = 1.0) -> Floats:
    """Divide the largest by the smallest measurement, where there are both."""
    return np.where((low > 0) & (high > 0), high / low, unknown)
