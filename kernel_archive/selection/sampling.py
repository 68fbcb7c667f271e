"""A seeded sample of pairs, spread over strata of their ratio.

Programs sorted by speedup make the partners of one program in a stratum a contiguous range. The
pairs with the least hashes of their two ids are taken: no order of rows matters, and adding a
program changes few of them.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

#: Hash at most this many pairs of a stratum; of more, only those whose slower program has a small
#: mark.
MAX_HASHED: Final = 400_000


def stratum_factors(strata: Sequence[float]) -> list[float]:
    """Return the least ratios of the strata: 2 to the power of their lower ends.

    They are correctly rounded on every machine.

    >>> stratum_factors([0.0, 0.5, 1.0])
    [1.0, 1.4142135623730951, 2.0]
    """
    return [float(Decimal(2) ** Decimal(repr(float(low)))) for low in strata]


def quotas(available: Sequence[int], wanted: int) -> list[int]:
    """Spread ``wanted`` evenly over strata.

    >>> quotas([1000, 40, 0], 500)
    [460, 40, 0]
    """
    rest = min(wanted, sum(available))
    # The highest level to which all strata can be filled, those with less up to their brim.
    level = bisect_right(range(rest + 1), rest, key=lambda x: sum(min(n, x) for n in available)) - 1
    shares = [min(n, level) for n in available]
    for i, n in enumerate(available):
        if n > level and sum(shares) < rest:
            shares[i] += 1
    return shares


def program_mark(seed: int, kernel_id: str) -> int:
    """Make a number of a kernel, evenly spread over 64 bits.

    >>> program_mark(0, "a") == program_mark(0, "a") != program_mark(1, "a")
    True
    """
    return int.from_bytes(hashlib.sha256(f"pairs:{seed}:{kernel_id}".encode()).digest()[:8], "big")


def stratum_pairs(
    groups: Sequence[NDArray[np.float64]], strata: Sequence[float], marks: NDArray[np.uint64]
) -> Iterator[pl.DataFrame]:
    """Yield the pairs of each stratum of a task, those with the least hashes first.

    Args:
        groups: ascending speedups of each group of comparable programs.
        strata: lower ends of the strata of log2 of the ratio.
        marks: :func:`program_mark` of every program, group after group.

    Yields:
        ``anchor`` and ``candidate``: positions of the two programs, turned as the hash says.
    """
    offsets = np.cumsum([0, *map(len, groups)])
    for low, high in pairwise([*stratum_factors(strata), math.inf]):
        first, sizes = np.zeros(len(marks), np.int64), np.zeros(len(marks), np.int64)
        for offset, speedups in zip(offsets, groups, strict=False):
            # Infinity is a right upper end of a stratum.
            with np.errstate(over="ignore"):
                least, most = speedups * low, speedups * high
            start = np.maximum(np.searchsorted(speedups, least), np.arange(len(speedups)) + 1)
            own = slice(offset, offset + len(speedups))
            first[own] = offset + start
            sizes[own] = np.maximum(np.searchsorted(speedups, most) - start, 0)
        slower = _few_enough(sizes, marks)
        counts = sizes[slower]
        slow = np.repeat(slower, counts)
        step = np.arange(len(slow)) - np.repeat(np.cumsum(counts) - counts, counts)
        fast = first[slow] + step
        hashes = _pair_hashes(marks[slow], marks[fast])
        turned = hashes % np.uint64(2) == 1
        pairs = {
            "hash": hashes,
            "anchor": np.where(turned, fast, slow),
            "candidate": np.where(turned, slow, fast),
        }
        yield pl.DataFrame(pairs).sort("hash", maintain_order=True).drop("hash")


def _few_enough(sizes: NDArray[np.int64], marks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Choose slower programs whose pairs are at most :data:`MAX_HASHED`, by their marks."""
    programs = np.flatnonzero(sizes)
    bits = 64
    while sizes[programs].sum() > MAX_HASHED and bits > 1:
        bits -= 1
        programs = programs[marks[programs] < np.uint64(1) << np.uint64(bits)]
    return programs


def _pair_hashes(slow: NDArray[np.uint64], fast: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash pairs of marks by splitmix64: no order of programs, no state of a generator is in it."""
    x = slow ^ (fast << np.uint64(1) | fast >> np.uint64(63))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(factor)
    return x ^ x >> np.uint64(31)
