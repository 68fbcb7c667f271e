"""Sources behind a URL: listed where the build runs, fetched through fsspec where the worker is."""

from __future__ import annotations

import posixpath
import re
import tempfile
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.store import retry
from kernel_archive.connections import bound_requests
from kernel_archive.errors import KernelArchiveError, RecipeError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.files import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kernel_archive.archive.recipe import LoadedRecipe, Source

#: What services call the state of a file in their listings; another content has another state.
_STATES: Final = (
    *("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation"),
    *("mtime", "LastModified", "CRC"),
)


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a run: its name in its file system, its place below the source, its bytes."""

    name: str
    place: str
    bytes: int | None


class RemoteRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run behind a URL."""

    url: str  # leads to its file system
    recipe: str  # the file of its recipe, for messages
    field: str  # where the URL stands there
    files: list[RemoteFile]  # all that its reader may read
    #: Names the content of the files; None where the service says too little of them.
    state: str | None

    def error(self, message: str, fix: str) -> RecipeError:
        """Return an error of the URL."""
        place: dict[str, Any] = {"file": self.recipe, "field": self.field, "value": self.url}
        return RecipeError.of(code="bad-source", message=message, fix=fix, **place)


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    if url.startswith("hf://"):
        bound_requests()
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


def remote_runs(
    loaded: LoadedRecipe, source: Source, index: int
) -> Iterator[tuple[str, RemoteRun]]:
    """List what a URL matches, files or folders: the place of each, and its run.

    Files that the reader reads beside the matched ones belong to their runs.

    Raises:
        RecipeError: the URL can't be reached, or a name in a listing leads out of its folder.
    """
    place = {"recipe": str(loaded.file), "field": f"source[{index}].path"}
    empty = RemoteRun(url=source.path, files=[], state=None, **place)
    try:
        system, pattern = _system(source.path)
        listed = sorted(system.glob(pattern, detail=True).items())
        matches = {name.rstrip("/"): facts for name, facts in listed}
        folders = {_folder(name, facts) for name, facts in matches.items()}
        listing = cache(partial(_list_files, system))
        beside = {f: _files_beside(f, READERS[source.format].files, listing) for f in folders}
    except Exception as error:  # fsspec back-ends raise whatever their service does
        raise empty.error(
            f"cannot be reached: {printable(str(error), 300)}",
            "Check the network and the address, or name a local copy with --source DIR",
        ) from error
    steps = PurePosixPath(pattern).parts
    wild = [i for i, step in enumerate(steps) if any(mark in step for mark in "*?[")]
    fixed = PurePosixPath(*steps[: min([*wild, len(steps) - 1])])

    def place_of(name: str) -> str:
        parts = _place(name, fixed)
        if parts is None:
            raise empty.error(
                f"the listing names a file outside of the folder it is in: {printable(name)}",
                "Such a listing is an attack or a damaged archive; nothing of it was fetched",
            )
        return "/".join(parts)

    for name, facts in matches.items():
        own = {} if facts.get("type") == "directory" else {name: facts}
        entries = sorted({**own, **beside[_folder(name, facts)]}.items())
        if not entries:
            continue
        files = [RemoteFile(key, place_of(key), entry.get("size")) for key, entry in entries]
        states = [(key, entry.get("size"), _state(entry)) for key, entry in entries]
        complete = all(state is not None for *_, state in states)
        state = sha256_hex(repr(states).encode()) if complete else None
        yield place_of(name), msgspec.structs.replace(empty, files=files, state=state)


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
                retry(partial(_fetch, run.url, file, path), what)
            except (KernelArchiveError, OSError, ImportError) as error:
                raise run.error(
                    f"{what} failed: {printable(str(error), 300)}",
                    "Run the build again: what was staged stays",
                ) from error
        yield Path(folder)


def _fetch(url: str, file: RemoteFile, path: Path) -> None:
    _system(url)[0].get_file(file.name, str(path))
    size = path.stat().st_size
    if file.bytes is not None and size != file.bytes:
        raise OSError(f"{size} bytes came, the listing says {file.bytes}")


def _folder(name: str, facts: Mapping[str, Any]) -> str:
    return name if facts.get("type") == "directory" else posixpath.dirname(name)


def _place(name: str, fixed: PurePosixPath) -> tuple[str, ...] | None:
    """Where a listed file goes below its source; ``None`` for a name that would lead out of it."""
    path = PurePosixPath(name)
    parts = path.relative_to(fixed).parts if path.is_relative_to(fixed) else (path.name,)
    foreign = any(part in ("..", "/", "") or "\\" in part or "\0" in part for part in parts)
    return None if foreign or not parts else parts


def _state(facts: Mapping[str, Any]) -> str | None:
    """What the service says of a file's content; ``None`` where it says nothing."""
    known = [(name, facts[name]) for name in _STATES if facts.get(name) is not None]
    return repr(known) if known else None


def _files_beside(
    folder: str, patterns: Iterable[str], listing: Callable[[str, int], Mapping[str, Any]]
) -> dict[str, Any]:
    """The files that a reader may read for a run in a folder, also those of folders above."""
    from fsspec.utils import glob_translate

    files: dict[str, Any] = {}
    for pattern in patterns:
        steps = pattern.split("/")
        up = next(i for i, step in enumerate(steps) if step != "..")
        top = posixpath.normpath(posixpath.join(folder, *steps[:up]))
        rest = "/".join(steps[up:])
        wanted = re.compile("|".join(glob_translate(rest + suffix) for suffix in SUFFIXES))
        listed = listing(top, len(steps) - up)
        files |= {n: f for n, f in listed.items() if wanted.match(posixpath.relpath(n, top))}
    return files


def _list_files(system: Any, folder: str, depth: int) -> Mapping[str, Any]:
    """What is in a folder of a file system, this many levels deep."""
    try:
        files: Mapping[str, Any] = system.find(folder, maxdepth=depth, detail=True)
    except FileNotFoundError:  # above the first folder of the service
        return {}
    return files
