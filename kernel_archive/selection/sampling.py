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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

#: Hash at most this many pairs of a stratum; of more, only those whose slower program has a small
#: mark.
MAX_HASHED: Final = 400_000


def stratum_factors(strata: Sequence[float]) -> list[float]:
    """Return the least ratios of the strata.

    2 to the power of their lower ends, correctly rounded on every machine.

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
    given = [min(n, level) for n in available]
    for i, n in enumerate(available):
        if n > level and sum(given) < rest:
            given[i] += 1
    return given


class PairSpace:
    """All pairs of programs of one task that may be compared, numbered stratum by stratum.

    Attributes:
        counts: pairs per stratum.
    """

    def __init__(self, groups: Sequence[NDArray[np.float64]], strata: Sequence[float]) -> None:
        """Take the ascending speedups of each group of comparable programs."""
        offsets = np.cumsum([0, *(len(g) for g in groups)])
        self._first: list[NDArray[np.int64]] = []
        self._sizes: list[NDArray[np.int64]] = []
        for low, high in pairwise([*stratum_factors(strata), math.inf]):
            starts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            for offset, speedups in zip(offsets, groups, strict=False):
                # Infinity is a right upper end of a stratum.
                with np.errstate(over="ignore"):
                    least, most = speedups * low, speedups * high
                after = np.arange(1, len(speedups) + 1)
                begin = np.maximum(np.searchsorted(speedups, least), after)
                starts.append(offset + begin)
                sizes.append(np.maximum(np.searchsorted(speedups, most) - begin, 0))
            self._first.append(np.concatenate(starts))
            self._sizes.append(np.concatenate(sizes))
        self.counts = [int(sizes.sum()) for sizes in self._sizes]

    def pairs(
        self, stratum: int, slower: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all pairs of a stratum with one of these as the slower program.

        Positions of slower and faster ones.
        """
        sizes = self._sizes[stratum][slower]
        slow = np.repeat(slower, sizes)
        step = np.arange(len(slow)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return slow, self._first[stratum][slow] + step

    def slower(self, stratum: int, marks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the programs that are the slower one of a pair."""
        sizes = self._sizes[stratum]
        programs = np.flatnonzero(sizes)
        bits = 64
        while sizes[programs].sum() > MAX_HASHED and bits > 1:
            bits -= 1
            programs = programs[marks[programs] < np.uint64(1) << np.uint64(bits)]
        return programs


def program_mark(seed: int, kernel_id: str) -> int:
    """Make a number of a kernel, evenly spread over 64 bits.

    >>> program_mark(0, "a") == program_mark(0, "a") != program_mark(1, "a")
    True
    """
    return int.from_bytes(hashlib.sha256(f"pairs:{seed}:{kernel_id}".encode()).digest()[:8], "big")


def least_pairs(
    space: PairSpace,
    stratum: int,
    wanted: int,
    marks: NDArray[np.uint64],
    allowed: Callable[[int, int], bool],
) -> list[tuple[int, int]]:
    """Draw the allowed pairs of a stratum with the least hashes.

    The sample is stable: one program more brings its own pairs in and moves as many others out, no
    more.

    Args:
        space: the pairs.
        stratum: which stratum.
        wanted: how many; fewer come back when there are no more.
        marks: shape (n,), the mark of every program.
        allowed: whether a pair of positions may be drawn.

    Returns:
        Positions of anchor and candidate.
    """
    slow, fast = space.pairs(stratum, space.slower(stratum, marks))
    # splitmix64 of the two marks: no order of programs, no state of a generator is in it.
    x = marks[slow] ^ (marks[fast] << np.uint64(1) | marks[fast] >> np.uint64(63))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    chosen: list[tuple[int, int]] = []
    for i in _ascending(x, 2 * wanted):
        if len(chosen) == wanted:
            break
        pair = int(slow[i]), int(fast[i])
        if allowed(*pair):
            chosen.append(pair[::-1] if int(x[i]) & 1 else pair)
    return chosen


def _ascending(values: NDArray[np.uint64], few: int) -> Iterator[int]:
    """Yield positions of the values from the least on, ties in order."""
    limit = np.partition(values, few)[few] if few < len(values) else 0
    for some in (values < limit, values >= limit):
        positions = np.flatnonzero(some)
        yield from positions[np.argsort(values[positions], kind="stable")].tolist()
