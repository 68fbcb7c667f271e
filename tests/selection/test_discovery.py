"""Discovery pairs on archives whose right rows are known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import MemoryTables, Run, Search, kernel_ids, make_tables, program

from kernel_archive.schema import TABLES
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.discovery import (
    case_ratio,
    case_sum,
    cutoff_counts,
    select_discovery,
)
from kernel_archive.splits import SPLITS

RULE = load_definition("discovery")
CODES = [program(f"d{i}") for i in range(24)]
A, B, C, D = CODES[:4]


def select(searches, runs, definition=RULE):
    """The pairs of a hand-made archive."""
    return select_discovery(
        SPLITS["discovery"], MemoryTables(make_tables(searches, runs)), definition
    )


def test_table_has_exactly_the_schema_and_both_programs():
    """G is child over parent; ids and texts are those of the two kernels."""
    runs = [Run("s", A, 2.0), Run("s", B, 3.0, parent="n0")]
    table = select([Search("s")], runs).table
    assert table.schema == TABLES["discovery_pairs"].schema
    (row,) = table.to_pylist()
    assert (row["g"], row["bin"], row["parent_code"], row["child_code"]) == (1.5, 6, A, B)
    assert [row["parent_kernel_id"], row["child_kernel_id"]] == kernel_ids([Search("s")], runs)
    assert (row["search_id"], row["family"], row["g_cases"]) == ("s", "gpu_mode", None)


@pytest.mark.parametrize(
    ("search", "rows"),
    [
        (Search("s"), 1),
        (Search("s", method="bin_filling"), 1),
        (Search("s", role="archive"), 1),
        (Search("s", "kernelbench_l3_p48", gpu="L40S"), 1),
        (Search("s", finished=False), 1),
        (Search("s", finished=None), 1),
        (Search("s", role="training"), 0),
        (Search("s", method="local_search"), 0),
        (Search("s", method="agentic"), 1),
        (Search("s", builder="generated"), 0),
    ],
)
def test_which_searches_count(search, rows):
    """Methods with one parent an edit, of any GPU, family and role but training.

    Of builders whose programs are natural.

    A stopped run is a valid truncation.
    """
    assert len(select([search], [Run("s", A), Run("s", B, parent="n0")])) == rows


def test_unfinished_searches_can_be_left_out():
    """A definition may ask for finished runs only; that is a variant."""
    strict = with_changes(RULE, unfinished=False)
    runs = [
        Run(s, c, parent=p)
        for s in "st"
        for c, p in ((CODES[ord(s) - 100], None), (CODES[ord(s) - 96 - 12], "n0"))
    ]
    got = select([Search("s", finished=False), Search("t")], runs, strict)
    assert got.rows["search_id"].to_list() == ["t"]
    assert got.variant.startswith("discovery-")


def test_cutoffs_are_counted_per_family():
    """Pairs at or above each cutoff, in all and per family."""
    counts = cutoff_counts([1.2, 1.25, 1.5, 2.0, 3.0], ["a", "a", "a", "b", "b"], [1.25, 1.5, 2.0])
    assert counts["all"] == {"rows": 5, "1.25": 4, "1.5": 3, "2": 2}
    assert counts["a"] == {"rows": 3, "1.25": 2, "1.5": 1, "2": 0}
    searches = [Search("s"), Search("k", "kernelbench_l3_p1")]
    runs = [
        Run("s", A, 1.0),
        Run("s", B, 1.6, parent="n0"),
        Run("k", C, 1.0),
        Run("k", D, 2.0, parent="n0"),
    ]
    facts = select(searches, runs).facts.facts
    assert facts["cutoffs"]["kernelbench"] == {"rows": 1, "1.25": 1, "1.5": 1, "2": 1}
    assert facts["cutoffs"]["all"] == {"rows": 2, "1.25": 2, "1.5": 2, "2": 1}


def test_case_ratio_by_hand():
    """Two cases, parent 80 and 20 us, child 40 and 5 us."""
    runs = [Run("s", A, 2.0, cases=(80.0, 20.0)), Run("s", B, 3.0, parent="n0", cases=(40.0, 5.0))]
    got = select([Search("s")], runs)
    assert got.rows["g_cases"].to_list() == [pytest.approx(math.sqrt(8), rel=1e-11)]
    assert got.rows["g"].to_list() == [1.5]


def test_case_ratio_needs_the_same_cases():
    """Another number of cases, another shape, a case without a time or named twice."""

    def one(*cases):
        return case_sum([{"shape": shape, "runtime_us": time} for shape, time in cases])

    parent = one(("a", 4.0), ("b", 9.0))
    assert case_ratio(parent, one(("b", 3.0), ("a", 2.0))) == pytest.approx(
        math.sqrt(2 * 3), rel=1e-11
    )
    assert case_ratio(parent, one(("a", 2.0))) is None
    assert case_ratio(parent, one(("a", 2.0), ("c", 3.0))) is None
    assert case_ratio(parent, None) is None
    assert one(("a", None), ("b", 1.0)) is None
    assert one(("a", 1.0), ("a", 2.0)) is None
    assert case_ratio(one((None, 4.0)), one((None, 1.0))) == 4.0


def test_flags_of_either_side_can_exclude():
    """A definition that lists a flag drops the edges of which parent or child has it."""
    runs = [
        Run("s", A, flags=("reference_drift",)),
        Run("s", B, parent="n0"),
        Run("s", C, parent="n1"),
        Run("s", D, parent="n2", flags=("reference_drift",)),
    ]
    got = select([Search("s")], runs, with_changes(RULE, exclude_flags=["reference_drift"]))
    assert len(got) == 1
    assert got.facts.facts["excluded"]["flagged"] == 2


def test_an_archive_without_trees_gives_an_empty_table():
    """No edge, no error, the right columns."""
    assert select([Search("s")], [Run("s", A)]).table.schema == TABLES["discovery_pairs"].schema


@st.composite
def trees(draw):
    """One or two searches in which every program has an earlier one as its parent."""
    runs = []
    for name in "st":
        for i in range(draw(st.integers(1, 8))):
            parent = None if i == 0 else f"n{draw(st.integers(0, i - 1))}"
            speedup = draw(st.sampled_from([None, 0.5, 1.0, 1.5, 4.0]))
            runs.append(Run(name, CODES[draw(st.integers(0, 9))], speedup, parent=parent))
    return runs


@settings(max_examples=25, deadline=None)
@given(runs=trees(), seed=st.integers(0, 99))
def test_any_row_order_gives_the_same_pairs(runs, seed):
    """Shuffled tables give the same table and facts; ids are unique."""
    tables = MemoryTables(make_tables([Search("s"), Search("t")], runs))
    first = select_discovery(SPLITS["discovery"], tables, RULE)
    second = select_discovery(SPLITS["discovery"], tables.shuffled(random.Random(seed)), RULE)
    assert first.table.equals(second.table)
    assert first.facts == second.facts
    rows = first.rows.to_dicts()
    assert len({r["row_id"] for r in rows}) == len(rows)
    pairs = [frozenset((r["parent_kernel_id"], r["child_kernel_id"])) for r in rows]
    assert len(set(pairs)) == len(pairs)
    assert all(len(p) == 2 for p in pairs)


@settings(max_examples=25, deadline=None)
@given(runs=trees())
def test_every_evaluation_is_a_pair_or_counted(runs):
    """Pairs and counts of what is none add up to the evaluations of the searches."""
    got = select([Search("s"), Search("t")], runs)
    assert len(got) + sum(got.facts.facts["excluded"].values()) == len(runs)
