"""The sample of pairs: strata, quotas, reproducible draws."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, getcontext

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.selection.definitions import STRATA
from kernel_archive.selection.training import (
    MAX_HASHED,
    STRATUM_RATIOS,
    kernel_mark,
    quotas,
    stratum_pairs,
)

ENDS = [*STRATUM_RATIOS, math.inf]
SPEEDUPS = st.lists(
    st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.05, 1.0717734625362931, 1.5, 2.0, 4.0, 9.0]),
    max_size=9,
)


def kernels(groups, seed=0):
    """A kernel for each speedup, those of a group timed against one reference."""
    rows = [(f"r{i}", "H200", s, "s") for i, group in enumerate(groups) for s in group]
    names = ["reference_id", "gpu", "speedup", "search_id"]
    table = pl.DataFrame(rows, schema=names, orient="row", schema_overrides={"speedup": pl.Float64})
    marks = [kernel_mark(seed, str(i)) for i in range(len(rows))]
    ids = pl.Series(range(len(rows)), dtype=pl.Int64)
    return table.with_columns(pl.Series("mark", marks, pl.UInt64), kernel_id=ids)


def drawn(groups, seed=0):
    """The pairs of each stratum in the order in which they are drawn."""
    programs, any_pair = kernels(groups, seed), pl.lit(value=True)
    strata = (
        stratum_pairs(programs, *ends, any_pair, MAX_HASHED) for ends in itertools.pairwise(ENDS)
    )
    return [pairs.select("parent_kernel_id", "child_kernel_id").rows() for pairs in strata]


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(SPEEDUPS, min_size=1, max_size=3), seed=st.integers(0, 50))
def test_every_pair_is_in_its_stratum_once(groups, seed):
    """The pairs are those that comparing each with each finds, edges of the strata included."""
    rows = kernels(groups).select("kernel_id", "reference_id", "speedup").rows()
    wanted = [[] for _ in STRATA]
    for (i, group, a), (j, other, b) in itertools.combinations(rows, 2):
        if group == other:
            slow, fast = sorted((a, b))
            wanted[max(k for k, end in enumerate(ENDS) if fast >= slow * end)].append((i, j))
    assert [sorted(tuple(sorted(p)) for p in pairs) for pairs in drawn(groups, seed)] == wanted


def test_factors_are_correctly_rounded():
    """2 to the power of a stratum's end is the double nearest to the true value."""
    getcontext().prec = 60
    for low, ratio in zip(STRATA, STRATUM_RATIOS, strict=True):
        true = (Decimal(str(low)) * Decimal(2).ln()).exp()
        neighbours = [math.nextafter(ratio, 0), ratio, math.nextafter(ratio, 99)]
        assert min(neighbours, key=lambda x: abs(Decimal(x) - true)) == ratio


@given(available=st.lists(st.integers(0, 60), min_size=1, max_size=6), wanted=st.integers(0, 200))
def test_quotas_are_even_and_use_everything(available, wanted):
    """Nothing over what is there, the total met when it can be."""
    shares = quotas(available, wanted)
    assert sum(shares) == min(wanted, sum(available))
    assert all(g <= a for g, a in zip(shares, available, strict=True))
    assert all(g >= max(shares) - 1 for g, a in zip(shares, available, strict=True) if g < a)


def test_large_strata_are_drawn_without_listing_them():
    """Of fifty million pairs a few come back, from all over the range of the faster program."""
    pairs = drawn([[1 + 1e-8 * i for i in range(10_000)]])[0]
    assert 100_000 < len(pairs) <= 400_000
    assert min(map(min, pairs[:100])) < 2_500
    assert max(map(max, pairs[:100])) > 8_500


def test_one_program_more_moves_few_pairs():
    """Of the first hundred pairs only those leave whose place the new program's pairs take."""
    speedups = [1 + 1e-7 * i for i in range(300)]
    before = drawn([speedups])[0][:100]
    after = drawn([[*speedups, 1.0002]])[0][:100]
    entered = [pair for pair in after if 300 in pair]
    assert len(set(before) - set(after)) == len(entered) < 10
