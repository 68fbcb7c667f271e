"""Frozen splits: the released archive's rows, and what differs from them."""

from __future__ import annotations

import msgspec
import pytest
from support.archives import make_archive, remake
from support.parents import RUNS, SEARCHES

from kernel_archive import DATA_VERSION
from kernel_archive.archive.open import open_archive
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.selection import freeze as module
from kernel_archive.selection.freeze import (
    check_frozen,
    freeze,
    frozen_folder,
    frozen_rows,
    read_frozen,
)
from kernel_archive.selection.make import make_splits


@pytest.fixture
def archive(place, tmp_path, monkeypatch):
    """A hand-made archive with frozen splits of its own."""
    monkeypatch.setattr(module, "frozen_folder", lambda version: tmp_path / "frozen" / version)
    freeze(place)
    return open_archive(place)


def test_frozen_files_come_back_as_they_were(archive, tmp_path):
    """What is written is read again: facts, ids, labels and speedups; one row a line."""
    for name in ("eval", "discovery_pairs", "train_pairs"):
        path = tmp_path / "frozen/1.0" / f"{name}.json"
        frozen = read_frozen(path)
        assert frozen.facts == archive.manifest.splits[name]
        assert frozen.rows == frozen_rows(archive, name)
        assert [r[0] for r in frozen.rows] == archive.arrow(name)["row_id"].to_pylist()
        assert frozen.encode() == path.read_bytes()
        assert path.read_text().count("\n  [") == len(frozen.rows)


def test_another_content_under_a_released_name(archive, tmp_path):
    """An archive that is called like a release and holds something else is an error."""
    place = make_archive(tmp_path / "b", SEARCHES, RUNS[:-1], version="1.0")
    make_splits(place)
    (finding,) = check_frozen(open_archive(place))
    assert finding.code == "not-the-release"
    assert archive.manifest.measured_digest[:19] in finding.message


def test_differences_are_named(archive, tmp_path):
    """Rows are compared with the frozen ones (every kind: tests/selection/test_check)."""
    path = tmp_path / "frozen/1.0/eval.json"
    frozen = read_frozen(path)
    path.write_bytes(msgspec.structs.replace(frozen, rows=frozen.rows[1:]).encode())
    assert [f.code for f in check_frozen(archive)] == ["split-row-added"]


def test_variants_are_not_compared(archive):
    """A variant is no error beside a frozen canonical split."""
    remake(archive.path, "eval", cap=1)
    assert list(check_frozen(open_archive(archive.path))) == []


def test_damaged_frozen_files(archive, tmp_path):
    """A frozen file that can't be read is a finding, not a traceback."""
    path = tmp_path / "frozen/1.0/eval.json"
    path.write_text("{")
    (finding,) = check_frozen(archive)
    assert (finding.code, finding.file) == ("bad-frozen-split", str(path))
    whole = path.with_name("train_pairs.json").read_text()
    path.write_text(whole.replace('"format": 1,', '"format": 9,'))
    with pytest.raises(ArchiveMismatchError, match=r"enum value 9 - at `\$\.format`"):
        read_frozen(path)


@pytest.mark.parametrize("version", ["", "..", "a/b", ".hidden"])
def test_a_version_is_no_path(version):
    """A version from a manifest never leads out of the folder of frozen splits."""
    with pytest.raises(UsageError):
        frozen_folder(version)


def test_shipped_archive_has_the_frozen_splits(shipped):
    """The embedded logs give exactly the frozen rows and facts of the shipped version, on this
    machine as on any other.

    Between two releases there are none yet. That the splits are those of their definitions,
    tests/test_pipeline.py checks with the whole archive.
    """
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    assert archive.manifest.version == DATA_VERSION
    frozen = {p.stem for p in frozen_folder(DATA_VERSION).glob("*.json")}
    assert frozen in (set(), set(archive.manifest.splits))
    assert [f.render() for f in check_frozen(archive)] == []
    n_kernels = archive.arrow("kernels", columns=["kernel_id"]).num_rows
    assert (
        not frozen or (frozen_folder(DATA_VERSION) / "kernels.txt").read_text() == f"{n_kernels}\n"
    )
