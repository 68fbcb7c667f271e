"""Files are written whole or not at all, locked by one process at a time, and digested."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_archive import storage
from kernel_archive.errors import KernelArchiveError, TargetExistsError, UsageError
from kernel_archive.storage import write_new


def test_a_new_file_is_whole_or_absent(tmp_path):
    """A block that fails leaves the old content alone; one that ends well replaces it."""
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
    assert storage.file_sha256(path) == hashlib.sha256(b"new").hexdigest()


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    """The file is flushed before the rename and its directory after it, with ``durable``."""
    done = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (done.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real_sync(fd)),
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


def test_a_lock_is_held_by_one_and_goes_with_its_process(tmp_path):
    """A second holder is told so; after the first was killed the lock is free."""
    path = tmp_path / "lock"
    code = (
        "import pathlib, sys, time; from kernel_archive.storage import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        refused = pytest.raises(KernelArchiveError, match="busy here")
        with refused, storage.locked(path, busy="busy here"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with storage.locked(path, busy="busy here"):
        assert path.exists()


def test_a_planted_link_is_no_lock(tmp_path):
    """A lock file that is a link is refused, and what it points to is left alone."""
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    refused = pytest.raises(OSError, match="Too many levels")
    with refused, storage.locked(tmp_path / "lock", busy="busy"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_result_never_replaces_something_by_accident(tmp_path):
    """A file is replaced only with ``force``, a directory never; a missing one is named."""
    path = tmp_path / "out.json"
    write_new(path, b"one")
    with pytest.raises(TargetExistsError, match="--force"):
        write_new(path, b"two")
    assert path.read_bytes() == b"one"
    write_new(path, b"two", force=True)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TargetExistsError):
        write_new(tmp_path, b"", force=True)
    with pytest.raises(UsageError, match="no directory"):
        write_new(tmp_path / "no" / "file", b"")
