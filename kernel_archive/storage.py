"""Write files whole, lock and digest them, find the shipped content."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernel_archive.errors import KernelArchiveError, TargetExistsError, UsageError, printable

if TYPE_CHECKING:
    import jinja2

#: A folder of reviewed content.
Content: TypeAlias = Literal["builders", "splits", "cards", "leaderboard", "prompts"]


def file_sha256(path: Path) -> str:
    """Digest a file's bytes: sha256 as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file to the disk, or a directory with the renames in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path to write, which takes the place of ``path`` when the block ends well.

    Readers see the old file or the new one, with ``durable`` also after a power failure.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
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
    """Write a file whole, as :func:`new_file` does."""
    # Mode x: a link that somebody planted under the temporary name is not followed.
    with new_file(path, durable=durable) as temporary, temporary.open("xb") as stream:
        stream.write(data)


def check_new(path: str | Path, *, force: bool = False) -> None:
    """Check that a file of the user's can be written, before the work whose result it will hold.

    Raises:
        TargetExistsError: something is there, and ``force`` is not given.
        UsageError: there is no such directory.
    """
    target = Path(path)
    if target.is_dir() or (target.exists() and not force):
        fix = "Name another with -o, or replace it with --force"
        raise TargetExistsError(f"{printable(path, 300)} exists already. {fix}")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {printable(target.parent, 300)}")


def write_new(path: str | Path, data: bytes, *, force: bool = False) -> None:
    """Write a file of the user's whole; arguments and errors as in :func:`check_new`."""
    check_new(path, force=force)
    write_atomically(Path(path), data)


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block runs; the lock ends with the process, the file stays.

    Waits for another process that holds the lock; with ``busy``, that is an error of these words.
    Follows no link.
    """
    import filelock

    try:
        lock = filelock.FileLock(path).acquire(blocking=busy is None)
    except filelock.Timeout:
        raise KernelArchiveError(str(busy)) from None
    with lock:
        yield


def content_path(folder: Content) -> Path:
    """Find a folder of reviewed content: in the wheel when installed, else in the checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_content" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"its own folder {folder!r} is missing: reinstall kernel-archive")


def templates_in(folder: Path, **options: Any) -> jinja2.Environment:
    """Open the Jinja templates of a folder; a name that is not given is an error."""
    import jinja2

    return jinja2.Environment(  # noqa: S701 - for Markdown and models; pages of HTML escape
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
