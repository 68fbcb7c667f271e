"""Similarity of programs beyond near duplicates: the Jaccard index of their token 5-grams.

Tokens are identifiers, numbers and single punctuation marks of
:func:`~kernel_archive.ids.token_text`, so comments and docstrings do not count. Two programs share
the 5-grams that both have, out of those that either has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from kernel_archive.ids import program_id, token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Grams = NDArray[np.uint64]

NGRAM: Final = 5
#: Least Jaccard index of two programs that the report calls near copies.
THRESHOLD: Final = 0.7
#: Name this many similar rows in the report; all of them are counted.
EXAMPLES: Final = 10
#: Compare this many rows at a time: the table of their 5-grams grows with the square of their
#: number.
BLOCK_ROWS: Final = 1_000
#: Forget the 5-grams of earlier programs beyond this many: of so many they take about 60 MB.
MAX_KNOWN: Final = 5_000
#: A word, in which every character beyond ASCII counts as a letter, or one mark.
_PATTERN: Final = r"[A-Za-z0-9_[^\x00-\x7F]]+|[^\s\x00\x1c-\x1fA-Za-z0-9_]"
#: Odd factors, one per place in a 5-gram: a 5-gram is the sum of its tokens' hashes times these.
_FACTORS: Final = np.random.PCG64(20261121).random_raw(NGRAM) | np.uint64(1)


class TokenSet(msgspec.Struct, frozen=True):
    """A program to compare.

    Its name in reports, its problem, its program id, and its distinct 5-grams, sorted.
    """

    name: str
    problem: str
    program_id: str
    grams: Grams


class Near(msgspec.Struct, frozen=True):
    """The training program (its name) most like a program."""

    row: str
    program: str
    similarity: float


def token_grams(texts: Iterable[str]) -> list[Grams]:
    """Hash the distinct token 5-grams of each text (already without comments), sorted."""
    tokens = pl.Series(list(texts), dtype=pl.String).str.extract_all(_PATTERN)
    hashes = tokens.explode(empty_as_null=False).hash().to_numpy()
    ends = np.cumsum(tokens.list.len().to_numpy(), dtype=np.int64)
    padded = np.concatenate([hashes, np.zeros(NGRAM - 1, np.uint64)])
    grams = np.zeros(len(hashes), np.uint64)
    for place, factor in enumerate(_FACTORS):
        grams += padded[place : place + len(hashes)] * factor
    starts = np.concatenate([[0], ends[:-1]]).tolist()
    last = np.maximum(starts, ends - NGRAM + 1).tolist()
    return [np.unique(grams[start:end]) for start, end in zip(starts, last, strict=False)]


def token_sets(
    programs: Iterable[tuple[str, str, str]], known: dict[str, Grams] | None = None
) -> list[TokenSet]:
    """Make the token sets of programs, given as name, problem and text.

    ``known`` are 5-grams by program id from earlier calls: what is new is added.
    """
    listed = [(name, problem, program_id(code), code) for name, problem, code in programs]
    grams = {} if known is None else known
    if len(grams) > MAX_KNOWN:
        grams.clear()
    missing = {program: code for _, _, program, code in listed if program not in grams}
    new = token_grams(token_text(code) for code in missing.values())
    grams |= dict(zip(missing, new, strict=True))
    return [
        TokenSet(name, problem, program, grams[program]) for name, problem, program, _ in listed
    ]


def overlap(a: Grams, b: Grams) -> float:
    """Return the Jaccard index of two sets of 5-grams; 0 where one is empty.

    >>> overlap(*token_grams(map(token_text, ("import x; y = a + b", "import x;y=a+b  # same"))))
    1.0
    """
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / max(1, len(a) + len(b) - shared)


def nearest(rows: Sequence[TokenSet], others: Iterable[TokenSet]) -> list[Near]:
    """Return the nearest of the others for each row: the first of equally near ones.

    ``""`` and 0 for none at all.
    """
    reread = list(others) if len(rows) > BLOCK_ROWS else others
    blocks = (rows[i : i + BLOCK_ROWS] for i in range(0, len(rows), BLOCK_ROWS))
    return [near for block in blocks for near in _nearest(block, reread)]


def near_copy_classes(programs: Sequence[TokenSet], limit: float) -> dict[str, str]:
    """Map each program to the first one that it is linked with by near copies; maybe itself."""
    first = {program.name: program.name for program in programs}
    for other, similarity in _similarities(programs, programs):
        for j in np.flatnonzero(similarity >= limit).tolist():
            one, two = first[other.name], first[programs[j].name]
            if one != two:
                first = {name: min(one, two) if f in (one, two) else f for name, f in first.items()}
    return first


def _nearest(rows: Sequence[TokenSet], others: Iterable[TokenSet]) -> list[Near]:
    """Find the nearest ones of a block of rows, reading the others once."""
    best, name = np.zeros(len(rows)), [""] * len(rows)
    for other, similarity in _similarities(rows, others):
        for j in np.flatnonzero(similarity > best):
            best[j], name[j] = similarity[j], other.name
    return [Near(row.name, n, s) for row, n, s in zip(rows, name, best.tolist(), strict=True)]


def _similarities(
    rows: Sequence[TokenSet], others: Iterable[TokenSet]
) -> Iterator[tuple[TokenSet, NDArray[np.float64]]]:
    """Yield each of the others with its Jaccard index to every row."""
    sizes = np.array([len(row.grams) for row in rows])
    grams = [np.zeros(0, np.uint64), *(row.grams for row in rows)]
    universe, place = np.unique(np.concatenate(grams), return_inverse=True)
    if len(universe):
        # One line per 5-gram of the rows, one column per row that has it.
        has = np.zeros((len(universe), len(rows)), np.uint8)
        has[place, np.repeat(np.arange(len(rows)), sizes)] = 1
        for other in others:
            at = np.searchsorted(universe, other.grams)
            at[at == len(universe)] = 0
            lines = has[at[universe[at] == other.grams]]
            # Sums of short integers are several times as fast, where they can't overflow.
            kind = np.uint16 if len(lines) < 2**16 else np.int64
            shared = lines.sum(axis=0, dtype=kind).astype(np.int64)
            yield other, shared / np.maximum(sizes + len(other.grams) - shared, 1)


class Neighbours:
    """The nearest training program of any program, within its problem."""

    def __init__(self, training: Callable[[str], Iterable[TokenSet]]) -> None:
        """Compare with the training programs of a problem, as the function gives them."""
        self._training = training
        self._nearest: dict[tuple[str, str], Near] = {}

    def of(self, programs: Iterable[TokenSet]) -> dict[str, Near]:
        """Return the nearest training program of every program that shares anything with one."""
        asked = list(programs)
        missing: dict[str, dict[str, TokenSet]] = {}
        for program in asked:
            if (program.problem, program.program_id) not in self._nearest:
                missing.setdefault(program.problem, {})[program.program_id] = program
        for problem, new in sorted(missing.items()):
            found = nearest(list(new.values()), self._training(problem))
            self._nearest |= {(problem, name): near for name, near in zip(new, found, strict=True)}
        nears = {p.name: self._nearest[p.problem, p.program_id] for p in asked}
        return {
            name: msgspec.structs.replace(near, row=name)
            for name, near in nears.items()
            if near.similarity > 0
        }


def similarity_report(problems: Sequence[tuple[str, str]], nears: Iterable[Near]) -> dict[str, Any]:
    """Count the evaluation rows (name and problem of each) that have a near copy in training."""
    problem_of = dict(problems)
    listed = list(nears)
    similar = sorted(
        (near for near in listed if near.similarity >= THRESHOLD),
        key=lambda near: (-near.similarity, near.row),
    )
    per_task = dict.fromkeys(sorted(set(problem_of.values())), 0)
    for near in similar:
        per_task[problem_of[near.row]] += 1
    return {
        "measure": f"Jaccard index of token {NGRAM}-grams, comments left out, within a problem",
        "threshold": THRESHOLD,
        "rows": len(problem_of),
        "similar_rows": len(similar),
        "largest": round(max((near.similarity for near in listed), default=0.0), 6),
        "per_task": per_task,
        "examples": [
            {"row_id": n.row, "training": n.program, "similarity": round(n.similarity, 6)}
            for n in similar[:EXAMPLES]
        ],
    }
