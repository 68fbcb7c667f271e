"""Similarity of programs beyond near duplicates: the Jaccard index of their token 5-grams.

Tokens are identifiers, numbers and single punctuation marks of
:func:`~kernel_archive.ids.token_text`, so comments and docstrings do not count. Two programs share
the 5-grams that both have, out of those that either has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from kernel_archive.ids import program_id, token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Grams = NDArray[np.uint64]

NGRAM: Final = 5
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


def near_copy_classes(programs: Sequence[TokenSet], limit: float) -> dict[str, str]:
    """Map each program to the first one that it is linked with by near copies; maybe itself."""
    first = {program.name: program.name for program in programs}
    for other, similarity in _similarities(programs, programs):
        for j in np.flatnonzero(similarity >= limit).tolist():
            one, two = first[other.name], first[programs[j].name]
            if one != two:
                first = {name: min(one, two) if f in (one, two) else f for name, f in first.items()}
    return first


def _similarities(
    rows: Sequence[TokenSet], others: Iterable[TokenSet]
) -> Iterator[tuple[TokenSet, NDArray[np.float64]]]:
    """Yield each of the others with its Jaccard index to every row."""
    sizes = np.array([len(row.grams) for row in rows])
    grams = np.concatenate([np.zeros(0, np.uint64), *(row.grams for row in rows)])
    order = np.argsort(grams, kind="stable")
    grams, owners = grams[order], np.repeat(np.arange(len(rows)), sizes)[order]
    for other in others:
        first = np.searchsorted(grams, other.grams)
        counts = np.searchsorted(grams, other.grams, side="right") - first
        ends = np.cumsum(counts)
        # The places of all 5-grams of the rows that the other has, too.
        places = np.repeat(first - ends + counts, counts) + np.arange(counts.sum())
        shared = np.bincount(owners[places], minlength=len(rows))
        yield other, shared / np.maximum(sizes + len(other.grams) - shared, 1)


class Neighbours:
    """The nearest training program of any program, within its problem."""

    def __init__(self, training: Callable[[str], Iterable[TokenSet]]) -> None:
        """Compare with the training programs of a problem, as the function gives them."""
        self._training = training
        self._nearest: dict[tuple[str, str], Near] = {}

    def near_copies(self, programs: Iterable[TokenSet], limit: float) -> dict[str, Near]:
        """Find the near copies among programs, each by its name with the nearest one.

        Programs of one problem and one program id are compared once, also over several calls.
        """
        listed = list(programs)
        missing: dict[str, dict[str, TokenSet]] = {}
        for program in listed:
            if (program.problem, program.program_id) not in self._nearest:
                missing.setdefault(program.problem, {})[program.program_id] = program
        for problem, new in sorted(missing.items()):
            rows = list(new.values())
            best, name = np.zeros(len(rows)), [""] * len(rows)
            for other, similarity in _similarities(rows, self._training(problem)):
                for i in np.flatnonzero(similarity > best):
                    best[i], name[i] = similarity[i], other.name
            found = zip(new, best.tolist(), name, strict=True)
            self._nearest |= {(problem, program): Near(other, s) for program, s, other in found}
        nears = {p.name: self._nearest[p.problem, p.program_id] for p in listed}
        return {name: near for name, near in nears.items() if near.similarity >= limit}
