"""Columns and orders that tell labels: planted ones are found, chance is not."""

from __future__ import annotations

import random
import shutil

import polars as pl
import pytest
from support.archives import Run, Search, make_archive, replant
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.label_order import (
    check_label_order,
    label_correlations,
    largest_correlation,
)
from kernel_archive.selection.make import make_splits
from kernel_archive.splits import SPLIT_TABLES

SEARCHES = [Search("held", "trimul"), Search("train", "trimul", role="training")]
RUNS = [
    Run(s.search_id, program(f"{s.search_id}{i}"), 0.2 * 1.09**i, parent="n0" if i else None)
    for s in SEARCHES
    for i in range(24)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A hand-made archive with splits: 24 rows of one task, 23 pairs."""
    place = make_archive(tmp_path_factory.mktemp("a") / "a", SEARCHES, RUNS)
    make_splits(place)
    return place


@pytest.fixture
def copy(made, tmp_path):
    """A copy to plant in."""
    return shutil.copytree(made, tmp_path / "a")


def test_the_rows_of_an_archive_tell_nothing(made):
    """No column of the tables as they are made orders the labels."""
    assert list(check_label_order(open_archive(made))) == []


@pytest.mark.parametrize("table", ["eval", "discovery_pairs"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_sorted_by_bin_are_an_error(copy, table, descending):
    """Whoever sorts the rows by bin gives the labels away by the row number."""
    replant(copy, table, lambda rows: sorted(rows, key=lambda r: r["bin"], reverse=descending))
    bad = open_archive(copy)
    (finding,) = check_label_order(bad)
    assert (finding.code, finding.severity) == ("ordered-labels", "error")
    assert finding.field == f"{table}.row number"
    assert "ordered-labels" in {f.code for f in check_splits(bad)}


@pytest.mark.parametrize(
    ("column", "values", "severity"),
    [
        ("row_id", lambda rank: f"{rank:04d}", "error"),
        ("kernel_id", lambda rank: f"{99 - rank:04d}", "warning"),
        ("search_id", lambda rank: f"chain-{rank // 2:02d}", "warning"),
        ("rtol", lambda rank: rank * 1e-9, "warning"),
        # Programs that did well were measured more often; no question says how often.
        ("n_measurements", lambda rank: rank, None),
    ],
)
def test_a_column_that_is_the_rank_is_found(copy, column, values, severity):
    """An id, a search or a tolerance that ascends with the speedup is named."""

    def plant(rows):
        ranked = sorted(row["speedup"] for row in rows)
        return [{**row, column: values(ranked.index(row["speedup"]) + 1)} for row in rows]

    replant(copy, "eval", plant)
    found = [(f.field, f.severity) for f in check_label_order(open_archive(copy))]
    assert found == ([(f"eval.{column}", severity)] if severity else [])


def test_correlations_by_hand():
    """Two tasks whose rows stand in the order of their speed: 1 each, and 1 over both."""
    split = SPLIT_TABLES["eval"]
    speedups = [factor * (i + 1) for factor in (0.1, 5.0) for i in range(8)]
    columns = {"row_id": list("hgfedcba") * 2, "task": list("aaaaaaaabbbbbbbb"), "gpu": ["x"] * 16}
    rows = pl.DataFrame({**columns, "speedup": speedups})
    values = label_correlations(split, rows)
    found = {(task, column): round(value, 9) for task, column, value, _ in values.rows()}
    names = {"row number": 1.0, "row_id": -1.0}
    assert {k: v for k, v in found.items() if k[1] in names} == {
        (task, name): v for task in ("all tasks", "a", "b") for name, v in names.items()
    }
    # One value says nothing.
    assert not any(column == "gpu" for _, column in found)


def test_chance_is_let_be():
    """tanh(4.5 sqrt(1.06 / (n - 3))); of 2,000 random orders of 8 to 80 rows none is more."""
    assert [round(largest_correlation(n), 3) for n in (8, 25, 80)] == [0.969, 0.756, 0.484]
    split, chance = SPLIT_TABLES["eval"], random.Random(7)
    for n in (8, 12, 25, 80):
        for _ in range(100):
            columns = {f"c{i}": chance.sample(range(n), n) for i in range(5)}
            rows = pl.DataFrame(
                {"task": ["t"] * n, "speedup": [1.0 + i for i in range(n)]} | columns
            )
            own = label_correlations(split, rows).filter(pl.col("column").str.starts_with("c"))
            assert len(own) == 10
            assert (own["value"].abs() <= own["limit"]).all()
