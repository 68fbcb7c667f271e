"""Replacing a directory: old or new at every moment, on disk before it has its name."""

from __future__ import annotations

import pytest

from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import TargetExistsError


def filled(target):
    """Make or replace a directory with a few files."""
    with replaced_directory(target) as new:
        (new / "data/kernels").mkdir(parents=True)
        (new / "data/kernels/x.parquet").write_text("rows")
        (new / "manifest.json").write_text("{}")


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
