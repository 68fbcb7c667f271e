"""Similarity of programs beyond near duplicates: the Jaccard index of their token 5-grams.

Tokens are identifiers, numbers and single punctuation marks of
:func:`~kernel_archive.ids.token_text`, so comments and docstrings do not count. Two programs share
the 5-grams that both have, out of those that either has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kernel_archive.ids import token_text

#: The distinct 5-grams of a program as hashes, sorted.
Grams = NDArray[np.uint64]

NGRAM: Final = 5
#: Texts whose tokens are held at a time: they take several times the memory of their hashes.
TEXTS_AT_A_TIME: Final = 1000
#: A word, in which every character beyond ASCII counts as a letter, or one mark.
_PATTERN: Final = r"[A-Za-z0-9_[^\x00-\x7F]]+|[^\s\x00\x1c-\x1fA-Za-z0-9_]"
#: Odd factors, one per place in a 5-gram: a 5-gram is the sum of its tokens' hashes times these.
_FACTORS: Final = np.random.PCG64(20261121).random_raw(NGRAM) | np.uint64(1)


def token_grams(codes: Iterable[str]) -> list[Grams]:
    """Hash the distinct token 5-grams of each program text."""
    grams: list[Grams] = []
    remaining = iter(codes)
    while part := list(islice(remaining, TEXTS_AT_A_TIME)):
        grams += _grams_of(part)
    return grams


def _grams_of(codes: Sequence[str]) -> list[Grams]:
    tokens = pl.Series([token_text(code) for code in codes], dtype=pl.String).str.extract_all(
        _PATTERN
    )
    hashes = tokens.explode(empty_as_null=False).hash().to_numpy()
    ends = np.cumsum(tokens.list.len().to_numpy(), dtype=np.int64)
    padded = np.concatenate([hashes, np.zeros(NGRAM - 1, np.uint64)])
    grams = np.zeros(len(hashes), np.uint64)
    for place, factor in enumerate(_FACTORS):
        grams += padded[place : place + len(hashes)] * factor
    starts = np.concatenate([[0], ends[:-1]]).tolist()
    last = np.maximum(starts, ends - NGRAM + 1).tolist()
    return [np.unique(grams[start:end]) for start, end in zip(starts, last, strict=False)]


def is_near_copy(a: Grams, b: Grams, limit: float) -> bool:
    """Tell whether the Jaccard index of two programs is that high; an empty one is like no other.

    >>> is_near_copy(*token_grams(["import x; y = a + b", "import x;y=a+b  # the same"]), 1.0)
    True
    """
    small, large = sorted((len(a), len(b)))
    if small / max(1, large) < limit:  # no higher than the ratio of the sizes
        return False
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / max(1, len(a) + len(b) - shared) >= limit


def near_copies(
    programs: Mapping[str, Grams], training: Mapping[str, Grams], limit: float
) -> dict[str, tuple[str, float]]:
    """Map each program that has a near copy in training to the nearest one and their similarity."""
    nearest: dict[str, tuple[str, float]] = {}
    for other, name, similarity in _near_pairs(programs, training, limit):
        if name not in nearest or similarity > nearest[name][1]:
            nearest[name] = (other, similarity)
    return nearest


def near_copy_classes(programs: Mapping[str, Grams], limit: float) -> dict[str, str]:
    """Map each program to the least name of its class: programs linked by chains of near copies."""
    first_of = {name: name for name in programs}
    for other, name, _ in _near_pairs(programs, programs, limit):
        kept, merged = sorted((first_of[other], first_of[name]))
        if kept != merged:
            first_of = {each: kept if f == merged else f for each, f in first_of.items()}
    return first_of


def _near_pairs(
    programs: Mapping[str, Grams], others: Mapping[str, Grams], limit: float
) -> Iterator[tuple[str, str, float]]:
    """Yield (other, program, Jaccard index) where the index is the limit or more."""
    if not others:
        return
    names = list(programs)
    sizes = np.array([len(grams) for grams in programs.values()], np.int64)
    grams = np.concatenate([np.zeros(0, np.uint64), *programs.values()])
    order = np.argsort(grams, kind="stable")
    owners = np.repeat(np.arange(len(programs)), sizes)[order]
    distinct, starts, numbers = np.unique(grams[order], return_index=True, return_counts=True)
    for name, other_grams in others.items() if len(distinct) else ():
        positions = np.searchsorted(distinct, other_grams)
        positions = positions[np.take(distinct, positions, mode="clip") == other_grams]
        if len(positions) / max(1, len(other_grams)) < limit:
            continue  # no program can share more with it
        counts = numbers[positions]
        ends = np.cumsum(counts)
        # The places of all 5-grams of the programs that the other has, too.
        places = np.repeat(starts[positions] - ends + counts, counts) + np.arange(counts.sum())
        shared = np.bincount(owners[places], minlength=len(programs))
        similarity = shared / np.maximum(sizes + len(other_grams) - shared, 1)
        for i in np.flatnonzero(similarity >= limit).tolist():
            yield name, names[i], float(similarity[i])
