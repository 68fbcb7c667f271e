"""The sample of pairs: strata, quotas, reproducible draws."""

from __future__ import annotations

import hashlib
import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.selection.training import (
    program_mark,
    quotas,
    stratum_factors,
    stratum_pairs,
)

STRATA = [0.0, 0.1, 0.5, 1.0, 2.0]
GROUPS = st.lists(
    st.lists(
        st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.05, 1.0717734625362931, 1.5, 2.0, 4.0, 9.0]),
        max_size=9,
    ).map(sorted),
    min_size=1,
    max_size=3,
)


def naive(groups):
    """All pairs per stratum, found by comparing each with each."""
    factors = stratum_factors(STRATA)
    pairs = [[] for _ in STRATA]
    offset = 0
    for group in groups:
        for i, j in itertools.combinations(range(len(group)), 2):
            k = max(k for k, f in enumerate(factors) if k == 0 or group[j] >= group[i] * f)
            pairs[k].append((offset + i, offset + j))
        offset += len(group)
    return pairs


def drawn(groups, seed=0):
    """The pairs of each stratum in the order in which they are drawn."""
    marks = [program_mark(seed, str(i)) for i in range(sum(map(len, groups)))]
    arrays = [np.array(group, np.float64) for group in groups]
    return [rows.rows() for rows in stratum_pairs(arrays, STRATA, np.array(marks, np.uint64))]


@settings(max_examples=60, deadline=None)
@given(groups=GROUPS, seed=st.integers(0, 50))
def test_every_pair_is_in_its_stratum_once(groups, seed):
    """The pairs are those that comparing each with each finds, edges of the strata included."""
    for pairs, wanted in zip(drawn(groups, seed), naive(groups), strict=True):
        assert sorted(tuple(sorted(pair)) for pair in pairs) == sorted(wanted)


def test_factors_are_correctly_rounded():
    """2 to the power of a stratum's end is the double nearest to the true value."""
    getcontext().prec = 60
    for low, factor in zip(STRATA, stratum_factors(STRATA), strict=True):
        true = (Decimal(str(low)) * Decimal(2).ln()).exp()
        neighbours = [math.nextafter(factor, 0), factor, math.nextafter(factor, 99)]
        assert min(neighbours, key=lambda x: abs(Decimal(x) - true)) == factor


@given(available=st.lists(st.integers(0, 60), min_size=1, max_size=6), wanted=st.integers(0, 200))
def test_quotas_are_even_and_use_everything(available, wanted):
    """Nothing over what is there, the total met when it can be."""
    shares = quotas(available, wanted)
    assert sum(shares) == min(wanted, sum(available))
    assert all(g <= a for g, a in zip(shares, available, strict=True))
    assert all(g >= max(shares) - 1 for g, a in zip(shares, available, strict=True) if g < a)


def test_marks_are_pinned():
    """The mark of a kernel never changes: it is sha256 of seed and id."""
    assert program_mark(0, "a") == int(hashlib.sha256(b"pairs:0:a").hexdigest()[:16], 16)
    assert program_mark(1, "a") != program_mark(0, "a")


def test_large_strata_are_drawn_without_listing_them():
    """Of fifty million pairs a few come back, from all over the range of the faster program."""
    pairs = drawn([np.linspace(1.0, 1.0001, 10_000)])[0]
    assert 100_000 < len(pairs) <= 400_000
    assert min(map(min, pairs[:100])) < 2_500
    assert max(map(max, pairs[:100])) > 8_500


def test_one_program_more_moves_few_pairs():
    """Of the first hundred pairs only those leave whose place the new program's pairs take."""
    speedups = np.linspace(1.0, 1.0001, 300)
    before = drawn([speedups])[0][:100]
    after = drawn([np.append(speedups, 1.0002)])[0][:100]
    entered = [pair for pair in after if 300 in pair]
    assert len(set(before) - set(after)) == len(entered) < 10
