"""Controls and bounds beside every score: what can be had without reading, and what can be had at all.

A **control** goes by one cue on the surface of the programs, or by none. A figure that does not beat the best of them
shows no understanding. Nothing is trained on programs; still a control is given more than a forecaster has, so that
beating it means something:

* its bin probabilities start from the bin frequencies of the whole split, which are published with it;
* it ranks the rows of a task by its cue and spreads these ranks over the frequencies by a Gaussian copula;
* the strength of the copula, and with it the direction of the cue, is the one with the least CRPS on the *other tasks of
  the split*, with their labels. So no row's label makes its own forecast. With a single task the strength is 0.

Rows that a control can't tell apart tie, and ties count with their expectation: a constant is a random order.

A **bound** knows the labels: ``oracle_bins`` is certain of every true bin, ``oracle_speedups`` also states the
measured speedups. Neither controls nor bounds take part in a ranking.

The cues are what can be seen of a split's rows, their surface, without understanding any: nothing runs a program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.program_text import LANGUAGE_ORDER, language_of
from kernel_archive.scoring.arrays import group_ties
from kernel_archive.scoring.forecasts import Forecasts, crps
from kernel_archive.scoring.target import Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.scoring.target import Target
    from kernel_archive.splits import Split

_PROSE: Final = re.compile(
    r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|#(?!include|define|pragma)[^\n]*|//[^\n]*|/\*[\s\S]*?\*/'
)
# Plain texts, counted: a pattern with alternatives takes a hundred times as long, and a cue need not be exact.
_KEYWORDS: Final = (
    "tl.dot", "num_warps", "num_stages", "autotune", "constexpr", "wmma", "mma_sync", "__launch_bounds__", "unroll", "float4",
    "half2", "__ldg", "__shfl", "__shared__", "cp_async", "multiple_of", "max_contiguous",
)  # fmt: skip
_LOOPS: Final = ("for ", "for(", "while ", "while(")
_LAUNCHES: Final = ("](", "<<<")
_MATRIX: Final = ("tl.dot", "wmma", "mma_sync")
_NARROW: Final = ("float16", "bfloat16", "tf32", "half", "float8", "fp8")


def _count(code: str, words: tuple[str, ...]) -> float:
    return float(sum(map(code.count, words)))


def _three_rules(code: str) -> float:
    """One point each: it uses matrix units, it launches from one place only, it has a narrow type of number."""
    narrow = any(word in code for word in _NARROW)
    return float(any(word in code for word in _MATRIX)) + float(_count(code, _LAUNCHES) == 1) + float(narrow)


#: Cue of a program -> what it is, and its value: in which direction it goes with speed is for the controls to find out.
CUES: Final[dict[str, tuple[str, Callable[[str], float]]]] = {
    "code_length": ("characters of the program", lambda code: float(len(code))),
    "comment_characters": ("characters of comments and docstrings", lambda code: float(sum(map(len, _PROSE.findall(code))))),
    "language": ("the language of the program", lambda code: float(LANGUAGE_ORDER.index(language_of(code)))),
    "keywords": ("words of tuning, counted", lambda code: _count(code, _KEYWORDS)),
    "loops": ("for and while, counted", lambda code: _count(code, _LOOPS)),
    "launches": ("places that launch a kernel, counted", lambda code: _count(code, _LAUNCHES)),
    "three_rules": ("matrix units, one launch, narrow numbers: a point each", _three_rules),
}  # fmt: skip
#: Cue of an edit -> what it is. A slow parent is easily improved; a change of language seldom is a small step.
EDIT_CUES: Final[dict[str, str]] = {
    "parent_speedup": "the parent's speedup, the slowest first",
    "language_change": "whether parent and child are of different languages",
    "length_change": "characters of the child over those of the parent",
}

#: Strengths of a cue that are tried: correlations of the copula.
STRENGTHS: Final = tuple(round(0.1 * i, 1) for i in range(-9, 10))
#: So many rows of a task, evenly spaced, decide on a strength.
_FITTED: Final = 300


@dataclass(frozen=True, eq=False, kw_only=True)
class Control:
    """One control or bound.

    Attributes:
        name: key in score records.
        title: what it goes by, for people.
        bound: whether it knows the labels.
        forecasts: what it forecasts.
    """

    name: str
    title: str
    bound: bool
    forecasts: Forecasts


@cache
def _normal_table() -> tuple[Floats, Floats]:
    """The normal distribution function, by table: to six decimals."""
    x = np.linspace(-9.0, 9.0, 3601)
    return x, np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x.tolist()])


def _quantile(shares: Floats) -> Floats:
    """Its inverse; infinite at 0 and 1."""
    law = NormalDist()
    return np.array([law.inv_cdf(s) if 0.0 < s < 1.0 else math.copysign(math.inf, s - 0.5) for s in shares.tolist()])


def normal_scores(cue: Floats) -> Floats:
    """Normal scores of the mean ranks of rows by a value: shape (n,); rows that tie share one."""
    ties = group_ties(cue)
    sizes = np.bincount(ties)
    middle = np.cumsum(sizes) - 0.5 * sizes
    return _quantile(middle / len(cue))[ties]


def spread_ranks(scores: Floats, cumulative: Floats, strength: float) -> Floats:
    """Cumulative bin probabilities of rows with these normal scores, by a Gaussian copula: shape (n, 7).

    Averaged over rows of evenly spread ranks they are the ``cumulative`` frequencies, shape (7,), again, whatever the
    strength: the correlation of the copula, above -1 and below 1.
    """
    edges = _quantile(cumulative)
    return np.interp((edges - strength * scores[:, None]) / math.sqrt(1.0 - strength * strength), *_normal_table())


def to_bins(cumulative: Floats) -> Floats:
    """Probabilities of the eight bins from cumulative ones: shape (n, 8)."""
    n = len(cumulative)
    return np.maximum(np.diff(cumulative, axis=1, prepend=np.zeros((n, 1)), append=np.ones((n, 1))), 0.0)


def by_cue(cue: Floats, bins: Ints, tasks: Mapping[str, Ints], cumulative: Floats) -> Floats:
    """Forecasts by a cue, the strength for each task from the others: shape (n, 8)."""
    scores = {task: normal_scores(cue[at]) for task, at in tasks.items()}
    losses: dict[str, Floats] = {}
    for task, at in tasks.items():
        some = np.arange(len(at)) if len(at) <= _FITTED else np.linspace(0, len(at) - 1, _FITTED).astype(np.intp)
        below = bins[at][some, None] <= np.arange(1, N_BINS)
        spread = (spread_ranks(scores[task][some], cumulative, rho) for rho in STRENGTHS)
        losses[task] = np.array([((found - below) ** 2).mean() * len(at) for found in spread])
    total = np.sum(list(losses.values()), axis=0)
    out = np.empty((len(bins), N_BINS))
    for task, at in tasks.items():
        others = total - losses[task]
        strength = STRENGTHS[int(np.argmin(others))] if len(tasks) > 1 else 0.0
        out[at] = to_bins(spread_ranks(scores[task], cumulative, strength))
    return out


def controls_of(target: Target) -> tuple[Control, ...]:
    """The controls and bounds of a split's rows, bounds last."""
    n = len(target)
    counts = np.bincount(target.bins, minlength=N_BINS + 1)[1:]
    cumulative = np.cumsum(counts)[:-1] / n
    titles = {name: title for name, (title, _) in CUES.items()} | EDIT_CUES
    certain = np.eye(N_BINS)[target.bins - 1]
    out: list[Control] = []

    def add(name: str, title: str, p: Floats, *, bound: bool = False, speedups: Floats | None = None) -> None:
        cast = Forecasts.from_arrays(target, p, name=name, expected_speedups=speedups)
        out.append(Control(name=name, title=title, bound=bound, forecasts=cast))

    add("uniform", "an eighth for every bin: the unedited template", np.full((n, N_BINS), 1.0 / N_BINS))
    add("frequencies", "the split's bin frequencies for every row: a random order", np.tile(counts / n, (n, 1)))
    for name, cue in target.surface.cues.items():
        add(name, titles[name], by_cue(cue, target.bins, target.task_rows, cumulative))
    add("oracle_bins", "certain of every true bin", certain, bound=True)
    title = "the same, and states every measured speedup"
    add("oracle_speedups", title, certain, bound=True, speedups=target.speedups)
    return tuple(out)


