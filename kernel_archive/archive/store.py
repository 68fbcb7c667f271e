"""Fragments lie in a directory that all workers see, or behind a URL (``s3://``, ``gs://``, ...).

A file is named after its content and never changed, so two builds may share one place.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.storage import file_sha256, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Give up on a service that throttles or breaks off after this many attempts.
ATTEMPTS: Final = 7
#: Wait this many seconds after the first attempt, and twice as long after each further one.
FIRST_PAUSE: Final = 0.2
#: Answers of a service, not troubles on the way: they are not asked for again.
_FINAL_ERRORS: Final = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(NotImplementedError, ImportError),
)

Result = TypeVar("Result")


def retry(action: Callable[[], Result], what: str) -> Result:
    """Do something with a service, again while it throttles, breaks off or answers too little.

    Raises:
        KernelArchiveError: no attempt worked; the message says ``what`` was tried.
    """
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except _FINAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - fsspec back-ends raise whatever they like
            last = error
        if attempt < ATTEMPTS - 1:
            time.sleep(FIRST_PAUSE * 2**attempt)
    reason = printable(str(last) or type(last).__name__, 300)
    message = f"{what} failed {ATTEMPTS} times: {reason}. What was staged is kept: build again"
    raise KernelArchiveError(message) from last


class Stored(msgspec.Struct, frozen=True):
    """A file of a store: its name, bytes and sha256."""

    name: str
    bytes: int
    sha256: str


class Store(msgspec.Struct, frozen=True):
    """A place for fragments: ``root`` is a directory as an absolute path, or a URL."""

    root: str

    @property
    def remote(self) -> bool:
        """Whether it is behind a URL."""
        return "://" in self.root

    def path(self, name: str) -> Path:
        """Return the path of a file, where the store is a directory."""
        return Path(self.root, name)

    def _ask(self, what: str, name: str, action: Callable[[Any, str], Result]) -> Result:
        """Do something with the file system behind the URL and the URL of a file."""
        import fsspec

        try:  # what it has listed once is not believed twice
            system = fsspec.core.url_to_fs(self.root, use_listings_cache=False)[0]
        except (ImportError, ValueError) as error:
            reason = printable(str(error), 300)
            raise UsageError(f"--stage {printable(self.root)} cannot be used: {reason}") from None
        url = f"{self.root.rstrip('/')}/{name}"
        return retry(lambda: action(system, url), f"{what} {url}")

    @contextmanager
    def reading(self, stored: Stored) -> Iterator[Path]:
        """Open a file for reading: itself, or a checked copy that is deleted after the block.

        Raises:
            FileNotFoundError: there is none.
            KernelArchiveError: no attempt brought what was written.
        """
        if not self.remote:
            yield self.path(stored.name)
            return
        with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
            path = Path(folder, Path(stored.name).name)
            self._fetch(stored, path)
            yield path

    def _fetch(self, stored: Stored, path: Path) -> None:
        def copy(system: Any, url: str) -> None:
            system.get_file(url, str(path))
            if path.stat().st_size != stored.bytes or file_sha256(path) != stored.sha256:
                raise OSError(f"{path.stat().st_size} bytes came, other than were written")

        self._ask("reading", stored.name, copy)

    def move(self, stored: Stored, path: Path) -> None:
        """Take a file out of the store, to a path on this machine."""
        if self.remote:
            self._fetch(stored, path)
        else:
            shutil.move(self.path(stored.name), path)

    def write(self, stem: str, suffix: str, make: Callable[[Path], object]) -> Stored:
        """Have ``make`` write a file and put it in its place, whole or not at all.

        The name, ``stem`` and a part of the sha256, is the same on every worker that writes the
        same.
        """
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
                path = Path(folder, "file")
                make(path)
                stored = _stored(stem, suffix, path)
                self._ask("writing", stored.name, lambda fs, url: fs.put_file(str(path), url))
            return stored
        if not Path(self.root).is_dir():
            raise KernelArchiveError(
                f"{self.root} is not there on {socket.gethostname()}. All workers must see the "
                "fragments: name a shared directory or a URL with --stage"
            )
        above = self.path(stem).parent
        above.mkdir(parents=True, exist_ok=True)
        temporary = above / f".{secrets.token_hex(8)}.tmp"
        try:
            make(temporary)
            stored = _stored(stem, suffix, temporary)
            # Not flushed to the disk: what a power failure leaves is found by its checksum.
            temporary.rename(self.path(stored.name))
        finally:
            temporary.unlink(missing_ok=True)
        return stored

    def get(self, name: str) -> bytes | None:
        """Read a small file; ``None`` where there is none."""
        try:
            if not self.remote:
                return self.path(name).read_bytes()
            return self._ask("reading", name, lambda system, url: bytes(system.cat_file(url)))
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file whole."""
        if self.remote:
            self._ask("writing", name, lambda system, url: system.pipe_file(url, data))
        else:
            write_atomically(self.path(name), data, durable=False)

    def holds(self, stored: Stored) -> bool:
        """Whether a file is as written: by its bytes in a directory, by its size behind a URL."""
        try:
            if not self.remote:
                return file_sha256(self.path(stored.name)) == stored.sha256
            size = self._ask("looking for", stored.name, lambda system, url: system.size(url))
            return bool(size == stored.bytes)
        except OSError:
            return False

    def remove(self, folder: str) -> None:
        """Delete a folder, as far as that is possible."""
        with suppress(Exception):  # what stays is in nobody's way
            if self.remote:
                self._ask("deleting", folder, lambda fs, url: fs.rm(url, recursive=True))
            else:
                shutil.rmtree(self.path(folder))


def open_store(place: str | Path) -> Store:
    """Open the store in a directory, made when it is not there, or behind a URL.

    Raises:
        UsageError: it cannot be written.
    """
    if "://" not in str(place):
        folder = Path(place).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return Store(str(folder))
    store = Store(str(place))
    try:
        store.put("kernel-archive", b"Fragments of kernel-archive builds; safe to delete.\n")
    except (KernelArchiveError, FileNotFoundError, PermissionError) as error:
        reason = printable(str(error), 300)
        raise UsageError(f"--stage {place} cannot be written: {reason}") from None
    return store


def _stored(stem: str, suffix: str, path: Path) -> Stored:
    digest = file_sha256(path)
    return Stored(f"{stem}.{digest[:16]}{suffix}", path.stat().st_size, digest)
