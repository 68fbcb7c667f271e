"""Read the surface of programs: cues that need no understanding, and what was measured of the rows.

Cues are numbers that a text, an edit or a dry run has. Which way a cue points is for the controls
to find out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.gpus import gpu_facts
from kernel_archive.ids import program_id
from kernel_archive.program_text import LANGUAGE_ORDER, language_of
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.split import RowFacts, table_rows
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


def _count(code: str, words: tuple[str, ...]) -> int:
    return sum(map(code.count, words))


def _three_rules(code: str) -> int:
    """Give a point each for matrix units, a single launch, and narrow numbers."""
    single = _count(code, _LAUNCHES) == 1
    return (_count(code, _MATRIX) > 0) + single + (_count(code, _NARROW) > 0)


def _comment_characters(code: str) -> int:
    return sum(map(len, _PROSE.findall(code)))


#: Cue of a program -> what it is, and its value; its direction is for the controls to find out.
CUES: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "code_length": ("characters of the program", len),
    "comment_characters": ("characters of comments and docstrings", _comment_characters),
    "language": ("the language of the program", lambda c: LANGUAGE_ORDER.index(language_of(c))),
    "keywords": ("words of tuning, counted", partial(_count, words=_KEYWORDS)),
    "loops": ("for and while, counted", partial(_count, words=_LOOPS)),
    "launches": ("places that launch a kernel, counted", partial(_count, words=_LAUNCHES)),
    "three_rules": ("matrix units, one launch, narrow numbers: a point each", _three_rules),
}
#: Cue of a dry run -> what it is, where the archive has the table ``launches``.
LAUNCH_CUES: Final[dict[str, str]] = {
    "launch_idle": "sum over launches of max(1, multiprocessors / blocks), from the dry run"
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
#: Multiprocessors of an H100 or H200, assumed of a GPU of which nobody states them.
_MULTIPROCESSORS: Final = 132
#: Program and problem -> the cue ``launch_idle``, mean over the cases; $1 are multiprocessors.
_IDLE_SQL: Final = """
SELECT program_id, problem, avg(idle) FROM (
    SELECT program_id, problem, "case", sum(n * greatest(1, $1 /
        greatest(1::DOUBLE, grid_x) / greatest(1, grid_y) / greatest(1, grid_z))) AS idle
    FROM launches WHERE kind = 'launch' GROUP BY ALL)
GROUP BY ALL"""


def read_row_facts(
    archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]
) -> RowFacts:
    """Read the facts of rows from their columns, and from the archive's kernels and dry runs."""
    languages = tuple(map(language_of, rows[spec.candidate]))
    cues = _row_cues(archive, spec, rows)
    row_facts = replace(RowFacts.plain(len(languages)), languages=languages, cues=cues)
    if spec.kind == "eval":
        columns = ("speedup_min", "speedup_max", "goal_bin")
        low, high, goals = _of_kernels(archive, rows[spec.kernel], columns)
        # The row's own columns, where it has them: withheld kernels are in no other table.
        own_low, own_high = (np.array(rows[name], np.float64) for name in columns[:2])
        return replace(
            row_facts,
            spreads=_spread(own_low, own_high, unknown=_spread(low, high)),
            goals=None if np.isnan(goals).all() else goals,
            measured=_repeated(archive, rows[spec.kernel]),
        )
    if spec.kind == "close":
        second = _repeated(archive, rows[spec.kernel])
        first = _repeated(archive, rows[spec.anchor_kernel])
        measured = None if second is None or first is None else second / first
        return replace(row_facts, measured=measured)
    return row_facts


def _row_cues(
    archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]
) -> dict[str, Floats]:
    """Compute the cues of rows; of close pairs what the second program has more than the first."""
    problems, gpus = rows[spec.problem], rows["gpu"]
    cues = read_cues(archive, rows[spec.candidate], problems, gpus)
    if spec.known:
        cues["same"] = np.array(rows[spec.known], np.float64)
    if spec.kind == "eval" or spec.asks_outcome:
        return cues
    first = read_cues(archive, rows[spec.anchor], problems, gpus)
    if spec.kind == "close":
        return {name: cue - first[name] for name, cue in cues.items()}
    cues["language_change"] = (cues["language"] != first["language"]).astype(np.float64)
    cues["length_change"] = np.log((cues["code_length"] + 1) / (first["code_length"] + 1))
    (parents,) = _of_kernels(archive, rows[spec.anchor_kernel], ("speedup",))
    if not np.isnan(parents).any():
        cues["parent_speedup"] = -parents
    return cues


def program_cues(codes: Sequence[str]) -> dict[str, Floats]:
    """Compute the cues of programs that their texts alone give: name -> shape (n,)."""
    return {
        name: np.array([rule(code) for code in codes], np.float64)
        for name, (_, rule) in CUES.items()
    }


def read_cues(
    archive: Archive, codes: Sequence[str], problems: Sequence[str], gpus: Sequence[str]
) -> dict[str, Floats]:
    """Compute the cues of programs: name -> shape (n,).

    A program that the dry run did not follow has the median of ``launch_idle``.
    """
    cues = program_cues(codes)
    known = {gpu: _mean_idle(archive, multiprocessors_of(archive, gpu)) for gpu in set(gpus)}
    rows = zip(map(program_id, codes), problems, gpus, strict=True)
    idle = np.array([known[gpu].get((program, problem), np.nan) for program, problem, gpu in rows])
    if not np.isnan(idle).all():
        cues["launch_idle"] = np.where(np.isnan(idle), np.nanmedian(idle), idle)
    return cues


def multiprocessors_of(archive: Archive, gpu: str) -> int:
    """Look up how many multiprocessors a GPU of an archive has; an H200's number where unknown."""
    return gpu_facts(gpu, archive.stated_gpus).multiprocessors or _MULTIPROCESSORS


@lru_cache(maxsize=4)  # read once for all splits
def _mean_idle(archive: Archive, multiprocessors: int) -> dict[tuple[str, str], float]:
    """Map program and problem to the cue ``launch_idle``; empty without dry runs."""
    if "launches" not in archive.tables:
        return {}
    columns = archive.sql(_IDLE_SQL, [multiprocessors]).columns
    programs, problems, idle = (column.to_pylist() for column in columns)
    return dict(zip(zip(programs, problems, strict=True), idle, strict=True))


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
