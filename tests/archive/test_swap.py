"""Replacing a directory: old or new at every moment, on disk before it has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel_archive.archive import swap
from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import TargetExistsError


def filled(target):
    """Make or replace a directory with a few files."""
    with replaced_directory(target) as new:
        (new / "data/kernels").mkdir(parents=True)
        (new / "data/kernels/x.parquet").write_text("rows")
        (new / "manifest.json").write_text("{}")


@pytest.fixture
def calls(monkeypatch):
    """What is flushed, renamed and deleted, in order."""
    seen = []
    real = {"fsync": os.fsync, "rename": os.rename, "rmtree": swap.shutil.rmtree}

    def fsync(fd):
        seen.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        real["fsync"](fd)

    def rename(a, b):
        seen.append(("rename", str(a)))
        real["rename"](a, b)

    def exchange(a, b):
        seen.append(("rename", str(a)))
        return real_exchange(a, b)

    def rmtree(path, **more):
        seen.append(("delete", str(path)))
        real["rmtree"](path, **more)

    real_exchange = swap._exchange
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(swap, "_exchange", exchange)
    monkeypatch.setattr(swap.shutil, "rmtree", rmtree)
    return seen


@pytest.mark.parametrize("can_swap", [True, False])
def test_contents_are_on_disk_before_names_and_names_before_the_old_goes(
    tmp_path, calls, monkeypatch, can_swap
):
    """Files, then their folders from below, then the rename, then the parent."""
    target = tmp_path / "a"
    filled(target)
    if not can_swap:
        monkeypatch.setattr(swap, "_exchange", lambda a, b: False)
    calls.clear()
    filled(target)
    kinds = [kind for kind, _ in calls]
    synced = [
        place.split("/new.", 1)[-1].partition("/")[2] for kind, place in calls if kind == "sync"
    ]
    renamed = kinds.index("rename")
    assert (
        synced.index("data/kernels/x.parquet")
        < synced.index("data/kernels")
        < synced.index("data")
        < synced.index("")
    )
    assert synced[: kinds[:renamed].count("sync")][-1] == "", (
        "the new directory itself comes last before the rename"
    )
    last_rename = len(kinds) - 1 - kinds[::-1].index("rename")
    assert calls[last_rename + 1 :][0] == ("sync", str(tmp_path))
    assert kinds[-1] == "delete"
    assert kinds.count("delete") == 1


def test_a_planted_link_in_the_place_of_the_stage_is_refused(tmp_path):
    """What a build deletes lies in its own stage: never behind a link."""
    precious = tmp_path / "precious"
    (precious / "new.1").mkdir(parents=True)
    (precious / "new.1/thesis.txt").write_text("years")
    (precious / ".x.tmp").write_text("years")
    stage_directory(tmp_path / "a").symlink_to(precious)
    with (
        pytest.raises(TargetExistsError, match="is a link"),
        locked_stage(stage_directory(tmp_path / "a")),
    ):
        pass
    assert (precious / "new.1/thesis.txt").read_text() == "years"
    assert (precious / ".x.tmp").exists()
    assert not (precious / "lock").exists()


def test_links_inside_the_stage_are_not_followed(tmp_path):
    """What killed builds left goes; what a link there points to stays."""
    stage = stage_directory(tmp_path / "a")
    stage.mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/x").write_text("years")
    (stage / "new.1").symlink_to(tmp_path / "precious")
    (stage / "old.2").mkdir()
    with locked_stage(stage):
        assert [p.name for p in stage.iterdir()] == ["lock"]
    assert (tmp_path / "precious/x").read_text() == "years"
