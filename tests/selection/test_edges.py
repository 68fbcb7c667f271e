"""Parent-child edges: what is one, and why the others are none."""

from __future__ import annotations

import polars as pl
import pytest
from support.archives import Run, Search, kernel_ids, make_tables, program, reference

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.edges import find_edges

A, B, C, D = (program(x) for x in "ABCD")


def edges(searches, runs, only=None, **options):
    """Edges as (parent, child) positions of the runs, and the counts."""
    tables = make_tables(searches, runs)
    kernels = pl.concat([pl.DataFrame(tables[f"kernels/{part}"]) for part in ("train", "test")])
    names = kernel_ids(searches, runs)
    rows = pl.DataFrame(tables["evaluations"]).filter(
        pl.col("search_id").is_in(only or [s.search_id for s in searches])
    )
    found, dropped = find_edges(rows, kernels, **options)
    pairs = found.select("parent_kernel_id", "child_kernel_id").rows()
    return [(names.index(p), names.index(c)) for p, c in pairs], dict(dropped), found.to_dicts()


def test_direct_children_that_ran_are_edges():
    """A chain and a second child give three edges; the root gives none."""
    runs = [
        Run("s", A),
        Run("s", B, parent="n0"),
        Run("s", C, parent="n1"),
        Run("s", D, parent="n0"),
    ]
    assert edges([Search("s")], runs)[:2] == ([(0, 1), (1, 2), (0, 3)], {"root": 1})


def test_failures_give_no_edge():
    """A child that failed, and a child of one that failed, are counted and left out."""
    runs = [Run("s", A), Run("s", B, None, parent="n0"), Run("s", C, parent="n1")]
    assert edges([Search("s")], runs)[:2] == (
        [],
        {"root": 1, "child_failed": 1, "parent_failed": 1},
    )


def test_parents_that_the_log_lost_give_no_edge():
    """An evicted parent, and a further ancestor in its place, are no direct parents."""
    runs = [Run("s", A), Run("s", B, parent="gone"), Run("s", C, parent="n0", distance=2)]
    assert edges([Search("s")], runs)[:2] == ([], {"root": 1, "parent_not_in_log": 2})


def test_of_nodes_of_one_name_the_last_is_the_parent():
    """A log that names nodes alike gives every child one parent: the last of them."""
    tables = make_tables([Search("s")], [Run("s", A), Run("s", B), Run("s", C, parent="n0")])
    kernels = pl.concat([pl.DataFrame(tables[f"kernels/{part}"]) for part in ("train", "test")])
    rows = tables["evaluations"].to_pylist()
    rows[1]["node_id"] = "n0"
    more = [{**rows[2], "evaluation_id": f"x{i}"} for i in range(100)]
    schema = pl.DataFrame(tables["evaluations"]).schema
    found, dropped = find_edges(pl.DataFrame([*rows, *more], schema=schema), kernels)
    pair = (rows[1]["kernel_id"], rows[2]["kernel_id"])
    assert found.select("parent_kernel_id", "child_kernel_id").rows() == [pair]
    assert dropped == {"root": 2, "repeat": 100}


def test_self_edges_and_repeats():
    """A program that came of itself is no edge.

    The same two programs give one, also the other way round.
    """
    runs = [
        Run("s", A),
        Run("s", A, 1.1, parent="n0"),
        Run("s", B, parent="n0"),
        Run("s", B, parent="n1"),
        Run("s", A, parent="n2"),
        Run("t", A),
        Run("t", B, parent="n0"),
    ]
    found, dropped, _ = edges([Search("s"), Search("t")], runs)
    assert found == [(0, 2)]
    assert dropped == {"root": 2, "self_edge": 1, "repeat": 3}


def test_edges_across_references():
    """Parent and child that were timed against different references are not compared."""
    other = reference("trimul", 7)
    runs = [
        Run("s", A),
        Run("s", B, parent="n0", reference=other),
        Run("u", C),
        Run("u", D, parent="n0"),
    ]
    found, dropped, _ = edges([Search("s"), Search("u", reference=None)], runs)
    assert (len(found), dropped) == (1, {"root": 2, "cross_reference": 1})


def test_edges_across_gpus():
    """Parent and child on different GPUs are not compared."""
    runs = [Run("s", A), Run("s", B, parent="n0", gpu="L40S")]
    assert edges([Search("s")], runs)[1] == {"root": 1, "other_problem_or_gpu": 1}


def test_excluded_and_withheld_rows_give_no_edge():
    """An excluded child or parent gives none.

    So does a training kernel whose program is held out elsewhere.
    """
    runs = [
        Run("s", A),
        Run("s", B, parent="n0", excluded="wrong"),
        Run("s", C, parent="n1"),
        Run("t", program("t")),
        Run("t", program("A", comment="copy"), parent="n0"),
    ]
    found, dropped, _ = edges([Search("s"), Search("t", role="training")], runs)
    assert found == []
    assert dropped == {"root": 2, "excluded": 3}


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
    found, dropped, (edge, other) = edges([old, new], [*first, *again])
    assert found == [(0, 1), (2, 3)]
    assert (edge["ratio"], other["ratio"]) == (2.0, 7 / 5)
    assert dropped == {"root": 1, "overruled_on_one_side": 1, "parent_not_in_log": 2}


def test_ratio_is_of_medians():
    """A child measured again elsewhere has the ratio of the medians."""
    runs = [Run("s", A, 2.0), Run("s", B, 3.0, parent="n0"), Run("t", B, 4.0), Run("t", B, 5.0)]
    _, _, (edge,) = edges([Search("s"), Search("t")], runs)
    assert edge["ratio"] == 2.0


def test_ratios_that_are_no_number():
    """Two speedups whose ratio no number holds give no edge, either way round."""
    runs = [Run("s", A, 1e-320), Run("s", B, 1e300, parent="n0"), Run("s", C, 1e-320, parent="n1")]
    found, dropped, _ = edges([Search("s")], runs)
    assert (found, dropped) == ([], {"root": 1, "ratio_out_of_range": 2})
