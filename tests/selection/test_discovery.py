"""Edges of search trees and discovery pairs, on archives whose right rows are known."""

from __future__ import annotations

import math
import random

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import Run, Search, kernel_ids, make_tables, memory_tables, reference
from support.programs import program

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.schema import TABLES
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.discovery import case_ratio, case_times, find_edges
from kernel_archive.selection.make import select_split
from kernel_archive.splits import SPLITS

DEFINITION = load_definition("discovery")
CODES = [program(f"d{i}") for i in range(24)]
A, B, C, D = CODES[:4]
S, T = Search("s"), Search("t")


def select(searches, runs, definition=DEFINITION, rng=None):
    """The pairs of a hand-made archive."""
    tables = memory_tables(make_tables(searches, runs), rng=rng)
    return select_split(SPLITS["discovery"], tables, {}, definition)


def edges(searches, runs, **columns):
    """Edges as positions of parent and child among the runs, counts of the rest, and the ratios.

    ``columns`` are values of evaluations that no build writes, by run.
    """
    tables = make_tables(searches, runs)
    for name in ("evaluations", "kernels/test"):
        for column, values in columns.items():
            at = tables[name].schema.get_field_index(column)
            if at >= 0:
                tables[name] = tables[name].set_column(at, column, pa.array(values))
    kernels = pl.concat([pl.DataFrame(tables[f"kernels/{part}"]) for part in ("train", "test")])
    found, dropped = find_edges(pl.DataFrame(tables["evaluations"]), kernels, {})
    names = kernel_ids(searches, runs)
    pairs = found.select("parent_kernel_id", "child_kernel_id").rows()
    positions = [(names.index(p), names.index(c)) for p, c in pairs]
    return positions, dict(dropped), found["ratio"].to_list()


@pytest.mark.parametrize(
    ("runs", "found", "dropped"),
    [
        pytest.param(
            [Run("s", A), *(Run("s", c, parent=p) for c, p in ((B, "n0"), (C, "n1"), (D, "n0")))],
            [(0, 1), (1, 2), (0, 3)],
            {"root": 1},
            id="direct children",
        ),
        pytest.param(
            [Run("s", A), Run("s", B, None, parent="n0"), Run("s", C, parent="n1")],
            [],
            {"root": 1, "child_failed": 1, "parent_failed": 1},
            id="failures",
        ),
        pytest.param(
            [Run("s", A), Run("s", B, parent="gone"), Run("s", C, parent="n0", distance=2)],
            [],
            {"root": 1, "parent_not_in_log": 2},
            id="lost parents",
        ),
        pytest.param(
            [
                Run("s", A),
                Run("s", A, 1.1, parent="n0"),
                Run("s", B, parent="n0"),
                Run("s", A, parent="n2"),
                Run("t", A),
                Run("t", B, parent="n0"),
            ],
            [(0, 2)],
            {"root": 2, "self_edge": 1, "repeat": 2},
            id="a program of itself, and the same two again, either way round",
        ),
        pytest.param(
            [Run("s", A), Run("s", B, parent="n0", reference=reference("trimul", 7))],
            [],
            {"root": 1, "cross_reference": 1},
            id="another reference",
        ),
        pytest.param(
            [Run("s", A), Run("s", B, parent="n0", gpu="L40S")],
            [],
            {"root": 1, "other_problem_or_gpu": 1},
            id="another GPU",
        ),
        pytest.param(
            [Run("s", A), Run("s", B, parent="n0", excluded="wrong"), Run("s", C, parent="n1")],
            [],
            {"root": 1, "excluded": 2},
            id="excluded",
        ),
    ],
)
def test_which_evaluations_are_edges(runs, found, dropped):
    """Each evaluation is an edge or counted by the reason why it is none."""
    assert edges([S, T], runs)[:2] == (found, dropped)


def test_rows_that_no_build_writes():
    """Of nodes of one name the last is meant; a ratio that no number holds is none."""
    runs = [Run("s", A), Run("s", B), Run("s", C, parent="n0")]
    found, dropped, _ = edges([S], runs, node_id=["n0", "n0", "n2"])
    assert (found, dropped) == ([(1, 2)], {"root": 2})
    runs = [Run("s", A), Run("s", B, parent="n0")]
    found, dropped, _ = edges([S], runs, speedup=[1e-320, 1e300])
    assert (found, dropped) == ([], {"root": 1, "ratio_out_of_range": 1})


def test_withheld_rows_give_no_edge():
    """A training kernel whose program is held out elsewhere is no child."""
    runs = [Run("s", A), Run("t", B), Run("t", program("d0", comment="copy"), parent="n0")]
    assert edges([S, Search("t", role="training")], runs)[:2] == ([], {"root": 2, "excluded": 1})


@pytest.mark.parametrize("reason", sorted(OVERRULED))
def test_overruled_measurements(reason):
    """Both programs measured again: the edge stays, with the new ratio; one of them alone."""
    old, new = Search("old"), Search("new", method="remeasurement")
    first = [
        Run("old", A, 1.0, excluded=reason),
        Run("old", B, 3.0, parent="n0", excluded=reason),
        Run("old", C, 5.0, parent="n1"),
        Run("old", D, 7.0, parent="n2"),
    ]
    again = [Run("new", A, 2.0, parent="gone"), Run("new", B, 4.0, parent="gone")]
    found, dropped, ratios = edges([old, new], [*first, *again])
    assert (found, ratios) == ([(0, 1), (2, 3)], [2.0, 7 / 5])
    assert dropped == {"root": 1, "overruled_on_one_side": 1, "parent_not_in_log": 2}


