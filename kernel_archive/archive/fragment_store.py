"""Where fragments lie: a directory, or any URL of fsspec (``s3://``, ``gs://``, ...).

All workers see it. A fragment is named after its content and never changed, so two builds may share
one place. Requests are repeated as the package behind the URL does it (s3fs, gcsfs, ...).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.storage import file_sha256, write_atomically


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

    def location(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    def read(self, stored: Stored) -> bytes:
        """Read a file whole, and check that it is as it was written."""
        with _asking(f"reading {self.location(stored.name)}"):
            data = bytes(self.system.cat_file(self.location(stored.name)))
            if sha256_hex(data) != stored.sha256:
                raise OSError("other bytes came than were written")
            return data

    def write(self, stem: str, suffix: str, data: bytes) -> Stored:
        """Put a file in its place, whole or not at all.

        The name, ``stem`` and a part of the sha256, is the same on every worker that writes the
        same.
        """
        if not self.remote and not Path(self.root).is_dir():
            raise KernelArchiveError(
                f"{self.root} is not there on {socket.gethostname()}. All workers must see the "
                "fragments: name a shared directory or a URL with --stage"
            )
        digest = sha256_hex(data)
        stored = Stored(f"{stem}.{digest[:16]}{suffix}", len(data), digest)
        if self.remote:
            self.put(stored.name, data)
        else:  # not flushed to the disk: what a power failure leaves is found by its checksum
            write_atomically(Path(self.location(stored.name)), data, durable=False)
        return stored

    def get(self, name: str) -> bytes | None:
        """Read a small file; ``None`` where it is missing."""
        with suppress(FileNotFoundError), _asking(f"reading {self.location(name)}"):
            return bytes(self.system.cat_file(self.location(name)))
        return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file; what breaks off in the middle must be found by a digest in it."""
        with _asking(f"writing {self.location(name)}"):
            self.system.pipe_file(self.location(name), data)

    def holds(self, stored: Stored) -> bool:
        """Tell whether a file is as written: by its bytes, behind a URL by its size."""
        with suppress(OSError), _asking(f"looking for {self.location(stored.name)}"):
            if self.remote:
                return bool(self.system.size(self.location(stored.name)) == stored.bytes)
            return file_sha256(Path(self.location(stored.name))) == stored.sha256
        return False


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


def open_store(root: str | Path) -> Store:
    """Open the store in a directory, made when it is not there, or behind a URL."""
    if "://" not in str(root):
        Path(root).mkdir(parents=True, exist_ok=True)
        return Store(str(Path(root).absolute()))
    store = Store(str(root))
    try:
        store.put("kernel-archive", b"Fragments of kernel-archive builds; safe to delete.\n")
    except (KernelArchiveError, FileNotFoundError) as error:
        reason = printable(error, 300)
        raise UsageError(f"--stage {root} cannot be written: {reason}") from None
    return store
