"""Sources behind a URL (``hf://``, ``s3://``, ...): listed where the build runs, read through fsspec where the worker is."""

from __future__ import annotations

import posixpath
import re
import tempfile
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.store import patiently
from kernel_archive.connections import bound_requests
from kernel_archive.errors import KernelArchiveError, RecipeError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.files import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kernel_archive.archive.recipe import LoadedRecipe, Source

#: What services call the state of a file, in their listings; another content has another one of them.
_STATES: Final = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation", "mtime", "LastModified", "CRC")


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a run: its name in its file system, its place below the run's folder, and its bytes."""

    name: str
    place: str
    bytes: int | None


class RemoteRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run behind a URL."""

    url: str  # leads to its file system
    recipe: str  # the file of its recipe, for messages
    field: str  # where the URL stands there
    files: list[RemoteFile]  # all that its reader may read
    state: str | None  # names their content as far as the service tells; None where it tells too little


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    if url.startswith("hf://"):
        bound_requests()
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


def remote_runs(loaded: LoadedRecipe, source: Source, index: int) -> Iterator[tuple[str, RemoteRun]]:
    """What a URL matches, files or folders: the place of each below the first wildcard, and its run.

    Files that the reader reads beside the matched ones belong to their runs.

    Raises:
        RecipeError: the URL can't be reached or matches nothing, or a name in a listing leads out of its folder.
    """
    field = f"source[{index}].path"

    def fail(message: str, fix: str) -> RecipeError:
        return RecipeError.of(
            code="bad-source", message=message, file=str(loaded.file), field=field, value=source.path, fix=fix
        )

    def placed(name: str) -> str:
        parts = _place(name, fixed)
        if parts is None:
            message = f"the listing names a file outside of the folder it is in: {printable(name)}"
            raise fail(message, "Such a listing is an attack or a damaged archive; nothing of it was fetched")
        return "/".join(parts)

    try:
        system, pattern = _system(source.path)
        found = {name.rstrip("/"): facts for name, facts in sorted(system.glob(pattern, detail=True).items())}
        steps = PurePosixPath(pattern).parts
        wild = next((i for i, step in enumerate(steps) if any(mark in step for mark in "*?[")), len(steps) - 1)
        fixed = PurePosixPath(*steps[:wild])
        folders = {
            name if facts.get("type") == "directory" else posixpath.dirname(name) for name, facts in found.items()
        }
        files_of = cache(partial(_files, system))
        beside = {folder: _beside(folder, _patterns(source), files_of) for folder in folders}
    except Exception as error:  # fsspec back-ends raise whatever their service does
        raise fail(
            f"cannot be reached: {printable(str(error), 300)}",
            "Check the network and the address, or name a local copy with --source DIR",
        ) from error
    for name, facts in found.items():
        own = {} if facts.get("type") == "directory" else {name: facts}
        listed = {**own, **beside[name if not own else posixpath.dirname(name)]}
        if not listed:
            continue
        files = [RemoteFile(key, placed(key), listed[key].get("size")) for key in sorted(listed)]
        states = [(key, listed[key].get("size"), _state(listed[key])) for key in sorted(listed)]
        told = all(state is not None for *_, state in states)
        known = sha256_hex(repr(states).encode()) if told else None
        yield placed(name), RemoteRun(url=source.path, recipe=str(loaded.file), field=field, files=files, state=known)


@contextmanager
def fetched(run: RemoteRun) -> Iterator[Path]:
    """A folder with the files of a run, gone behind the block.

    Raises:
        RecipeError: a file can't be had, at no attempt, or as a whole.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-archive-") as folder:
        for file in run.files:
            path = Path(folder, file.place)
            path.parent.mkdir(parents=True, exist_ok=True)

            def copy(file: RemoteFile = file, path: Path = path) -> None:
                _system(run.url)[0].get_file(file.name, str(path))
                if file.bytes is not None and path.stat().st_size != file.bytes:
                    raise OSError(f"{path.stat().st_size} bytes came, the listing says {file.bytes}")

            try:
                patiently(copy, f"download of {printable(file.name)}")
            except (KernelArchiveError, OSError, ImportError) as error:
                raise RecipeError.of(
                    code="bad-source",
                    message=f"download of {printable(file.name)} failed: {printable(str(error), 300)}",
                    file=run.recipe,
                    field=run.field,
                    value=run.url,
                    fix="Run the build again: what was staged stays",
                ) from error
        yield Path(folder)


def _place(name: str, fixed: PurePosixPath) -> tuple[str, ...] | None:
    """Where a listed file goes below the folder of its source; ``None`` for a name that would lead out of it."""
    path = PurePosixPath(name)
    parts = path.relative_to(fixed).parts if path.is_relative_to(fixed) else (path.name,)
    foreign = any(part in ("..", "/", "") or "\\" in part or "\0" in part for part in parts)
    return None if foreign or not parts else parts


def _state(facts: dict[str, Any]) -> str | None:
    """What the service says of a file's content; ``None`` where it says nothing."""
    known = [(name, facts[name]) for name in _STATES if facts.get(name) is not None]
    return repr(known) if known else None


def _patterns(source: Source) -> list[str]:
    """What the source's reader may read in the folder of a run, also what only its recipe names."""
    named = [
        rule.file for rule in (source.columns or {}).values() if not isinstance(rule, str) and rule.file is not None
    ]
    named += [join.path for join in source.join or []]
    return [*READERS[source.format].files, *(re.sub(r"\{[^{}]+\}", "*", name) for name in named)]


def _beside(folder: str, patterns: list[str], files_of: Callable[[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    """The files that a reader may read for a run in a folder: logs, settings, summaries, also of the folders above."""
    from fsspec.utils import glob_translate

    found: dict[str, Any] = {}
    for pattern in patterns:
        steps = pattern.split("/")
        up = next(i for i, step in enumerate(steps) if step != "..")
        place = posixpath.normpath(posixpath.join(folder, *steps[:up]))
        rest = "/".join(steps[up:])
        wanted = re.compile("|".join(glob_translate(rest + suffix) for suffix in SUFFIXES))
        listed = files_of(place, len(steps) - up)
        found |= {name: facts for name, facts in listed.items() if wanted.match(posixpath.relpath(name, place))}
    return found


def _files(system: Any, folder: str, depth: int) -> Mapping[str, Any]:
    """What is in a folder of a file system, so many levels deep."""
    try:
        found: Mapping[str, Any] = system.find(folder, maxdepth=depth, detail=True)
    except FileNotFoundError:  # above the first folder of the service
        return {}
    return found
