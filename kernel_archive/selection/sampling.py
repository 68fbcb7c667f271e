"""A seeded sample of pairs, spread over strata of their ratio, without listing all pairs of a large task.

Programs sorted by speedup make the partners of one program in a stratum a contiguous range. The pairs with the least
hashes of their two ids are taken: which those are depends on no order, and adding a program changes few of them.
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

#: So many pairs of one stratum are hashed at most.
_HASHED: Final = 400_000


def stratum_factors(strata: Sequence[float]) -> list[float]:
    """Least ratios of the strata, 2 to the power of their lower ends, correctly rounded on every machine.

    >>> stratum_factors([0.0, 0.5, 1.0])
    [1.0, 1.4142135623730951, 2.0]
    """
    return [float(Decimal(2) ** Decimal(repr(float(low)))) for low in strata]


def quotas(available: Sequence[int], wanted: int) -> list[int]:
    """Spread ``wanted`` evenly over strata; what one lacks is taken from those that still have some.

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
        """Programs that may be compared with each other, their speedups ascending; and the lower ends of the strata."""
        factors = stratum_factors(strata)
        self.offsets = np.cumsum([0, *(len(g) for g in groups)])
        self._first: list[NDArray[np.int64]] = []
        self._ends: list[NDArray[np.int64]] = []
        self.counts: list[int] = []
        for low, high in pairwise([*factors, math.inf]):
            starts, sizes = [], []
            for offset, speedups in zip(self.offsets, groups, strict=False):
                after = np.arange(1, len(speedups) + 1)
                begin = np.maximum(np.searchsorted(speedups, speedups * low), after)
                end = np.searchsorted(speedups, speedups * high)
                starts.append(offset + begin)
                sizes.append(np.maximum(end - begin, 0))
            self._first.append(np.concatenate(starts) if starts else np.zeros(0, np.int64))
            self._ends.append(np.cumsum(np.concatenate(sizes)) if sizes else np.zeros(0, np.int64))
            self.counts.append(int(self._ends[-1][-1]) if len(self._ends[-1]) else 0)

    def pairs(self, stratum: int, slower: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs of a stratum whose slower program is one of these: positions of the slower and the faster one."""
        sizes = np.diff(self._ends[stratum], prepend=0)[slower]
        slow = np.repeat(slower, sizes)
        step = np.arange(len(slow)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return slow, self._first[stratum][slow] + step

    def slower(self, stratum: int, marks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Programs that are the slower one of a pair; of a stratum with very many pairs those with the least marks."""
        sizes = np.diff(self._ends[stratum], prepend=0)
        found = np.flatnonzero(sizes)
        bits = 64
        while sizes[found].sum() > _HASHED and bits > 1:
            bits -= 1
            found = found[marks[found] < np.uint64(1) << np.uint64(bits)]
        return found


def program_mark(seed: int, kernel_id: str) -> int:
    """A number of a kernel, evenly spread over 64 bits.

    >>> program_mark(0, "a") == program_mark(0, "a") != program_mark(1, "a")
    True
    """
    return int.from_bytes(hashlib.sha256(f"pairs:{seed}:{kernel_id}".encode()).digest()[:8], "big")


def least_pairs(
    space: PairSpace, stratum: int, wanted: int, marks: NDArray[np.uint64], allowed: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """The allowed pairs of a stratum with the least hashes, each with a direction from its hash.

    A sample that stays: a program more brings its own pairs in and moves as many others out, no more.

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
    """Positions of the values from the least on, of equal ones the first first; sorted only as far as somebody asks."""
    limit = np.partition(values, few)[few] if few < len(values) else 0
    for some in (values < limit, values >= limit):
        at = np.flatnonzero(some)
        yield from at[np.argsort(values[at], kind="stable")].tolist()
