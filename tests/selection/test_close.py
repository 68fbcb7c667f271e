"""Close pairs on archives whose right pairs are known."""

from __future__ import annotations

import random

import polars as pl
import pytest
from support.archives import Run, Search, make_tables, memory_tables, with_column
from support.programs import jaccard, program

from kernel_archive.schema import TABLES
from kernel_archive.selection.close import draw_pairs
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.make import select_split
from kernel_archive.splits import SPLITS

DEFINITION = load_definition("eval_close")
CODES = [program(f"c{i}") for i in range(40)]


def measured(speedups, *, search="s", spread=0.0, parent=None, first=0):
    """Runs of one program for each speedup, measured three times: x, x (1 - spread), x (1 + s)."""
    return [
        Run(search, CODES[first + i], speedup * factor, node=f"{first + i}.{k}", parent=parent)
        for i, speedup in enumerate(speedups)
        for k, factor in enumerate((1.0, 1.0 - spread, 1.0 + spread))
    ]


def select(runs, goals=None, definition=DEFINITION, searches=None, rng=None):
    """The close pairs of a hand-made archive; ``goals`` by program text, 4 for the others."""
    tables = make_tables(searches or [Search("s")], runs)
    kernels = tables["kernels/test"]
    listed = [(goals or {}).get(code, 4) for code in kernels["code"].to_pylist()]
    tables["kernels/test"] = with_column(kernels, "goal_bin", listed)
    return select_split(SPLITS["eval_close"], memory_tables(tables, rng=rng), {}, definition)


def test_the_table_and_a_pair_by_hand():
    """Ratio and noise of one pair: two relative standard errors of 0.01 / sqrt(3) each."""
    selection = select(measured([1.0, 1.5], spread=0.01))
    assert selection.table.schema == TABLES["eval_close"].schema
    (row,) = selection.table.to_pylist()
    faster = row["second_code"] == CODES[1]
    assert row["ratio"] == pytest.approx(1.5 if faster else 1 / 1.5)
    assert row["noise"] == pytest.approx(0.01 * (2 / 3) ** 0.5)
    assert {row["first_code"], row["second_code"]} == set(CODES[:2])
    assert (row["task"], row["gpu"], row["bin"]) == ("trimul", "H200", 6 if faster else 3)
    assert selection.facts.name == "canonical"


@pytest.mark.parametrize(
    ("speedups", "spread", "pairs"),
    [
        ([1.0, 1.04], 0.0, 0),
        ([1.0, 1.06], 0.0, 1),
        ([1.0, 1.99], 0.0, 1),
        ([1.0, 2.01], 0.0, 0),
        # 3 x 0.02 x sqrt(2 / 3) = 0.049; 3 x 0.03 x sqrt(2 / 3) = 0.073
        ([1.0, 1.06], 0.02, 1),
        ([1.0, 1.06], 0.03, 0),
    ],
)
def test_how_far_apart_two_programs_must_be(speedups, spread, pairs):
    """In the range of the definition, and by three combined standard errors."""
    assert len(select(measured(speedups, spread=spread)).rows) == pairs


def test_one_goal_or_one_parent():
    """Another goal makes no pair, unless both have one parent in one chain; without goals none."""
    runs = measured([1.0, 1.2])
    assert len(select(runs, {CODES[0]: 3}).rows) == 0
    assert len(select(runs, dict.fromkeys(CODES)).rows) == 0
    root = measured([9.0], first=9)
    children = measured([1.0, 1.2], parent="9.0")
    assert len(select([*root, *children], {CODES[0]: 3}).rows) == 1
    other = measured([1.2], search="o", parent="9.0", first=1)
    two = [Search("s"), Search("o")]
    assert len(select([*root, *children[:3], *other], {CODES[0]: 3}, searches=two).rows) == 0
    seldom = select(runs[:5])
    assert seldom.facts.facts["excluded"]["measured_too_seldom"] == 1


def test_near_copies_make_one_pair_with_another_program():
    """Of two classes of near copies one pair is taken."""
    text = program("base", size=16)
    copy = text.replace("pid + 15)", "pid + 100)")
    assert jaccard(text, copy) >= 0.7
    near = [Run("s", c, s, node=f"{c}{k}") for c, s in ((text, 1.2), (copy, 1.3)) for k in "abc"]
    repeated = with_changes(DEFINITION, pairs_per_program=9)
    pairs = select([*measured([1.0]), *near], definition=repeated)
    # The copies make a pair of their own; of theirs with the third program one is taken.
    assert len(pairs.rows) == 2


def test_the_order_of_the_archive_says_nothing():
    """Shuffled tables give the same table; which program is first is a matter of hashes."""
    runs = measured([1.07**i for i in range(9)])
    first, again = (select(runs, rng=rng) for rng in (None, random.Random(3)))
    assert first.table.equals(again.table)
    assert 0 < (first.rows["ratio"] > 1).sum() < len(first.rows)


def test_drawing_by_hand():
    """a-b, c-d and a-c of one task, x-y of another: turns, limits and classes."""
    rows = [("1", "t", "a", "b"), ("2", "t", "c", "d"), ("3", "t", "a", "c"), ("4", "u", "x", "y")]
    names = ["row_id", "first_problem", "first_kernel_id", "second_kernel_id"]
    pairs = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        first_program_id="first_kernel_id", second_program_id="second_kernel_id"
    )

    def draw(classes=None, **changes):
        return draw_pairs(pairs, classes or {}, with_changes(DEFINITION, **changes))

    assert draw() == ["1", "4", "2", "3"]
    assert draw(pairs=3) == ["1", "4", "2"]
    assert draw(pairs_per_program=1) == ["1", "4", "2"]
    assert draw({"d": "a", "c": "b"}) == ["1", "4"]
