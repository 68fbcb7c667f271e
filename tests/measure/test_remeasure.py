"""Tests of which kernels of an archive are measured again."""

from __future__ import annotations

import pytest
from support.archives import Run, Search, make_archive, program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError
from kernel_archive.measure.remeasure import choose

SPEEDS = {1: 0.9, 2: 1.02, 3: 1.2, 4: 2.05, 5: 3.0}


SEARCHES = [
    Search("s/1", "trimul"),
    Search("s/2", "trimul", gpu="A100-80GB"),
    Search("s/3", "kernelbench_l3_p48"),
]
RUNS = [
    *(Run("s/1", program(i), s, flags=("unstable",) if i == 5 else ()) for i, s in SPEEDS.items()),
    Run("s/2", program(6), 0.98),
    Run("s/3", program(7), 1.01),
]


@pytest.fixture
def archive(tmp_path):
    """Five kernels of one task on an H200, one on an A100, one of a problem that has no task, one flagged."""
    return open_archive(make_archive(tmp_path / "a", SEARCHES, RUNS))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("all", {1, 2, 3, 4, 5, 6}),
        ("edge", {2, 4, 6}),
        ("flagged", {5}),
        ("speedup > 1.1 AND speedup < 2.5", {3, 4}),
    ],
)
def test_selection(archive, where, expected):
    """Edges within 5 %, flags, any condition; only problems that a task measures."""
    codes = {p.code for p in choose(archive, where)}
    assert codes == {program(i) for i in expected}


def test_edge_can_be_wider_and_gpus_named_by_alias(archive):
    """A share of 12 % around an edge takes the 0.9x and one GPU can be chosen by any of its names."""
    chosen = choose(archive, "edge", edge=0.12, gpu="NVIDIA H200")
    assert {p.code for p in chosen} == {program(i) for i in (1, 2, 4)}
    assert all(p.task == "trimul" and p.speedup is not None for p in chosen)


def test_limit_takes_the_first_by_id(archive, tmp_path):
    """At most so many: the first ones in order of id, whatever order the archive keeps its rows in."""
    rows = archive.sql("SELECT code FROM kernels WHERE problem = 'trimul' ORDER BY kernel_id").to_pylist()
    assert [p.code for p in choose(archive, "all", limit=2)] == [row["code"] for row in rows[:2]]
    backwards = make_archive(tmp_path / "b", SEARCHES, RUNS[::-1])
    assert choose(open_archive(backwards), "all", limit=2) == choose(archive, "all", limit=2)


def test_wrong_condition_and_missing_split_are_usage_errors(archive):
    """A slip in the condition is said in DuckDB's words; an archive without the split says how to make it."""
    with pytest.raises(UsageError, match="spedup"):
        choose(archive, "spedup > 3")
    with pytest.raises(UsageError, match="build-eval"):
        choose(archive, "eval")
