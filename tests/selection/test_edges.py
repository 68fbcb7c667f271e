"""Parent-child edges: what is one, and why the others are none."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.archives import Run, Search, kernel_ids, make_tables, program, reference

from kernel_archive.archive.labels import OVERRULED
from kernel_archive.selection.edges import find_edges, kernels_by_id

A, B, C, D = (program(x) for x in "ABCD")


def edges(searches, runs, only=None, **options):
    """Edges as (parent, child) positions of the runs, and the counts."""
    tables = make_tables(searches, runs)
    kernels = kernels_by_id(pa.concat_tables([tables["kernels/train"], tables["kernels/test"]]))
    names = kernel_ids(searches, runs)
    found, dropped = find_edges(tables["evaluations"], only or [s.search_id for s in searches], kernels, **options)
    return [(names.index(e.parent.kernel_id), names.index(e.child.kernel_id)) for e in found], dict(dropped), found


def test_direct_children_that_ran_are_edges():
    """A chain and a second child give three edges; the root gives none."""
    runs = [Run("s", A), Run("s", B, parent="n0"), Run("s", C, parent="n1"), Run("s", D, parent="n0")]
    assert edges([Search("s")], runs)[:2] == ([(0, 1), (1, 2), (0, 3)], {"root": 1})


def test_failures_give_no_edge():
    """A child that failed, and a child of one that failed, are counted and left out."""
    runs = [Run("s", A), Run("s", B, None, parent="n0"), Run("s", C, parent="n1")]
    assert edges([Search("s")], runs)[:2] == ([], {"root": 1, "child_failed": 1, "parent_failed": 1})


def test_parents_that_the_log_lost_give_no_edge():
    """An evicted parent, and a further ancestor in its place, are no direct parents."""
    runs = [Run("s", A), Run("s", B, parent="gone"), Run("s", C, parent="n0", distance=2)]
    assert edges([Search("s")], runs)[:2] == ([], {"root": 1, "parent_not_in_log": 2})


def test_of_nodes_of_one_name_the_last_is_the_parent():
    """A log that names nodes alike gives every child one parent: the last of them."""
    tables = make_tables([Search("s")], [Run("s", A), Run("s", B), Run("s", C, parent="n0")])
    kernels = kernels_by_id(pa.concat_tables([tables["kernels/train"], tables["kernels/test"]]))
    rows = tables["evaluations"].to_pylist()
    rows[1]["node_id"] = "n0"
    more = [{**rows[2], "evaluation_id": f"x{i}"} for i in range(100)]
    table = pa.Table.from_pylist([*rows, *more], schema=tables["evaluations"].schema)
    (edge,), dropped = find_edges(table, ["s"], kernels)
    assert (edge.parent.kernel_id, edge.child.kernel_id) == (rows[1]["kernel_id"], rows[2]["kernel_id"])
    assert dropped == {"root": 2, "repeat": 100}


def test_self_edges_and_repeats():
    """A program that came of itself is no edge; the same two programs give one, also the other way round."""
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
    """Parent and child that were timed against different references are not compared; one that no text is known of is one."""
    other = reference("trimul", 7)
    runs = [Run("s", A), Run("s", B, parent="n0", reference=other), Run("u", C), Run("u", D, parent="n0")]
    found, dropped, _ = edges([Search("s"), Search("u", reference=None)], runs)
    assert (len(found), dropped) == (1, {"root": 2, "cross_reference": 1})


def test_edges_across_gpus():
    """Parent and child on different GPUs are not compared."""
    runs = [Run("s", A), Run("s", B, parent="n0", gpu="L40S")]
    assert edges([Search("s")], runs)[1] == {"root": 1, "other_problem_or_gpu": 1}


def test_excluded_and_withheld_rows_give_no_edge():
    """An excluded child or parent gives none; so does a training kernel whose program is held out elsewhere."""
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
    """Both programs measured again: the edge stays, with the new ratio; one of them alone: the two don't compare."""
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
    assert (edge.ratio, edge.own_ratio, other.ratio) == (2.0, 3.0, 7 / 5)
    assert dropped == {"root": 1, "overruled_on_one_side": 1, "parent_not_in_log": 2}


def test_a_rule_of_ones_own_is_counted():
    """A further rule names why an edge does not count."""
    runs = [Run("s", A), Run("s", B, 9.0, parent="n0"), Run("s", C, parent="n0")]
    keep = lambda parent, child: "too fast" if child.speedup > 5 else None
    assert edges([Search("s")], runs, keep=keep)[:2] == ([(0, 2)], {"root": 1, "too fast": 1})


def test_ratio_is_of_medians_and_own_ratio_of_the_two_evaluations():
    """A child measured again elsewhere has the ratio of the medians; the edge's own measurements are kept beside it."""
    runs = [Run("s", A, 2.0), Run("s", B, 3.0, parent="n0"), Run("t", B, 4.0), Run("t", B, 5.0)]
    _, _, (edge,) = edges([Search("s"), Search("t")], runs)
    assert (edge.ratio, edge.own_ratio) == (2.0, 1.5)


def test_only_the_named_searches():
    """Edges of other searches are not looked at."""
    runs = [Run("s", A), Run("s", B, parent="n0"), Run("t", C), Run("t", D, parent="n0")]
    assert edges([Search("s"), Search("t")], runs, only=["t"])[0] == [(2, 3)]


def test_ratios_that_are_no_number():
    """Two speedups whose ratio no number holds give no edge, either way round; an evaluation's own ratio is left out then."""
    runs = [Run("s", A, 1e-320), Run("s", B, 1e300, parent="n0"), Run("s", C, 1e-320, parent="n1")]
    found, dropped, _ = edges([Search("s")], runs)
    assert (found, dropped) == ([], {"root": 1, "ratio_out_of_range": 2})
    runs = [
        Run("s", A, 1e-320),
        Run("s", B, 1e300, parent="n0"),
        *(Run("t", A, 2.0) for _ in range(2)),
        Run("t", B, 3.0),
    ]
    _, _, (edge,) = edges([Search("s"), Search("t")], runs, only=["s"])
    assert edge.own_ratio is None
    assert edge.ratio == edge.child.speedup / 2.0
