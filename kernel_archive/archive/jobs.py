"""From recipes to the list of runs to read: globs, URLs, search ids, input digests."""

from __future__ import annotations

import fnmatch
import os
import re
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.recipe import RECIPE_NAME
from kernel_archive.archive.store import fetch_source
from kernel_archive.errors import RecipeError, printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.storage import file_sha256

if TYPE_CHECKING:
    from kernel_archive.archive.recipe import LoadedRecipe, Source

#: Raised when the fragments' own layout or the derivation of their columns changes.
STAGE_VERSION: Final = 7
#: Independent counts may lie beside logs; they are no logs.
_NOT_A_RUN: Final = frozenset({"EXPECTED.json", "README.md"})
#: Names of problems that can stand in a file name.
_PROBLEM_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOG_ENDINGS: Final = tuple(
    f".{ending}"
    for ending in ("zst", "gz", "jsonl", "json", "pkl", "pickle", "parquet", "csv", "tsv")
)


_SAME_ID: Final = (
    "Let each run match one source only. A run is named by its path below the first wildcard, or "
    'below the recipe: let one source match both, such as path = "{p}/results", where they differ'
)


class RunJob(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One run to stage."""

    search_id: str  # builder name and the run's path
    builder: str
    source_index: int  # which [[source]] of the recipe
    source: Source
    path: Path  # the matched file or directory
    base: Path  # directory that provenance is relative to
    recipe_directory: Path  # where the recipe's own files (references) are
    excluded: dict[str, dict[str, str]]  # search id -> node -> reason
    gpus: tuple[str, ...] = ()  # of which the recipe states facts
    roles: dict[str, list[str]] = {}  # role -> patterns of problems, before the source's role

    @cached_property
    def run_files(self) -> RunFiles:
        """The files of the run, as its reader declares them."""
        stated = msgspec.structs.asdict(self.source)
        settings = {key: value for key, value in stated.items() if value is not None}
        settings["recipe_directory"] = self.recipe_directory
        return RunFiles(self.path, self.base, READERS[self.source.format], settings)

    def role_of(self, problem: str | None) -> str:
        """The role of a problem's rows: what the recipe's ``[eval]`` says, else the source."""
        for role, patterns in self.roles.items():
            if any(fnmatch.fnmatchcase(problem or "", pattern) for pattern in patterns if problem):
                return role
        return self.source.role

    @cached_property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.run_files.files)

    @property
    def source_key(self) -> str:
        """Names the ``[[source]]``: rules about a whole source (survivors only) group by it."""
        return f"{self.builder}#{self.source_index}"

    @property
    def recipe_file(self) -> Path:
        """The recipe, for findings."""
        return self.recipe_directory / RECIPE_NAME

    @property
    def run_path(self) -> str:
        """The run's place, relative to its builder."""
        at_base = self.path == self.base
        return self.path.name if at_base else self.path.relative_to(self.base).as_posix()

    def error(self, field: str, message: str, value: str, code: str = "bad-recipe") -> RecipeError:
        """Return an error of the recipe."""
        place: dict[str, Any] = {"file": str(self.recipe_file), "field": field}
        return RecipeError.of(code=code, message=message, value=value, **place)

    def reference_text(self, problem: str | None) -> str | None:
        """Read the reference program that the recipe supplies for a problem, if it does.

        Raises:
            RecipeError: the named file can't be read.
        """
        if self.source.reference is None or problem is None:
            return None
        path = self.recipe_directory / self.source.reference.replace("{problem}", problem)
        field = f"source[{self.source_index}].reference"
        try:
            # A problem's name comes from a log: it may not lead out of the recipe's folder.
            inside = path.resolve().is_relative_to(self.recipe_directory.resolve())
            if _PROBLEM_FILE.fullmatch(problem) and inside:
                return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"reference program cannot be read: {error}"
            raise self.error(field, message, path.name) from None
        message = "the path of a reference program leaves the recipe's folder"
        raise self.error(field, message, problem)


def run_digest(files: RunFiles) -> tuple[str, dict[str, str], int]:
    """Digest the names and digests of a run's files; also digests of each file, and bytes on disk.

    Names count relative to the run: a run that was moved or renamed keeps its digest.
    """
    each: dict[str, str] = {}
    inside: dict[str, str] = {}
    size = 0
    for path in files.files:
        below = path.is_relative_to(files.root)
        name = path.relative_to(files.root).as_posix() if below else path.name
        each[files.name(path)] = inside[name] = file_sha256(path)
        size += path.stat().st_size
    return sha256_hex(canonical_json(inside)), each, size


def fragment_key(job: RunJob, digest: str) -> str:
    """Name a staged fragment: the digest of everything that its content depends on."""
    reader = READERS[job.source.format]
    pattern = (job.source.reference or "").replace("{problem}", "*")
    files = job.recipe_directory.glob(pattern) if pattern and pattern[0] != "/" else ()
    key = {
        "stage": STAGE_VERSION,
        "reader": [reader.name, reader.version],
        "search": job.search_id,
        "source": msgspec.to_builtins(job.source),
        "source_key": job.source_key,
        "excluded": job.excluded,
        "gpus": job.gpus,
        "roles": job.roles,
        "references": {p.name: file_sha256(p) for p in sorted(files) if p.is_file()},
        "input": digest,
    }
    return sha256_hex(canonical_json(key))


def _split_pattern(path: str) -> tuple[Path, str]:
    """Split a glob into the directory above its first wildcard, and the rest of it."""
    parts = Path(path).parts
    wild = [i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)]
    fixed = min([*wild, len(parts) - 1])
    return Path(*parts[:fixed]), "/".join(parts[fixed:])