def test_ratio_is_of_medians():
    """A child measured again elsewhere has the ratio of the medians."""
    runs = [Run("s", A, 2.0), Run("s", B, 3.0, parent="n0"), Run("t", B, 4.0), Run("t", B, 5.0)]
    assert edges([S, T], runs)[2] == [2.0]


def test_table_has_exactly_the_schema_and_both_programs():
    """G is child over parent; ids and texts are those of the two kernels."""
    runs = [Run("s", A, 2.0), Run("s", B, 3.0, parent="n0")]
    table = select([S], runs).table
    assert table.schema == TABLES["discovery_pairs"].schema
    (row,) = table.to_pylist()
    assert (row["g"], row["bin"], row["parent_code"], row["child_code"]) == (1.5, 6, A, B)
    assert [row["parent_kernel_id"], row["child_kernel_id"]] == kernel_ids([S], runs)
    assert (row["search_id"], row["family"], row["g_cases"]) == ("s", "gpu_mode", None)
    assert select([S], runs[:1]).table.schema == table.schema


@pytest.mark.parametrize(
    ("search", "rows"),
    [
        (Search("s"), 1),
        (Search("s", method="bin_filling"), 1),
        (Search("s", role="archive"), 1),
        (Search("s", "kernelbench_l3_p48", gpu="L40S"), 1),
        (Search("s", finished=False), 1),
        (Search("s", role="training"), 0),
        (Search("s", method="local_search"), 0),
        (Search("s", builder="generated"), 0),
    ],
)
def test_which_searches_count(search, rows):
    """Methods with one parent an edit, of any GPU, family and role but training, natural ones."""
    runs = [Run("s", A), Run("s", B, parent="n0")]
    assert len(select([search], runs).rows) == rows


@pytest.mark.parametrize(("without", "rows"), [([], 1), (["a"], 0), (["b"], 1)])
def test_builders_that_have_pairs_of_their_own(without, rows):
    """A definition may leave the programs of builders to another split."""
    definition = with_changes(DEFINITION, natural=False, without_builders=without)
    runs = [Run("s", A), Run("s", B, parent="n0")]
    assert len(select([Search("s", builder="a")], runs, definition).rows) == rows


def test_variants_leave_out_flagged_programs():
    """A definition may list flags of either program; such a split is a variant."""
    runs = [Run("s", A), Run("s", B, parent="n0")]
    runs += [Run("t", C, flags=("reference_drift",)), Run("t", D, parent="n0")]
    got = select([S, T], runs, with_changes(DEFINITION, exclude_flags=["reference_drift"]))
    assert got.rows["search_id"].to_list() == ["s"]
    assert got.facts.facts["excluded"]["flagged"] == 1
    assert got.facts.name.startswith("discovery-")


def test_children_that_were_measured_too_seldom():
    """A definition may ask for repeated measurements of the child; the parent may have one."""
    runs = [
        Run("s", A),
        Run("s", B, parent="n0"),
        Run("s", B, parent="n0"),
        Run("s", C, parent="n0"),
    ]
    got = select([S], runs, with_changes(DEFINITION, measured=2))
    assert got.rows["child_kernel_id"].n_unique() == 1
    assert got.facts.facts["excluded"]["measured_too_seldom"] == 1


def test_cutoffs_are_counted_per_family():
    """Pairs at or above each cutoff, in all and per family."""
    runs = [Run("s", A), Run("s", B, 1.6, parent="n0"), Run("k", C), Run("k", D, 2.0, parent="n0")]
    facts = select([S, Search("k", "kernelbench_l3_p1")], runs).facts.facts
    assert facts["cutoffs"] == {
        "all": {"rows": 2, "1.25": 2, "1.5": 2, "2": 1},
        "gpu_mode": {"rows": 1, "1.25": 1, "1.5": 1, "2": 0},
        "kernelbench": {"rows": 1, "1.25": 1, "1.5": 1, "2": 1},
    }


def test_case_ratio_by_hand():
    """Two cases, parent 80 and 20 us, child 40 and 5 us; both must have the same cases."""
    runs = [Run("s", A, 2.0, cases=(80.0, 20.0)), Run("s", B, 3.0, parent="n0", cases=(40.0, 5.0))]
    assert select([S], runs).rows["g_cases"].to_list() == [pytest.approx(math.sqrt(8), rel=1e-11)]

    def times(*cases):
        return case_times([{"shape": shape, "runtime_us": time} for shape, time in cases])

    parent = times(("a", 4.0), ("b", 9.0))
    assert case_ratio(parent, times(("b", 3.0), ("a", 2.0))) == pytest.approx(6**0.5, rel=1e-11)
    for other in (times(("a", 2.0)), times(("a", 2.0), ("c", 3.0)), {}):
        assert case_ratio(parent, other) is None
    assert times(("a", None), ("b", 1.0)) == times(("a", 1.0), ("a", 2.0)) == {}
    assert case_ratio(times((None, 4.0)), times((None, 1.0))) == 4.0


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
    """Shuffled tables give the same table and facts; every evaluation is a pair or counted."""
    first, second = (select([S, T], runs, rng=rng) for rng in (None, random.Random(seed)))
    assert first.table.equals(second.table)
    assert first.facts == second.facts
    pairs = first.rows.select("parent_kernel_id", "child_kernel_id").rows()
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert len(pairs) + sum(first.facts.facts["excluded"].values()) == len(runs)
