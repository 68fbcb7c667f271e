"""Files behind URLs: fragments that all workers see, and sources that are fetched.

Fragments lie in a directory or behind any URL of fsspec (``s3://``, ``gs://``, ...). A fragment is
named after its content and never changed, so two builds may share one place. Requests are repeated
as the package behind the URL does it (s3fs, gcsfs, huggingface_hub, ...).
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.swap import make_stage
from kernel_archive.connections import bound_requests
from kernel_archive.errors import KernelArchiveError, RecipeError, UsageError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.storage import file_sha256, new_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Fetch this many files of a source at a time.
_CONNECTIONS: Final = 8
#: What services call the state of a file in their listings; another content has another state.
_STATES: Final = (
    *("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation"),
    *("mtime", "LastModified", "CRC", "sha"),
)


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

    @property
    def system(self) -> Any:
        """The file system of fsspec; what it has listed once is not believed twice."""
        import fsspec

        return fsspec.core.url_to_fs(self.root, use_listings_cache=False)[0]

    def path(self, name: str) -> Path:
        """Return the path of a file, where the store is a directory."""
        return Path(self.root, name)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    @contextmanager
    def open_file(self, stored: Stored) -> Iterator[Path]:
        """Open a file for reading: itself, or a checked copy that is deleted after the block."""
        if not self.remote:
            yield self.path(stored.name)
            return
        with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
            path = Path(folder, Path(stored.name).name)
            with _asking(f"reading {self.place(stored.name)}"):
                self.system.get_file(self.place(stored.name), str(path))
                if file_sha256(path) != stored.sha256:
                    raise OSError("other bytes came than were written")
            yield path

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
                with _asking(f"writing {self.place(name)}"):
                    self.system.put_file(str(temporary), self.place(name))
            else:  # not flushed to the disk: what a power failure leaves is found by its checksum
                temporary.rename(self.path(name))
        finally:
            temporary.unlink(missing_ok=True)
        return stored

    def get(self, name: str) -> bytes | None:
        """Read a small file; ``None`` where there is none."""
        with suppress(FileNotFoundError), _asking(f"reading {self.place(name)}"):
            return bytes(self.system.cat_file(self.place(name)))
        return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file; what breaks off in the middle must be found by a digest in it."""
        with _asking(f"writing {self.place(name)}"):
            self.system.pipe_file(self.place(name), data)

    def holds(self, stored: Stored) -> bool:
        """Tell whether a file is as written: by its bytes, behind a URL by its size."""
        with suppress(OSError), _asking(f"looking for {self.place(stored.name)}"):
            if self.remote:
                return bool(self.system.size(self.place(stored.name)) == stored.bytes)
            return file_sha256(self.path(stored.name)) == stored.sha256
        return False

    def remove(self, folder: str) -> None:
        """Delete a folder, as far as that is possible."""
        with suppress(Exception):  # what stays is in nobody's way
            self.system.rm(self.place(folder), recursive=True)


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Name what was asked of a service where it fails; a missing file stays a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # back-ends of fsspec raise whatever they like
        reason = printable(str(error) or type(error).__name__, 300)
        message = f"{what} failed: {reason}. What was staged is kept: build again"
        raise KernelArchiveError(message) from error


def open_store(place: str | Path) -> Store:
    """Open the store in a directory, made when it is not there, or behind a URL."""
    if "://" not in str(place):
        Path(place).mkdir(parents=True, exist_ok=True)
        return Store(str(Path(place).absolute()))
    store = Store(str(place))
    try:
        store.put("kernel-archive", b"Fragments of kernel-archive builds; safe to delete.\n")
    except (KernelArchiveError, FileNotFoundError) as error:
        reason = printable(str(error), 300)
        raise UsageError(f"--stage {place} cannot be written: {reason}") from None
    return store


def fetch_source(url: str, stage: Path, *, beside: bool) -> tuple[Path, str]:
    """Fetch the files that a URL matches into a stage; return their folder, and the pattern in it.

    With ``beside`` a reader may read files beside the matched ones: all below the folder before the
    first wildcard are fetched. A file is not fetched again while the service lists it as it was.

    Raises:
        RecipeError: the URL can't be reached or matches nothing, a file does not come whole, or a
            name in the listing leads out of its folder.
    """
    import fsspec

    if url.startswith("hf://"):
        bound_requests()
    try:
        system, pattern = fsspec.core.url_to_fs(url)
        steps = PurePosixPath(pattern).parts
        wild = [i for i, step in enumerate(steps) if any(mark in step for mark in "*?[")]
        fixed = "/".join(steps[: min([*wild, len(steps) - 1])])
        files = system.glob(pattern, detail=True)
        folders = [name for name, facts in files.items() if facts["type"] == "directory"]
        for folder in [fixed] if beside and files else folders:
            files |= system.find(folder, detail=True)
    except Exception as error:  # back-ends of fsspec raise whatever their service does
        message = f"cannot be reached: {printable(str(error), 300)}"
        fix = "Check the network and the address, or name a local copy with --source DIR"
        raise _bad_url(url, message, fix) from error
    files = {name: files[name] for name in sorted(files.keys() - set(folders))}
    places = {name: _place(url, name, fixed) for name in files}
    states = [[facts.get(key) for key in ("size", *_STATES)] for facts in files.values()]
    copy = make_stage(stage) / "sources" / sha256_hex(repr((url, places, states)).encode())[:32]
    if not all(any(state[1:]) for state in states):
        shutil.rmtree(copy, ignore_errors=True)  # the listing does not tell another content

    def fetch(name: str) -> None:
        path, size = copy / places[name], files[name].get("size")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            with new_file(path, durable=False) as new:
                system.get_file(name, str(new))
                if size not in (None, new.stat().st_size):
                    raise OSError(f"{new.stat().st_size} bytes came, the listing says {size}")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        downloads = {name: pool.submit(fetch, name) for name in files}
    for name, download in downloads.items():
        reason = download.exception()
        if reason is not None:
            message = f"download of {printable(name)} failed: {printable(str(reason), 300)}"
            fix = "Run the build again: what was fetched stays"
            raise _bad_url(url, message, fix) from reason
    return copy, "/".join(steps[len(PurePosixPath(fixed).parts) :])


def _bad_url(url: str, message: str, fix: str) -> RecipeError:
    place: dict[str, Any] = {"field": "source.path", "value": url}
    return RecipeError.of(code="bad-source", message=message, fix=fix, **place)


def _place(url: str, name: str, fixed: str) -> str:
    """Return where a listed file goes below its source; a name that would lead out is refused."""
    parts = PurePosixPath(name.removeprefix(f"{fixed}/")).parts
    if not parts or any(p in ("..", "/", "") or "\\" in p or "\0" in p for p in parts):
        message = f"the listing names a file outside of the folder it is in: {printable(name)}"
        fix = "Such a listing is an attack or a damaged archive; nothing of it was fetched"
        raise _bad_url(url, message, fix)
    return "/".join(parts)
