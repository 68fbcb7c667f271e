"""Files are written whole or not at all, locked by one process at a time, and digested."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_archive import storage
from kernel_archive.errors import KernelArchiveError, TargetExistsError, UsageError
from kernel_archive.storage import write_new


def test_a_new_file_is_whole_or_absent(tmp_path):
    """A block that fails leaves the old content and no temporary file; one that ends well replaces it."""
    path = tmp_path / "a.json"
    storage.write_atomically(path, b"old")

    def broken_off():
        with storage.new_file(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken_off()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    storage.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert storage.file_sha256(path) == "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    """The file is flushed before the rename and its directory after it; without ``durable`` nothing is."""
    done = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real_sync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), real_replace(a, b)))
    storage.write_atomically(tmp_path / "a", b"x")
    first, second, third = done
    assert first.startswith(str(tmp_path / ".a."))
    assert (second, third) == ("rename", str(tmp_path))
    done.clear()
    with storage.new_file(tmp_path / "b", durable=False) as temporary:
        temporary.write_bytes(b"x")
    assert done == ["rename"]


def test_a_name_of_the_longest_kind_can_be_written(tmp_path):
    """The temporary name stays within what a file system takes."""
    storage.write_atomically(tmp_path / ("a" * 255), b"x")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_lock_is_held_by_one_and_goes_with_its_process(tmp_path):
    """A second holder is told so; after the first was killed the lock is free."""
    path = tmp_path / "lock"
    code = (
        "import pathlib, sys, time; from kernel_archive.storage import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    held = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    try:
        assert held.stdout.readline() == b"held\n"
        with pytest.raises(KernelArchiveError, match="busy here"), storage.locked(path, busy="busy here"):
            pass
    finally:
        held.kill()
        held.communicate()
    with storage.locked(path, busy="busy here"):
        assert path.exists()


def test_a_planted_link_is_no_lock(tmp_path):
    """A lock file that is a link is refused, and what it points to is left alone."""
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="Too many levels"), storage.locked(tmp_path / "lock", busy="busy"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_file_is_written_once(tmp_path):
    """Nothing is overwritten unless told so; nothing is left beside it; others may read it."""
    path = tmp_path / "out.json"
    write_new(path, b"one")
    with pytest.raises(TargetExistsError, match="--force"):
        write_new(path, b"two")
    assert path.read_bytes() == b"one"
    write_new(path, b"two", force=True)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & stat.S_IRUSR


def test_a_directory_is_never_replaced(tmp_path):
    """Not even when told to overwrite."""
    with pytest.raises(TargetExistsError):
        write_new(tmp_path, b"", force=True)


def test_a_missing_directory_is_named(tmp_path):
    """It is a wrong call, not a crash."""
    with pytest.raises(UsageError, match="no directory"):
        write_new(tmp_path / "no" / "file", b"")


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    """Temporary files of the named files go; other files' ones, near misses, links and folders stay."""
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if it were killed before it cleans up
    with pytest.raises(OSError, match="late"):
        storage.write_together(late(tmp_path))
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    for name in (
        ".a.html.0123abcd.tmp",
        ".b.html.0123abcd.tmp.bak",
        ".b.html.0123ABCD.tmp",
        ".b.html.tmp",
        "b.html.0123abcd.tmp",
        ".b.json.0123abcd.tmp",
    ):
        (tmp_path / name).touch()
    (tmp_path / ".c.html.0123abcd.tmp").symlink_to(tmp_path / ".b.html.tmp")
    (tmp_path / ".d.html.0123abcd.tmp").mkdir()
    kept = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".a.")}
    storage.remove_leftovers(tmp_path, "*.html")
    assert {p.name for p in tmp_path.iterdir()} == kept


def late(folder):
    """A file, and then an end."""
    yield folder / "a.html", b"new"
    raise OSError("late")


@pytest.mark.parametrize("links", [True, False])
def test_files_that_belong_together_are_replaced_together(tmp_path, monkeypatch, links):
    """Where the last can't be put in its place the others are as they were, with links in the file system or without."""
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda self, target: os.link(target, tmp_path / "no" / "such"))
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "c").mkdir()
    contents = {tmp_path / name: name.encode() for name in "abc"}
    with pytest.raises(OSError, match="c"):
        storage.write_together(contents.items())
    assert (tmp_path / "a").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]
    (tmp_path / "c").rmdir()
    storage.write_together(contents.items())
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == contents
