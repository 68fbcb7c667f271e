"""Read the surface of programs: cues that need no understanding, and what was measured of the rows.

Cues are numbers that a text, an edit or a dry run has. Which way a cue points is for the controls
to find out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.ids import program_id
from kernel_archive.program_text import LANGUAGE_ORDER, language_of
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.split import Surface, table_rows
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


#: Cue of a program -> what it is, and its value; its direction is for the controls to find out.
CUES: Final[dict[str, tuple[str, Callable[[str], float]]]] = {
    "code_length": ("characters of the program", lambda code: float(len(code))),
    "comment_characters": (
        "characters of comments and docstrings",
        lambda code: float(sum(map(len, _PROSE.findall(code)))),
    ),
    "language": (
        "the language of the program",
        lambda code: float(LANGUAGE_ORDER.index(language_of(code))),
    ),
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
#: Of a kernel this many measurements count for what one more measurement would give.
MAX_MEASURED: Final = 5


def read_surface(archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]) -> Surface:
    """Read the surface of rows from their columns, and from the archive's kernels and dry runs."""
    codes = rows[spec.candidate]
    cues = _read_cues(archive, codes, rows[spec.problem])
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
    if spec.kind == "validity":
        return surface
    anchors = rows[spec.anchor]
    if spec.kind == "close":  # what the second program has more than the first one
        first = _read_cues(archive, anchors, rows[spec.task])
        cues = {name: cue - first[name] for name, cue in cues.items()}
        of_second, of_first = (
            _repeated(archive, rows[n]) for n in (spec.kernel, spec.anchor_kernel)
        )
        measured = None if of_second is None or of_first is None else of_second / of_first
        return replace(surface, cues=cues, measured=measured)
    changed = [
        language_of(code) != language for code, language in zip(anchors, languages, strict=True)
    ]
    cues["language_change"] = np.array(changed, np.float64)
    lengths = np.array([[len(code) + 1.0 for code in side] for side in (codes, anchors)])
    cues["length_change"] = np.log(lengths[0] / lengths[1])
    (parents,) = _of_kernels(archive, rows[spec.anchor_kernel], ("speedup",))
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
    sums = _idle_sums(archive)
    if not sums:
        return None
    programs = [(program_id(c), problem) for c, problem in zip(codes, problems, strict=True)]
    values = np.array([np.mean([*sums[p].values()]) if p in sums else np.nan for p in programs])
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), np.median(known), values) if len(known) else None


@lru_cache(maxsize=1)  # read once for all splits
def _idle_sums(archive: Archive) -> dict[tuple[str, str], dict[int, float]]:
    """Map program and problem to the sum over the launches of each case."""
    columns = ("program_id", "problem", "case", "kind", "n", "grid_x", "grid_y", "grid_z")
    sums: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for program, problem, case, kind, n, *grid in table_rows(archive, "launches", *columns):
        if kind == "launch":
            blocks = math.prod(max(1, side or 1) for side in grid)
            sums[program, problem][case] += n * max(1.0, MULTIPROCESSORS / blocks)
    return sums


def _of_kernels(archive: Archive, kernels: Sequence[str], columns: Sequence[str]) -> Floats:
    """Look up columns of the table ``kernels``: shape (columns, n), NaN where one is not there."""
    known = {name: row for name, *row in table_rows(archive, "kernels", "kernel_id", *columns)}
    rows = [known.get(name, [None] * len(columns)) for name in kernels]
    return np.array(rows, np.float64).reshape(-1, len(columns)).T


def _repeated(archive: Archive, kernels: Sequence[str]) -> Floats | None:
    """Return the first measured speedups of kernels: shape (n, k); ``None`` without any."""
    speedups = archive.measurements
    first = [speedups.get(name, [])[:MAX_MEASURED] for name in kernels]
    table = np.array([row + [np.nan] * (MAX_MEASURED - len(row)) for row in first])
    return None if np.isnan(table).all() else table


def _spread(low: Floats, high: Floats, unknown: Floats | float = 1.0) -> Floats:
    """Divide the largest by the smallest measurement, where there are both."""
    return np.where((low > 0) & (high > 0), high / low, unknown)
