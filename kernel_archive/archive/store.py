"""Files behind URLs: fragments that all workers see, and sources that a worker fetches.

Fragments lie in a directory or behind any URL of fsspec (``s3://``, ``gs://``, ...). A fragment is
named after its content and never changed, so two builds may share one place.
"""

from __future__ import annotations

import posixpath
import re
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from kernel_archive.connections import bound_requests
from kernel_archive.errors import KernelArchiveError, RecipeError, UsageError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.readers.files import SUFFIXES
from kernel_archive.storage import file_sha256, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Give up on a service that throttles or breaks off after this many attempts.
ATTEMPTS: Final = 7
#: Wait this many seconds after the first attempt, and twice as long after each further one.
FIRST_PAUSE: Final = 0.2
#: Answers of a service, not troubles on the way: they are not asked for again.
_FINAL_ERRORS: Final = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(NotImplementedError, ImportError),
)
#: What services call the state of a file in their listings; another content has another state.
_STATES: Final = (
    *("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation"),
    *("mtime", "LastModified", "CRC"),
)

Result = TypeVar("Result")


def retry(action: Callable[[], Result], what: str) -> Result:
    """Do something with a service, again while it throttles, breaks off or answers too little.

    Raises:
        KernelArchiveError: no attempt worked; the message says ``what`` was tried.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(FIRST_PAUSE * 2 ** (attempt - 1) if attempt else 0)
        try:
            return action()
        except _FINAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - fsspec back-ends raise whatever they like
            last = error
    reason = printable(str(last) or type(last).__name__, 300)
    message = f"{what} failed {ATTEMPTS} times: {reason}. What was staged is kept: build again"
    raise KernelArchiveError(message) from last


def _fetch(system: Any, name: str, path: Path, size: int | None, digest: str | None) -> None:
    """Fetch a file whole, or raise OSError."""
    system.get_file(name, str(path))
    n = path.stat().st_size
    if size is not None and n != size:
        raise OSError(f"{n} bytes came, the listing says {size}")
    if digest is not None and file_sha256(path) != digest:
        raise OSError("other bytes came than were written")


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
    def open_file(self, stored: Stored) -> Iterator[Path]:
        """Open a file for reading: itself, or a checked copy that is deleted after the block."""
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
                path = Path(folder, Path(stored.name).name)
                self.move(stored, path)
                yield path
        else:
            yield self.path(stored.name)

    def move(self, stored: Stored, path: Path) -> None:
        """Take a file out of the store, to a path on this machine; behind a URL, copy it."""
        if self.remote:
            size, digest = stored.bytes, stored.sha256
            self._ask("reading", stored.name, lambda fs, url: _fetch(fs, url, path, size, digest))
        else:
            shutil.move(self.path(stored.name), path)

    def write(self, stem: str, suffix: str, make: Callable[[Path], object]) -> Stored:
        """Have ``make`` write a file and put it in its place, whole or not at all.

        The name, ``stem`` and a part of the sha256, is the same on every worker that writes the
        same.
        """
        if not self.remote and not Path(self.root).is_dir():
            raise KernelArchiveError(
                f"{self.root} is not there on {socket.gethostname()}. All workers must see the "
                "fragments: name a shared directory or a URL with --stage"
            )
        above = Path(tempfile.gettempdir()) if self.remote else self.path(stem).parent
        above.mkdir(parents=True, exist_ok=True)
        temporary = above / f".{secrets.token_hex(8)}.tmp"
        try:
            make(temporary)
            digest = file_sha256(temporary)
            name = f"{stem}.{digest[:16]}{suffix}"
            stored = Stored(name, temporary.stat().st_size, digest)
            if self.remote:
                self._ask("writing", name, lambda fs, url: fs.put_file(str(temporary), url))
            else:  # not flushed to the disk: what a power failure leaves is found by its checksum
                temporary.rename(self.path(name))
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
        """Tell whether a file is as written: by its bytes, behind a URL by its size."""
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
        Path(place).mkdir(parents=True, exist_ok=True)
        return Store(str(Path(place).absolute()))
    store = Store(str(place))
    try:
        store.put("kernel-archive", b"Fragments of kernel-archive builds; safe to delete.\n")
    except (KernelArchiveError, FileNotFoundError, PermissionError) as error:
        reason = printable(str(error), 300)
        raise UsageError(f"--stage {place} cannot be written: {reason}") from None
    return store


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a run: its name in its file system, its place below the source, its bytes."""

    name: str
    place: str
    bytes: int | None


class RemoteRun(msgspec.Struct, frozen=True):
    """A run behind a URL: all files that its reader may read."""

    url: str  # leads to its file system
    files: list[RemoteFile] = []
    state: str | None = None  # names the content; None where the service says too little of it


