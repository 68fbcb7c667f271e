"""The sample of pairs: strata, quotas, reproducible draws."""

from __future__ import annotations

import hashlib
import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.selection.sampling import (
    PairSpace,
    _ascending,
    least_pairs,
    program_mark,
    quotas,
    stratum_factors,
)

STRATA = [0.0, 0.1, 0.5, 1.0, 2.0]
ALWAYS = lambda a, b: True
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
    found = [[] for _ in STRATA]
    offset = 0
    for group in groups:
        for i, j in itertools.combinations(range(len(group)), 2):
            k = max(k for k, f in enumerate(factors) if k == 0 or group[j] >= group[i] * f)
            found[k].append((offset + i, offset + j))
        offset += len(group)
    return found


def marks_of(n, seed=0):
    """Marks of numbered programs."""
    return np.array([program_mark(seed, str(i)) for i in range(n)], np.uint64)


def space(groups):
    """The package's own numbering."""
    return PairSpace([np.array(g, np.float64) for g in groups], STRATA)


@settings(max_examples=60, deadline=None)
@given(groups=GROUPS)
def test_numbering_reaches_every_pair_once(groups):
    """The pairs of a stratum are those that comparing each with each finds, edges of the strata
    included.
    """
    numbered = space(groups)
    for k, wanted in enumerate(naive(groups)):
        assert numbered.counts[k] == len(wanted)
        slow, fast = numbered.pairs(k, numbered.slower(k, marks_of(sum(map(len, groups)))))
        assert sorted(zip(slow.tolist(), fast.tolist(), strict=True)) == sorted(wanted)


def test_factors_are_correctly_rounded():
    """2 to the power of a stratum's end is the double nearest to the true value, on every
    machine.
    """
    getcontext().prec = 60
    for low, factor in zip(STRATA, stratum_factors(STRATA), strict=True):
        true = (Decimal(str(low)) * Decimal(2).ln()).exp()
        neighbours = [math.nextafter(factor, 0), factor, math.nextafter(factor, 99)]
        assert min(neighbours, key=lambda x: abs(Decimal(x) - true)) == factor


@given(available=st.lists(st.integers(0, 60), min_size=1, max_size=6), wanted=st.integers(0, 200))
def test_quotas_are_even_and_use_everything(available, wanted):
    """Nothing over what is there, the total met when it can be."""
    given_ = quotas(available, wanted)
    assert sum(given_) == min(wanted, sum(available))
    assert all(g <= a for g, a in zip(given_, available, strict=True))
    most = max(given_)
    assert all(g >= most - 1 for g, a in zip(given_, available, strict=True) if g < a)


def test_marks_are_pinned():
    """The mark of a kernel never changes: it is sha256 of seed and id."""
    assert program_mark(0, "a") == int(hashlib.sha256(b"pairs:0:a").hexdigest()[:16], 16)
    assert program_mark(1, "a") != program_mark(0, "a")


@settings(max_examples=40, deadline=None)
@given(groups=GROUPS, wanted=st.integers(0, 12), seed=st.integers(0, 50))
def test_draws_are_distinct_and_allowed(groups, wanted, seed):
    """No pair twice in whatever direction, none that is barred."""
    numbered = space(groups)
    marks = marks_of(sum(map(len, groups)), seed)
    for k, pairs in enumerate(naive(groups)):
        barred = set(pairs[::3])
        got = least_pairs(numbered, k, wanted, marks, lambda a, b, x=barred: (a, b) not in x)
        plain = [tuple(sorted(p)) for p in got]
        assert len(set(plain)) == len(plain) == min(wanted, len(pairs) - len(barred))
        assert not set(plain) & barred


def test_large_strata_are_drawn_without_listing_them():
    """A hundred pairs of fifty million come back, distinct, from all over the range of the
    faster program.
    """
    numbered = PairSpace([np.linspace(1.0, 1.0001, 10_000)], STRATA)
    assert numbered.counts[0] == 10_000 * 9_999 // 2
    got = least_pairs(numbered, 0, 100, marks_of(10_000), ALWAYS)
    assert len({tuple(sorted(p)) for p in got}) == 100
    assert min(map(min, got)) < 2_500
    assert max(map(max, got)) > 8_500


def test_a_stratum_that_is_all_barred_ends():
    """When nothing may be drawn, the draw ends with nothing."""
    numbered = PairSpace([np.linspace(1.0, 1.01, 500)], STRATA)
    assert least_pairs(numbered, 0, 50, marks_of(500), lambda a, b: False) == []


def test_one_program_more_moves_few_pairs():
    """The sample stays.

    Of a hundred pairs only those leave whose place the new program's pairs take.
    """
    speedups = np.linspace(1.0, 1.0001, 300)
    before = least_pairs(PairSpace([speedups], STRATA), 0, 100, marks_of(300), ALWAYS)
    after = least_pairs(
        PairSpace([np.append(speedups, 1.0002)], STRATA), 0, 100, marks_of(301), ALWAYS
    )
    entered = [p for p in after if 300 in p]
    assert len(set(before) - set(after)) == len(entered) < 10


@given(st.lists(st.integers(0, 6) | st.integers(0, 2**64 - 1)), st.integers(0, 20))
def test_positions_come_as_sorting_gives_them(values, few):
    """Equal values too, however few of them are sorted at first."""
    x = np.array(values, np.uint64)
    assert list(_ascending(x, few)) == np.argsort(x, kind="stable").tolist()
