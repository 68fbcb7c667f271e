"""What changed between two versions, from archives and from frozen splits."""

from __future__ import annotations

import dataclasses

import pytest
from support.archives import Run, kernel_ids, make_archive
from support.parents import RUNS, SEARCHES
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import ArchiveNotFoundError
from kernel_archive.selection.diff import diff
from kernel_archive.selection.inputs import INPUTS
from kernel_archive.selection.make import make_splits
from kernel_archive.splits import SPLIT_TABLES

NAMES = kernel_ids(SEARCHES, RUNS)


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """One kernel gone, one new, one measured again into another bin, one hardly changed."""
    runs = [r for r in RUNS if r is not RUNS[7]]
    runs[2] = dataclasses.replace(runs[2], speedup=3.3)
    runs[3] = dataclasses.replace(runs[3], speedup=RUNS[3].speedup * 1.0001)
    runs.insert(7, Run("held", program("new"), 0.9, parent="n0"))
    place = make_archive(tmp_path_factory.mktemp("new") / "a", SEARCHES, runs, version="1.1")
    make_splits(place)
    return place


def by_table(found):
    """Differences by table."""
    return {t["table"]: t for t in found["tables"]}


def test_same_archive(parents):
    """An archive is the same as itself, in every table."""
    found = diff(parents, parents)
    tables = open_archive(parents).manifest.tables.items()
    held = {name: sum(facts.rows.values()) for name, facts in tables if name not in INPUTS}
    assert {t["table"]: t["rows_new"] for t in found["tables"]} == held
    assert not any(t["changed"] for t in found["tables"])


def test_every_kind_of_change_is_found(parents, new):
    """Rows added, removed, measured again and relabelled are named."""
    found = by_table(diff(parents, new))
    added = kernel_ids(SEARCHES, [Run("held", program("new"))])
    for name in ("kernels", "eval"):
        table = found[name]
        assert (table["added"], table["removed"]) == (added, [NAMES[7]])
        assert set(table["remeasured"]) == {NAMES[2], NAMES[3]}
        assert table["relabelled"] == [NAMES[2]]
    # Every edge of the held-out search starts at n0; g changed with its child.
    counts = [len(found["discovery_pairs"][k]) for k in ("remeasured", "added", "removed")]
    assert counts == [2, 1, 1]
    assert not found["train_pairs"]["changed"]
    assert not found["references"]["changed"]
    assert (found["evaluations"]["added"], found["evaluations"]["changed"]) == ([], True)


def test_moved_kernels_under_one_digest(parents, tmp_path):
    """A row that only went from train to test is a change, though the digest is the same."""

    def swap(rows):
        rows["kernels", "test"].append(rows["kernels", "train"].pop())

    place = make_archive(tmp_path / "moved", SEARCHES, RUNS, version="1.1", plant=swap)
    digests = [open_archive(p).manifest.tables["kernels"].logical_digest for p in (parents, place)]
    assert digests[0] == digests[1]
    table = by_table(diff(parents, place))["kernels"]
    assert (table["added"], table["removed"], table["changed"]) == ([], [], True)


def test_tables_of_one_side_only(parents, tmp_path):
    """A split that one archive lacks is named, not compared; a missing path is an error."""
    plain = make_archive(tmp_path / "plain", SEARCHES, RUNS)
    found = diff(plain, parents)
    assert found["only_new"] == [name for name in SPLIT_TABLES if name != "eval_transfer"]
    assert diff(parents, plain)["only_old"] == found["only_new"]
    with pytest.raises(ArchiveNotFoundError):
        diff(parents, tmp_path / "none")