def best_control(target: Target) -> tuple[str, Floats]:
    """The control with the least CRPS, and the CRPS of every row by it, shape (n,): what CRPS skill is measured against."""
    rows = {
        c.name: crps(probabilities=c.forecasts.probabilities[0], bins=target.bins)
        for c in target.once(controls_of)
        if not c.bound
    }
    name = min(rows, key=lambda key: (float(rows[key].mean()), key))
    return name, rows[name]


def surface_columns(split: Split) -> tuple[str, ...]:
    """The columns of a split's table that :func:`read_surface` reads."""
    more = (split.anchor, "parent_kernel_id") if split.kind == "discovery" else ("speedup_min", "speedup_max")
    return (split.candidate, split.kernel, *more)


def read_surface(archive: Archive, split: Split, rows: Mapping[str, Sequence[Any]]) -> Surface:
    """The surface of a split's rows, from its own columns (column -> values, :func:`surface_columns` among them).

    Where the archive has them, the kernels' measurements are used, too.
    """
    candidates = rows[split.candidate]
    languages = tuple(map(language_of, candidates))
    cues = {name: np.array([rule(code) for code in candidates]) for name, (_, rule) in CUES.items()}
    measured = _measurements(archive)
    spreads = [measured.get(name, (np.nan, 1.0))[1] for name in rows[split.kernel]]
    if split.kind == "eval":
        # The row's own columns, where it has them: withheld kernels are in no other table.
        spreads = list(map(_spread, rows["speedup_min"], rows["speedup_max"], spreads))
    changed: Bools | None = None
    if split.kind == "discovery":
        anchors = rows[split.anchor]
        changed = np.array([language_of(a) != b for a, b in zip(anchors, languages, strict=True)], dtype=bool)
        cues["language_change"] = changed.astype(np.float64)
        lengths = zip(map(len, anchors), map(len, candidates), strict=True)
        cues["length_change"] = np.array([np.log((child + 1) / (parent + 1)) for parent, child in lengths])
        parents = np.array([measured.get(name, (np.nan, 1.0))[0] for name in rows["parent_kernel_id"]])
        if len(parents) and not np.isnan(parents).any():
            cues["parent_speedup"] = -parents
    return Surface(languages=languages, spreads=np.array(spreads), cues=cues, changed=changed)


def _measurements(archive: Archive) -> dict[str, tuple[float, float]]:
    """Kernel id -> its speedup, and its largest over its smallest measurement."""
    if "kernels" not in archive.manifest.tables:
        return {}
    table = archive.arrow("kernels", columns=["kernel_id", "speedup", "speedup_min", "speedup_max"])
    kernels, speedups, lows, highs = (column.to_pylist() for column in table.columns)
    return dict(zip(kernels, zip(speedups, map(_spread, lows, highs), strict=True), strict=True))


def _spread(low: float | None, high: float | None, unknown: float = 1.0) -> float:
    """The largest over the smallest measurement."""
    return high / low if low and high and low > 0 else unknown
