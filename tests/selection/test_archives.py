"""The hand-made archives that other tests stand on are archives."""

from __future__ import annotations

from support.archives import Run, Search, make_archive, program, validate_archive

from kernel_archive.archive.open import open_archive

SEARCHES = [
    Search("held"),
    Search("train", role="training"),
    Search("old", role="archive", method="agentic"),
]
RUNS = [
    Run("held", program("root"), 1.0),
    Run("held", program("a"), 1.5, parent="n0", cases=(50.0, 80.0)),
    Run("held", program("a"), 1.9, parent="n0", cases=(45.0, 70.0)),
    Run("held", program("broken"), None, parent="n0"),
    Run("train", program("root"), 1.2),
    Run("train", program("b"), 0.3, parent="n0"),
    Run("old", program("a", comment="renamed"), 1.4),
    Run("old", program("c"), 4.0, excluded="wrong"),
]


def test_hand_made_archive_is_valid(tmp_path):
    """Every layer of the validator accepts it: ids, labels, medians, train and test, provenance."""
    assert validate_archive(make_archive(tmp_path / "a", SEARCHES, RUNS)) == []


def test_hand_made_archive_keeps_the_rules(tmp_path):
    """Repeats give one row with their median, held-out programs and near duplicates leave train,
    failures stand apart.
    """
    archive = open_archive(make_archive(tmp_path / "a", SEARCHES, RUNS))
    assert archive.arrow("kernels", "test")["speedup"].to_pylist() == [1.0, 1.5]
    assert archive.arrow("kernels", "train")["speedup"].to_pylist() == [0.3]
    assert archive.arrow("failures").num_rows == 1
    assert archive.arrow("evaluations").num_rows == len(RUNS)
