"""The surface of programs: what can be seen of a split's rows without understanding any.

Nothing in it is learnt, and nothing runs a program. What goes by it alone is a control (:mod:`kernel_archive.scoring.controls`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.program_text import LANGUAGE_ORDER, language_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Surface:
    """The surface of n rows.

    Attributes:
        languages: n languages; empty texts where the programs are not at hand.
        spreads: shape (n,), largest over smallest measurement of each row, at least 1; 1 where there was only one.
        cues: name -> shape (n,), the value of a cue.
        changed: shape (n,), whether an edit changes the language; ``None`` where rows are no edits, or it is not known.
    """

    languages: tuple[str, ...]
    spreads: Floats
    cues: Mapping[str, Floats] = field(default_factory=dict)
    changed: Bools | None = None

    @classmethod
    def plain(cls, n: int) -> Surface:
        """Nothing is known of n rows."""
        return cls(languages=("",) * n, spreads=np.ones(n))

    def take(self, rows: Ints) -> Surface:
        """Some of the rows, in this order."""
        return Surface(
            languages=tuple(self.languages[i] for i in rows),
            spreads=self.spreads[rows],
            cues={name: values[rows] for name, values in self.cues.items()},
            changed=None if self.changed is None else self.changed[rows],
        )


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