def _run_name(path: Path, base: Path) -> str:
    """Return the part of a search id behind the builder's name."""
    relative = path.relative_to(base).as_posix() if path != base else path.name
    while relative.endswith(_LOG_ENDINGS):
        relative = relative.rsplit(".", 1)[0]
    return relative.removeprefix("logs/")


def _matches(
    loaded: LoadedRecipe, source: Source, index: int, stage: Path
) -> list[tuple[Path, Path]]:
    """List what a source matches, each with what its name is relative to."""
    fail = partial(_bad_path, loaded, source, index)
    base, pattern = loaded.directory, source.path
    code, message = "no-match", "the path matches no file or directory"
    if "://" in pattern:
        base, pattern = fetch_source(pattern, stage, beside=bool(READERS[source.format].files))
        code, message = "bad-source", "the address matches no file"
    elif Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        base, pattern = _split_pattern(os.path.normpath(base / pattern))
    try:
        paths = [base] if source.path == "." else sorted(base.glob(pattern))
    except RecursionError:
        raise fail("bad-recipe", "the path cannot be looked for: too many levels") from None
    except (ValueError, IndexError, NotImplementedError, OSError) as error:
        reason = printable(str(error))
        raise fail("bad-recipe", f"the path cannot be looked for: {reason}") from None
    matches = [(path, base) for path in paths if path.name not in _NOT_A_RUN]
    if not matches:
        raise fail(code, message)
    return matches


def _bad_path(
    loaded: LoadedRecipe, source: Source, index: int, code: str, message: str, fix: str = ""
) -> RecipeError:
    fix = fix or "Paths are relative to the recipe; wildcards are *, ? and **"
    place: dict[str, Any] = {
        "file": str(loaded.file),
        "field": f"source[{index}].path",
        "value": source.path,
    }
    return RecipeError.of(code=code, message=message, fix=fix, **place)


def jobs_of(recipes: list[LoadedRecipe], stage: Path = Path()) -> list[RunJob]:
    """List every run of every recipe, sorted by search id; sources behind URLs go into ``stage``.

    Raises:
        RecipeError: a path matches nothing, two runs share an id, or an ``[[exclude]]`` names no
        search.
    """
    jobs: dict[str, RunJob] = {}
    for loaded in recipes:
        recipe = loaded.recipe
        roles = {
            str(role): names for role, names in (recipe.eval.roles if recipe.eval else {}).items()
        }
        excluded: dict[str, dict[str, str]] = {}
        for entry in recipe.exclude:
            name = f"{recipe.name}/{entry.search.removeprefix(recipe.name + '/')}"
            excluded.setdefault(name, {})[entry.node] = entry.reason
        for index, source in enumerate(recipe.source):
            for path, base in _matches(loaded, source, index, stage):
                search_id = f"{recipe.name}/{_run_name(path, base)}"
                if search_id in jobs:
                    message = f"two runs share the search id {search_id}: {jobs[search_id].path}"
                    message += f" and {path}"
                    raise _bad_path(loaded, source, index, "duplicate-search", message, _SAME_ID)
                jobs[search_id] = RunJob(
                    search_id=search_id,
                    builder=recipe.name,
                    source_index=index,
                    source=source,
                    path=path,
                    base=base,
                    recipe_directory=loaded.directory,
                    gpus=tuple(recipe.gpu),
                    roles=dict(roles),
                    excluded={
                        name: nodes
                        for name, nodes in excluded.items()
                        if name == search_id or name.startswith(search_id + "/")
                    },
                )
        for name, nodes in excluded.items():
            if not any(name in job.excluded for job in jobs.values()):
                raise RecipeError.of(
                    code="bad-exclude",
                    message="an exclude entry names a search that no source matches",
                    file=str(loaded.file),
                    field="exclude.search",
                    value=f"{name} (nodes {', '.join(nodes)})",
                )
    return [jobs[key] for key in sorted(jobs)]
