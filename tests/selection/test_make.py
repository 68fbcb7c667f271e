"""Making and remaking the splits of an archive directory."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager

import pytest
from support.archives import Run, Search, make_archive, remake, validate_archive
from support.folders import contents
from support.parents import RUNS, SEARCHES
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.swap import locked_work_folder, replaced_directory
from kernel_archive.errors import UsageError
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.make import make_splits, remade_split
from kernel_archive.splits import SPLIT_TABLES


def test_makes_every_split(place):
    """The archive holds every split with facts that agree, and stays valid."""
    opened = open_archive(place)
    empty = {"eval_problems", "eval_cuda", "eval_close", "eval_search", "discovery_search"}
    empty |= {"validity"}
    assert set(opened.manifest.splits) == set(SPLIT_TABLES) - {"eval_transfer"}
    for name, facts in opened.manifest.splits.items():
        assert (facts.name, facts.origin) == ("canonical", "selected")
        assert facts.logical_digest == opened.manifest.tables[name].logical_digest
        assert facts.rows == opened.arrow(name).num_rows
        assert (facts.rows > 0) == (name not in empty)
    assert validate_archive(place) == []
    assert check_splits(opened) == []
    plain = open_archive(
        make_archive(place.parent / "plain", SEARCHES, RUNS, version="1.0")
    ).manifest
    assert opened.manifest.measured_digest == plain.measured_digest
    assert opened.manifest.logical_digest != plain.logical_digest
    assert opened.manifest.tables.items() >= plain.tables.items()


def test_same_input_same_bytes(place, tmp_path):
    """Made again elsewhere, or in the archive itself, every file has the same bytes."""
    other = make_archive(tmp_path / "other", SEARCHES, RUNS, version="1.0")
    make_splits(other)
    assert contents(place) == contents(other)
    for name in ("eval", "discovery_pairs", "train_pairs"):
        remake(place, name)
    assert contents(place) == contents(other)


def test_variant_and_back(place):
    """Another cap makes a variant that says so in name and facts."""
    first = contents(place)
    assert re.fullmatch("eval-[0-9a-f]{8}", remake(place, "eval", cap=1).facts.name)
    assert open_archive(place).manifest.splits["eval"].parameters["cap"] == 1
    assert check_splits(open_archive(place)) == []
    changed = {name for name, data in contents(place).items() if first.get(name) != data}
    assert {name for name in changed if "/eval" not in name} == {"manifest.json"}
    remake(place, "eval")
    assert contents(place) == first


def test_what_goes_wrong_leaves_the_archive_as_it_was(place):
    """When the card can't be written readers see the old archive; a damaged file is made again."""
    first = contents(place)
    with pytest.raises(OSError, match="no room"), remade_split(place, "eval", cap=1):
        raise OSError("no room")
    assert contents(place) == first
    (path,) = (place / "data/eval").glob("*.parquet")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-9] + b"x" + data[-8:])
    remake(place, "eval")
    assert contents(place) == first


def test_several_gpus_leave_eval_out_of_a_build_and_stop_a_command(tmp_path):
    """A build makes what it can and says why eval is missing; the command asks for the GPU."""
    searches = [Search("a", gpu="H200"), Search("b", gpu="L40S"), Search("t", role="training")]
    runs = [Run(s.search_id, program(s.search_id), 2.0) for s in searches for _ in range(3)]
    own = make_archive(tmp_path / "own", searches, runs)
    assert make_splits(own).splits["eval"].parameters["gpu"] == "H200"
    place = make_archive(tmp_path / "a", searches, runs, eval_rules=None)
    assert "H200, L40S" in make_splits(place).reports["splits_not_made"]["eval"]
    opened = open_archive(place)
    assert "eval" not in opened.manifest.tables
    missing = {f.field: f.severity for f in check_splits(opened) if "H200, L40S" in f.message}
    assert missing["eval"] == "warning"
    with pytest.raises(UsageError, match="--gpu"):
        remake(place, "eval")
    assert remake(place, "eval", gpu="L40S").facts.name.startswith("eval-")
    assert "eval" not in open_archive(place).manifest.reports["splits_not_made"]
    with pytest.raises(UsageError, match="GPUs with such kernels: H200, L40S"):
        remake(place, "eval", gpu="B200")


def test_training_avoids_the_discovery_pairs_that_are_there(tmp_path):
    """An edge of an archive search that training has measured too is in discovery_pairs alone."""
    searches = [Search("old", role="archive"), Search("train", role="training")]
    pair = [program("shared parent"), program("shared child")]
    runs = [
        Run(name, code, 1.0 + i, parent="n0" if i else None)
        for name in ("old", "train")
        for i, code in enumerate(pair)
    ]
    place = make_archive(tmp_path / "a", searches, runs)
    make_splits(place)
    opened = open_archive(place)
    assert opened.arrow("discovery_pairs")["child_code"].to_pylist() == [pair[1]]
    assert opened.arrow("train_pairs")["pair_type"].to_pylist() == ["seed", "seed"]
    assert opened.manifest.splits["train_pairs"].facts["no_edges"]["discovery_pair"] == 1
    assert check_splits(opened) == []


def test_archive_without_anything(tmp_path):
    """An archive of one failing program has empty splits, and they are valid."""
    place = make_archive(tmp_path / "a", [Search("s")], [Run("s", program("x"), None)])
    make_splits(place)
    opened = open_archive(place)
    rows = {n: f.rows for n, f in opened.manifest.splits.items()}
    assert rows == dict.fromkeys([n for n in SPLIT_TABLES if n != "eval_transfer"], 0)
    assert check_splits(opened) == []


def test_what_another_process_finished_before_the_lock_is_kept(place, monkeypatch):
    """An archive replaced just before the lock is taken is the one that is read."""
    runs = [*RUNS, Run("held", program("late"), 3.0)]
    newer = make_archive(place.parent / "newer", SEARCHES, runs, version="new")
    make_splits(newer)

    @contextmanager
    def late(folder):
        with locked_work_folder(folder):
            with replaced_directory(place) as new:
                shutil.copytree(newer, new, dirs_exist_ok=True)
            yield

    monkeypatch.setattr("kernel_archive.selection.make.locked_work_folder", late)
    remake(place, "eval", cap=1)
    assert open_archive(place).manifest.version == "new"
    assert check_splits(open_archive(place)) == []
