"""The staging area: a directory that all processes see, or a folder behind a URL (``s3://``, ``gs://``, ...).

What stands in it is named once and never changed. Whoever reads a file from behind a URL reads a copy whose size and
sha256 are those of what was written: a service that answers too little, or something else, is asked again.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.storage import file_sha256, locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A service that throttles or breaks off is asked so often, after pauses of 0.2, 0.4, 0.8, ... seconds.
ATTEMPTS: Final = 7
FIRST_PAUSE: Final = 0.2
#: A build behind a URL says so often that it lives; one that says nothing for so long is dead.
BEAT_SECONDS: Final = 5.0
DEAD_SECONDS: Final = 20.0
#: These are answers, not troubles on the way.
_FINAL: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
)

Result = TypeVar("Result")


def patiently(action: Callable[[], Result], what: str) -> Result:
    """The result of an action on a service, tried again while it throttles, breaks off or answers too little.

    Raises:
        KernelArchiveError: it did not work at any attempt; the message says what was tried.
    """
    pause = FIRST_PAUSE
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except _FINAL:
            raise
        except Exception as error:  # fsspec back-ends raise whatever their service does
            if attempt == ATTEMPTS - 1:
                raise KernelArchiveError(
                    f"{what} failed {ATTEMPTS} times: {printable(str(error) or type(error).__name__, 300)}. "
                    "What was staged is kept: build again"
                ) from error
        time.sleep(pause)
        pause *= 2
    raise AssertionError


class Stored(msgspec.Struct, frozen=True):
    """A file of the staging area: its name, bytes and sha256."""

    name: str
    bytes: int
    sha256: str


class Store(msgspec.Struct, frozen=True):
    """A staging area by its place.

    Attributes:
        root: a directory as an absolute path, or a URL.
    """

    root: str

    @property
    def remote(self) -> bool:
        """Whether it is behind a URL."""
        return "://" in self.root

    def system(self) -> Any:
        """Its file system, which holds connections for the whole process; listings are never believed twice."""
        import fsspec

        try:
            return fsspec.core.url_to_fs(self.root, use_listings_cache=False)[0]
        except (ImportError, ValueError) as error:
            raise UsageError(f"--stage {printable(self.root)} cannot be used: {printable(str(error), 300)}") from None

    def place(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    def path(self, name: str) -> Path:
        """A file of a directory; for those who know that it is one."""
        return Path(self.root, name)

    @contextmanager
    def reading(self, stored: Stored) -> Iterator[Path]:
        """A file to read: itself, or a checked copy that is gone behind the block.

        Raises:
            FileNotFoundError: there is none.
            KernelArchiveError: no attempt brought what was written.
        """
        if not self.remote:
            yield self.path(stored.name)
            return
        with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
            path = Path(folder, Path(stored.name).name)
            self.fetch(stored, path)
            yield path

    def fetch(self, stored: Stored, path: Path) -> None:
        """Write a checked copy of a file."""
        if not self.remote:
            shutil.copyfile(self.path(stored.name), path)
            return

        def copy() -> None:
            self.system().get_file(self.place(stored.name), str(path))
            if path.stat().st_size != stored.bytes or file_sha256(path) != stored.sha256:
                raise OSError(f"{path.stat().st_size} bytes came, other than the {stored.bytes} that were written")

        patiently(copy, f"reading {self.place(stored.name)}")

    def write(self, stem: str, suffix: str, make: Callable[[Path], object]) -> Stored:
        """Have a file made and put it in its place, whole or not at all.

        Its name holds a part of its sha256: made twice, by a worker that was given up too early, it is the same file or
        another one. ``stem`` is folder and beginning of the name; ``make`` writes the file at the path that it is given.
        """
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="kernel-archive-") as own:
                path = Path(own, "file")
                make(path)
                stored = _stored(stem, suffix, path)
                where = self.place(stored.name)
                patiently(lambda: self.system().put_file(str(path), where), f"writing {where}")
            return stored
        folder = self.path(stem).parent
        if not Path(self.root).is_dir():
            raise KernelArchiveError(
                f"{self.root} is not there on {socket.gethostname()}. All workers must see the staging area: name a shared "
                "directory or a URL with --stage"
            )
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        try:
            make(temporary)
            stored = _stored(stem, suffix, temporary)
            # Not flushed to the disk: what a power failure leaves is found by its checksum.
            temporary.rename(self.path(stored.name))
        finally:
            temporary.unlink(missing_ok=True)
        return stored

    def get(self, name: str) -> bytes | None:
        """The content of a small file; ``None`` where there is none."""
        try:
            if not self.remote:
                return self.path(name).read_bytes()
            return patiently(lambda: bytes(self.system().cat_file(self.place(name))), f"reading {self.place(name)}")
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file whole."""
        if not self.remote:
            write_atomically(self.path(name), data, durable=False)
            return
        patiently(lambda: self.system().pipe_file(self.place(name), data), f"writing {self.place(name)}")

    def holds(self, stored: Stored) -> bool:
        """Whether a file is there as it was written: of its bytes in a directory, of its size behind a URL."""
        try:
            if not self.remote:
                return file_sha256(self.path(stored.name)) == stored.sha256
            where = self.place(stored.name)
            return bool(patiently(lambda: self.system().size(where), f"looking for {where}") == stored.bytes)
        except OSError:
            return False

    def clear(self, folder: str) -> None:
        """Delete a folder, as far as that is possible."""
        with suppress(Exception):  # what stays is in nobody's way
            if self.remote:
                self.system().rm(self.place(folder), recursive=True)
            else:
                shutil.rmtree(self.path(folder))

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Hold the area for one build at a time; one behind a URL also across machines.

        There a file ``lock`` says every few seconds, with another number, that its build lives. What is yielded checks that this
        build still holds the area; it raises KernelArchiveError when another one took it, believing this one dead.

        Raises:
            KernelArchiveError: another build holds it.
        """
        busy = f"another build is at work on {self.root}. Wait for it to end"
        if not self.remote:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            with locked(self.path("held.lock"), busy=busy):
                yield lambda: None
            return
        name, ended, lost = secrets.token_hex(8), threading.Event(), threading.Event()

        def beat() -> None:
            number = 0
            while not (ended.wait(BEAT_SECONDS) or lost.is_set()):
                number += 1
                with suppress(Exception):  # a service that is away for a moment
                    if (self.get("lock") or b"").startswith(name.encode()):
                        self.put("lock", f"{name} {number}".encode())
                    else:
                        lost.set()

        def check() -> None:
            if lost.is_set():
                raise KernelArchiveError(f"another build took {self.root} over: this one was silent for too long")

        self._take_lock(f"{name} 0".encode(), busy)
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield check
        finally:
            ended.set()
            thread.join()
            if not lost.is_set():
                self.clear("lock")

    def _take_lock(self, mark: bytes, busy: str) -> None:
        """Write the file ``lock`` where there is none, or in the place of that of a build that has died."""
        since, seen = time.monotonic(), self.get("lock")
        while seen is not None or not self._created("lock", mark):
            now = self.get("lock")
            if None not in {seen, now} and now != seen:
                raise KernelArchiveError(busy)
            if now is not None and now == seen and time.monotonic() - since > DEAD_SECONDS:
                with suppress(FileNotFoundError):
                    self.system().rm_file(self.place("lock"))
                now = None
            seen = now
            if seen is not None:
                time.sleep(BEAT_SECONDS / 5)

    def _created(self, name: str, data: bytes) -> bool:
        """Whether a small file was written behind a URL where there was none."""
        try:
            self.system().pipe_file(self.place(name), data, mode="create")
        except FileExistsError:
            return False
        except (FileNotFoundError, PermissionError) as error:
            raise UsageError(f"--stage {self.root} cannot be written: {printable(str(error), 300)}") from None
        except (TypeError, NotImplementedError):  # a service without exclusive writing: the beats tell who was last
            self.put(name, data)
        return True


def _stored(stem: str, suffix: str, path: Path) -> Stored:
    digest = file_sha256(path)
    return Stored(f"{stem}.{digest[:16]}{suffix}", path.stat().st_size, digest)
