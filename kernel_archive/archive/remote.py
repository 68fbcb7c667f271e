"""Sources behind a URL (``hf://``, ``s3://``, ...): fetched once through fsspec, then read like local files."""

from __future__ import annotations

import hashlib
import posixpath
import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kernel_archive.connections import bound_requests
from kernel_archive.errors import RecipeError, printable
from kernel_archive.readers import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.archive.recipe import LoadedRecipe, Source

__all__ = ["fetch"]


def fetch(loaded: LoadedRecipe, source: Source, index: int, downloads: Path | None) -> Iterator[tuple[Path, Path]]:
    """Download what a URL matches; yields each file with the folder that its name is relative to.

    Files that the reader reads beside the matched ones come with them. A file whose size and version tag are as they were
    is not fetched again.

    Raises:
        RecipeError: the URL can't be reached or matches nothing.
    """
    import fsspec

    def fail(message: str, fix: str) -> RecipeError:
        where = f"source[{index}].path"
        return RecipeError.of(
            code="bad-source", message=message, file=str(loaded.file), field=where, value=source.path, fix=fix
        )

    if downloads is None:
        raise fail("a URL needs a place for its files", "Build with an --out directory")
    if source.path.startswith("hf://"):
        bound_requests()
    try:
        system, pattern = fsspec.core.url_to_fs(source.path)
        found = system.glob(pattern, detail=True)
    except Exception as error:  # fsspec back-ends raise whatever their service does
        raise fail(
            f"cannot be reached: {printable(str(error), 300)}",
            "Check the network and the address, or name a local copy with --source DIR",
        ) from error
    files = {name: facts for name, facts in sorted(found.items()) if facts.get("type", "file") == "file"}
    if not files:
        raise fail("the address matches no file", "Check it in a browser")
    beside = _files_beside(system, files, READERS[source.format].files)
    parts = PurePosixPath(pattern).parts
    wild = next((i for i, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts) - 1)
    fixed = PurePosixPath(*parts[:wild])
    folder = downloads / hashlib.sha256(source.path.encode()).hexdigest()[:16]
    tags = {name: _tag(facts) for name, facts in sorted({**files, **beside}.items())}
    view = folder / hashlib.sha256(repr(tags).encode()).hexdigest()[:16]
    places: dict[str, tuple[str, ...]] = {}
    for name in tags:
        place = _place(name, fixed)
        if place is None:
            message = f"the listing names a file outside of the folder it is in: {printable(name)}"
            raise fail(message, "Such a listing is an attack or a damaged archive; nothing of it was fetched")
        places[name] = place
    for name, tag in tags.items():
        kept = folder / "files" / tag
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_name(kept.name + ".part")
            try:
                system.get_file(name, str(partial))
            except Exception as error:  # fsspec back-ends raise whatever their service does
                raise fail(
                    f"download of {printable(name)} failed: {printable(str(error), 300)}",
                    "Run the build again: what came stays",
                ) from error
            partial.replace(kept)
        target = view.joinpath(*places[name])
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, target)
        if name in files:
            yield target, view


def _place(name: str, fixed: PurePosixPath) -> tuple[str, ...] | None:
    """Where a listed file goes below the folder of its source; ``None`` for a name that would lead out of it."""
    path = PurePosixPath(name)
    parts = path.relative_to(fixed).parts if path.is_relative_to(fixed) else (path.name,)
    foreign = any(part in ("..", "/", "") or "\\" in part or "\0" in part for part in parts)
    return None if foreign or not parts else parts


def _tag(facts: dict[str, Any]) -> str:
    """Names the content of a remote file as far as its service tells: another content has another tag."""
    known = (facts.get("name"), facts.get("size"), facts.get("blob_id"), facts.get("ETag"))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def _files_beside(system: Any, files: dict[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """The files that the reader reads beside the matched ones (a run's settings, the summaries of searches)."""
    found: dict[str, Any] = {}
    for folder in {posixpath.dirname(name) for name in files}:
        for pattern in patterns:
            matches = system.glob(posixpath.normpath(posixpath.join(folder, pattern)), detail=True)
            found |= {name: facts for name, facts in matches.items() if facts.get("type", "file") == "file"}
    return {name: facts for name, facts in found.items() if name not in files}
