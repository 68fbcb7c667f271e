"""Replace a directory in one step: readers see the old version or the new one, never a half."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.errors import TargetExistsError
from kernel_archive.storage import locked, sync

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: What a killed build leaves in its work folder.
_LEFTOVERS: Final = ("new.*", "old.*", "merge*", ".*.tmp")
#: What a build writes into an archive directory, also what builds of earlier versions wrote;
#: everything else in it stays.
OURS: Final = frozenset(
    {MANIFEST_NAME, "README.md", "assets", "croissant.json", "data", "eval.yaml"}
)


def work_folder_of(target: Path) -> Path:
    """Name the hidden work folder of a target: for staged fragments and unfinished versions."""
    resolved = target.absolute()
    return resolved.parent / f".{resolved.name}.stage"


def make_work_folder(folder: Path) -> Path:
    """Make the folder of a build, and return it."""
    # What is deleted in it must lie in it: not behind a link that somebody planted.
    if folder.is_symlink():
        raise TargetExistsError(
            f"{folder} is a link, not the folder of a build. Delete it, or choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_target(target: Path) -> None:
    """Refuse a target that is not ours: any file, or a folder with content that is no archive."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TargetExistsError(f"{target} is not a folder. Choose another --out")
    if target.is_dir() and not (target / MANIFEST_NAME).is_file() and any(target.iterdir()):
        raise TargetExistsError(
            f"{target} holds something that is not an archive (no {MANIFEST_NAME}) and is left "
            "alone. Choose another --out"
        )


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories atomically where the system can (Linux renameat2)."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:
        return False
    raise OSError(code, os.strerror(code), str(b))


def _sync_tree(directory: Path) -> None:
    """Flush a finished tree to the disk, contents before the names of their folder."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
    sync(directory)


@contextmanager
def replaced_directory(
    target: Path, *, copy: bool = False, ours: frozenset[str] = OURS
) -> Iterator[Path]:
    """Fill a new directory; it takes the target's place when the block ends well.

    With ``copy`` it starts from the target's present files (hard links: replace files, never write
    into them), else from what somebody else put beside ``ours``.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    work_folder = make_work_folder(work_folder_of(target))
    new, old = work_folder / f"new.{os.getpid()}", work_folder / f"old.{os.getpid()}"
    _remove(new)
    left_out: frozenset[str] = frozenset() if copy else ours
    try:
        if target.is_dir():
            shutil.copytree(
                target,
                new,
                copy_function=_link,
                symlinks=not copy,  # nothing is written through a link into the old version
                ignore=lambda folder, _: left_out if Path(folder) == target else (),
            )
        else:
            new.mkdir()
        yield new
        _sync_tree(new)
        if not target.exists():
            new.rename(target)
        elif _exchange(new, target):
            new.rename(old)
        else:
            target.rename(old)
            new.rename(target)
        # The old version goes only when the new one's name is on disk: a power failure leaves one
        # of the two.
        sync(target.parent)
        sync(work_folder)
        _remove(old)
    finally:
        _remove(new)


def _link(source: str, destination: str) -> str:
    """Make a hard link, which costs nothing, else a copy."""
    try:
        os.link(source, destination, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, destination, follow_symlinks=False)
    return destination


def _remove(path: Path) -> None:
    """Delete whatever stands there, not what a link there points to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked_work_folder(folder: Path) -> Iterator[None]:
    """Hold a work folder for one build; the lock goes with the process, however it ends."""
    busy = f"another build is at work on {folder.parent}. Wait for it to end"
    with locked(make_work_folder(folder) / "lock", busy=busy):
        # A build killed between the two renames of a system that can't swap: the old version goes
        # back to its place.
        target = folder.parent / folder.name.removeprefix(".").removesuffix(".stage")
        for old in folder.glob("old.*"):
            if not target.exists() and (old / MANIFEST_NAME).is_file():
                old.rename(target)
        for pattern in _LEFTOVERS:  # of builds that were killed
            for left in folder.glob(pattern):
                _remove(left)
        yield