def bad_url(url: str, message: str, fix: str) -> RecipeError:
    """Return an error of the URL of a source."""
    place: dict[str, Any] = {"field": "source.path", "value": url}
    return RecipeError.of(code="bad-source", message=message, fix=fix, **place)


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    if url.startswith("hf://"):
        bound_requests()
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


def remote_runs(url: str, patterns: Iterable[str]) -> Iterator[tuple[str, RemoteRun]]:
    """List what a URL matches, files or folders: the place of each, and its run.

    Files of the ``patterns`` of a reader beside the matched ones belong to their runs.

    Raises:
        RecipeError: the URL can't be reached, or a name in a listing leads out of its folder.
    """
    try:
        system, pattern = _system(url)
        listed = sorted(system.glob(pattern, detail=True).items())
        matches = {name.rstrip("/"): facts for name, facts in listed}
        folders = {_folder(name, facts) for name, facts in matches.items()}
        listing = cache(partial(_list_files, system))
        beside = {folder: _files_beside(folder, patterns, listing) for folder in folders}
    except Exception as error:  # fsspec back-ends raise whatever their service does
        message = f"cannot be reached: {printable(str(error), 300)}"
        fix = "Check the network and the address, or name a local copy with --source DIR"
        raise bad_url(url, message, fix) from error
    steps = PurePosixPath(pattern).parts
    wild = [i for i, step in enumerate(steps) if any(mark in step for mark in "*?[")]
    fixed = PurePosixPath(*steps[: min([*wild, len(steps) - 1])])
    for name, facts in matches.items():
        own = {} if facts.get("type") == "directory" else {name: facts}
        entries = sorted({**own, **beside[_folder(name, facts)]}.items())
        if not entries:
            continue
        files = [RemoteFile(key, _place(url, key, fixed), e.get("size")) for key, e in entries]
        states = [[e.get(name) for name in _STATES] for _, e in entries]
        complete = all(any(value is not None for value in state) for state in states)
        state = sha256_hex(repr((files, states)).encode()) if complete else None
        yield _place(url, name, fixed), RemoteRun(url, files, state)


def _folder(name: str, facts: Mapping[str, Any]) -> str:
    return name if facts.get("type") == "directory" else posixpath.dirname(name)


def _place(url: str, name: str, fixed: PurePosixPath) -> str:
    """Return where a listed file goes below its source; a name that would lead out is refused."""
    path = PurePosixPath(name)
    parts = path.relative_to(fixed).parts if path.is_relative_to(fixed) else (path.name,)
    if not parts or any(p in ("..", "/", "") or "\\" in p or "\0" in p for p in parts):
        message = f"the listing names a file outside of the folder it is in: {printable(name)}"
        fix = "Such a listing is an attack or a damaged archive; nothing of it was fetched"
        raise bad_url(url, message, fix)
    return "/".join(parts)


def _files_beside(
    folder: str, patterns: Iterable[str], listing: Callable[[str, int], Mapping[str, Any]]
) -> dict[str, Any]:
    """Find the files that a reader may read for a run in a folder, also those of folders above."""
    from fsspec.utils import glob_translate

    files: dict[str, Any] = {}
    for pattern in patterns:
        steps = pattern.split("/")
        up = steps.count("..")
        top = posixpath.normpath(posixpath.join(folder, *steps[:up]))
        rest = "/".join(steps[up:])
        wanted = re.compile("|".join(glob_translate(rest + suffix) for suffix in SUFFIXES))
        listed = listing(top, len(steps) - up)
        files |= {n: f for n, f in listed.items() if wanted.match(posixpath.relpath(n, top))}
    return files


def _list_files(system: Any, folder: str, depth: int) -> Mapping[str, Any]:
    """List the files in a folder of a file system, this many levels deep."""
    with suppress(FileNotFoundError):  # above the first folder of the service
        return dict(system.find(folder, maxdepth=depth, detail=True))
    return {}


@contextmanager
def fetched(run: RemoteRun) -> Iterator[Path]:
    """Fetch the files of a run into a folder that is deleted after the block.

    Raises:
        RecipeError: a file can't be had as a whole, at no attempt.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
        for file in run.files:
            path = Path(folder, file.place)
            path.parent.mkdir(parents=True, exist_ok=True)
            what = f"download of {printable(file.name)}"
            try:
                system = _system(run.url)[0]
                retry(partial(_fetch, system, file.name, path, file.bytes, None), what)
            except (KernelArchiveError, OSError, ImportError) as error:
                message = f"{what} failed: {printable(str(error), 300)}"
                fix = "Run the build again: what was staged stays"
                raise bad_url(run.url, message, fix) from error
        yield Path(folder)
