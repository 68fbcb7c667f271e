"""Files on disk: written whole or not at all, locked, and digested; and the content that ships with the package.

Every room that writes a file does it through here.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kernel_archive.errors import KernelArchiveError, TargetExistsError, UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What :func:`_beside` makes; the first group is the name of the file that it is for.
_TEMPORARY: Final = re.compile(r"\.(.{1,100})\.[0-9a-f]{8}\.tmp", re.DOTALL)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk; a directory holds the names of its files, so renames in it count too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path) -> Path:
    """A temporary path beside a file, of a name that nobody else has."""
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove the temporary files that writers left in a folder when they were killed; under a lock that the writers hold.

    Names are patterns of the files' own names (``*.html``), of up to 100 characters.
    """
    for path in folder.iterdir():
        made = _TEMPORARY.fullmatch(path.name)
        ours = made is not None and any(fnmatchcase(made[1], name) for name in names)
        if ours and path.is_file() and not path.is_symlink():
            path.unlink()


@contextmanager
def new_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path`` to write; it takes the place of ``path`` when the block ends well.

    Readers see the old file or the new one, never a part; the directory must exist. The temporary file is removed when the
    block fails. ``durable`` flushes the content before the rename and the directory after it, so that a power failure leaves
    the old file or the new one; without it a file may be empty then, which will do for what is checked and made anew.
    """
    temporary = _beside(path)
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file whole: readers and a power failure see the old content or the new one (:func:`new_file`)."""
    # Made anew or not at all: a link that somebody planted under this name is not followed.
    with new_file(path, durable=durable) as temporary, temporary.open("xb") as stream:
        stream.write(data)


def write_together(contents: Iterable[tuple[Path, bytes]]) -> None:
    """Write several files that belong together: all of them, or none where one can't be written.

    Every file is written in full beside its place before the first is put there; should a rename fail all the same,
    the files that were replaced get their old content back. A power failure between two renames can leave some new.
    The contents are taken one by one; the directories must exist.
    """
    done: list[Path] = []
    with ExitStack() as cleanup:
        temporaries: dict[Path, Path] = {}
        before: dict[Path, Path] = {}
        for path, data in contents:
            temporaries[path], before[path] = _beside(path), _beside(path)
            for made in (temporaries[path], before[path]):
                cleanup.callback(made.unlink, missing_ok=True)
            with temporaries[path].open("xb") as stream:
                stream.write(data)
            sync(temporaries[path])
            if path.is_file():
                try:
                    before[path].hardlink_to(path)
                except OSError:  # a file system without links
                    shutil.copyfile(path, before[path])
        try:
            for path, temporary in temporaries.items():
                temporary.replace(path)
                done.append(path)
        except OSError:
            for path in done:
                if before[path].is_file():
                    before[path].replace(path)
                else:
                    path.unlink()
            raise
    for folder in {path.parent for path in temporaries}:
        sync(folder)


def check_new(path: str | Path, *, force: bool = False) -> None:
    """Whether a file of the user's could be written there: to be asked before the work whose result it will hold.

    Raises:
        TargetExistsError: something is there, and ``force`` is not given.
        UsageError: there is no such directory.
    """
    target = Path(path)
    if target.is_dir() or (target.exists() and not force):
        raise TargetExistsError(
            f"{printable(str(path), 300)} exists already. Give another name, or --force to replace it"
        )
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {printable(str(target.parent), 300)}")


def write_new(path: str | Path, data: bytes, *, force: bool = False) -> None:
    """Write a result to a file of the user's: all of it or nothing, and never over something by accident.

    Arguments and errors as in :func:`check_new`.
    """
    check_new(path, force=force)
    write_atomically(Path(path), data)


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block runs; the lock goes with the process, however it ends, the file stays.

    A link is not followed. The call waits for another process that holds the lock, unless there is a message to say instead.

    Raises:
        KernelArchiveError: another process holds the lock: ``busy``.
    """
    import filelock

    lock = filelock.FileLock(path, blocking=busy is None)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise KernelArchiveError(str(busy)) from None
    try:
        yield
    finally:
        lock.release()


def content_path(folder: Literal["builders", "splits", "cards", "leaderboard", "prompts"]) -> Path:
    """The folder, from the wheel when the package is installed, else from the checkout.

    Raises:
        FileNotFoundError: the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_content" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the package's own folder {folder!r} is missing: reinstall kernel-archive")
