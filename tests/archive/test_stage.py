"""Staged fragments are believed only as they were written."""

from __future__ import annotations

import pytest
from support.puct import RunLog, program, recipe

from kernel_archive.archive import search_rows
from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.archive.stage import stage_run
from kernel_archive.archive.store import Store
from kernel_archive.errors import LogError


@pytest.fixture
def job(tmp_path):
    """One small run."""
    log = RunLog()
    root = log.root(program("seed"), 1.0)
    log.child(root, program("fast"), 3.0)
    log.write(tmp_path / "src/logs/run")
    (only,) = jobs_of([find_recipe(str(recipe(tmp_path / "src", ("logs/*", "held_out"))))])
    (tmp_path / "stage").mkdir()
    return only


@pytest.mark.parametrize("ending", [".parquet", ".run"])
def test_any_flipped_bit_is_found(job, tmp_path, ending):
    """Wherever a bit flips, in the rows or in the facts beside them, the run is read again."""
    place = tmp_path / "stage"
    first, _ = stage_run(job, Store(str(place)))
    (victim,) = place.glob("*" + ending)
    whole = victim.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        again, anew = stage_run(job, Store(str(place)))
        assert (again, anew) == (first, True)
        assert victim.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_fragment_that_is_cut_or_gone_is_made_again(job, tmp_path, damage):
    """An empty file, one of another kind, and none."""
    first, _ = stage_run(job, Store(str(tmp_path / "stage")))
    for victim in list((tmp_path / "stage").iterdir()):
        victim.unlink() if damage is None else victim.write_bytes(damage)
        assert stage_run(job, Store(str(tmp_path / "stage"))) == (first, True)


def test_a_run_that_takes_all_memory_is_named(job, tmp_path, monkeypatch):
    """It fails alone, with its name, and leaves nothing staged."""

    def too_much(rows):
        raise MemoryError

    monkeypatch.setattr(search_rows, "fragment_table", too_much)
    with pytest.raises(LogError, match="made/run takes more memory"):
        stage_run(job, Store(str(tmp_path / "stage")))
    assert list((tmp_path / "stage").iterdir()) == []
