"""From recipes to the list of runs to read: globs, URLs, search ids, input digests."""

from __future__ import annotations

import fnmatch
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from kernel_archive.archive.sources import fetch_source
from kernel_archive.errors import printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.storage import file_sha256

if TYPE_CHECKING:
    from kernel_archive.archive.recipe import LoadedRecipe, Recipe, Source

#: Raised when the fragments' own layout or the derivation of their columns changes.
STAGE_VERSION: Final = 10
#: Independent counts may lie beside logs; they are no logs.
_NOT_A_RUN: Final = frozenset({"EXPECTED.json", "README.md"})
#: Names of problems that can stand in a file name.
_PROBLEM_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOG_ENDINGS: Final = tuple(
    f".{ending}"
    for ending in ("zst", "gz", "jsonl", "json", "pkl", "pickle", "parquet", "csv", "tsv")
)


class RunJob(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One run to stage."""

    search_id: str  # builder name and the run's path
    loaded: LoadedRecipe
    index: int  # which [[source]] of the recipe
    path: Path  # the matched file or directory
    base: Path  # directory that provenance is relative to

    @property
    def source(self) -> Source:
        """The ``[[source]]``."""
        return self.loaded.recipe.source[self.index]

    @property
    def builder(self) -> str:
        """The name of the recipe."""
        return self.loaded.recipe.name

    @property
    def source_key(self) -> str:
        """Names the ``[[source]]``: rules about a whole source (survivors only) group by it."""
        return f"{self.builder}#{self.index}"

    @property
    def run_path(self) -> str:
        """The run's place, relative to its builder."""
        at_base = self.path == self.base
        return self.path.name if at_base else self.path.relative_to(self.base).as_posix()

    @cached_property
    def run_files(self) -> RunFiles:
        """The files of the run, as its reader declares them."""
        stated = msgspec.structs.asdict(self.source)
        settings = {key: value for key, value in stated.items() if value is not None}
        settings["recipe_directory"] = self.loaded.directory
        return RunFiles(self.path, self.base, READERS[self.source.format], settings)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.run_files.files)

    @cached_property
    def excluded(self) -> dict[str, dict[str, str]]:
        """Reasons by node, by search: what the recipe excludes of this run."""
        return {
            name: nodes
            for name, nodes in excludes(self.loaded.recipe).items()
            if name == self.search_id or name.startswith(f"{self.search_id}/")
        }

    @cached_property
    def roles(self) -> dict[str, list[str]]:
        """Roles -> patterns of the problems that have them whatever their source says."""
        rules = self.loaded.recipe.eval
        return {str(role): patterns for role, patterns in rules.roles.items()} if rules else {}

    def role_of(self, problem: str | None) -> str:
        """The role of a problem's rows: what the recipe's ``[eval]`` says, else the source."""
        for role, patterns in self.roles.items():
            if problem and any(fnmatch.fnmatchcase(problem, pattern) for pattern in patterns):
                return role
        return self.source.role

    def reference_text(self, problem: str | None) -> str | None:
        """Read the reference program that the recipe supplies for a problem, if it does."""
        if self.source.reference is None or problem is None:
            return None
        field = f"source[{self.index}].reference"
        if not _PROBLEM_FILE.fullmatch(problem):  # a name from a log may not lead elsewhere
            raise self.loaded.error("bad-recipe", "no file can be called so", field, problem)
        path = self.loaded.beside(self.source.reference.replace("{problem}", problem), field)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"reference program cannot be read: {error}"
            raise self.loaded.error("bad-recipe", message, field, path.name) from None


def excludes(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Map search ids to the reasons of excluded nodes."""
    excluded: dict[str, dict[str, str]] = {}
    for entry in recipe.exclude:
        name = f"{recipe.name}/{entry.search.removeprefix(recipe.name + '/')}"
        excluded.setdefault(name, {})[entry.node] = entry.reason
    return excluded


class RunDigests(NamedTuple):
    """sha256 of what a run consists of, as hex digits."""

    run: str  # over names and digests of its files
    files: dict[str, str]  # by name, as rows state it


def run_digests(files: RunFiles) -> RunDigests:
    """Digest the files of a run.

    Names count relative to the run: a run that was moved or renamed keeps its digest.
    """
    each: dict[str, str] = {}
    inside: dict[str, str] = {}
    for path in files.files:
        below = path.is_relative_to(files.root)
        name = path.relative_to(files.root).as_posix() if below else path.name
        each[files.name(path)] = inside[name] = file_sha256(path)
    return RunDigests(sha256_hex(canonical_json(inside)), each)


def fragment_key(job: RunJob, digest: str) -> str:
    """Name a staged fragment: the digest of everything that its content depends on."""
    reader = READERS[job.source.format]
    pattern = (job.source.reference or "").replace("{problem}", "*")
    files = job.loaded.directory.glob(pattern) if pattern and pattern[0] != "/" else ()
    key = {
        "stage": STAGE_VERSION,
        "reader": [reader.name, reader.version],
        "search": job.search_id,
        "source": msgspec.to_builtins(job.source),
        "source_key": job.source_key,
        "excluded": job.excluded,
        "gpus": tuple(job.loaded.recipe.gpu),
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


def _matches(loaded: LoadedRecipe, index: int, stage: Path) -> list[tuple[Path, Path]]:
    """List what a source matches, each with what its name is relative to."""
    source = loaded.recipe.source[index]
    base, pattern = loaded.directory, source.path
    field, fix = f"source[{index}].path", "Paths are relative to the recipe; wildcards: *, ? and **"
    code, message = "no-match", "the path matches no file or directory"
    if "://" in pattern:
        base, pattern = fetch_source(pattern, stage, beside=bool(READERS[source.format].files))
        code, message = "bad-source", "the address matches no file"
    elif Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        base, pattern = _split_pattern(os.path.normpath(base / pattern))
    paths: list[Path] = []
    try:
        paths = [base] if source.path == "." else sorted(base.glob(pattern))
    except RecursionError:
        code, message = "bad-recipe", "the path cannot be looked for: too many levels"
    except (ValueError, IndexError, NotImplementedError, OSError) as error:
        code, message = "bad-recipe", f"the path cannot be looked for: {printable(str(error))}"
    matches = [(path, base) for path in paths if path.name not in _NOT_A_RUN]
    if not matches:
        raise loaded.error(code, message, field, source.path, fix)
    return matches


def jobs_of(recipes: list[LoadedRecipe], stage: Path = Path()) -> list[RunJob]:
    """List the runs of all recipes, sorted by search id; sources behind URLs go into ``stage``."""
    jobs: dict[str, RunJob] = {}
    for loaded in recipes:
        name = loaded.recipe.name
        for index in range(len(loaded.recipe.source)):
            for path, base in _matches(loaded, index, stage):
                search_id = f"{name}/{_run_name(path, base)}"
                job = RunJob(search_id=search_id, loaded=loaded, index=index, path=path, base=base)
                other = jobs.setdefault(search_id, job)
                if other is not job:
                    message = f"two runs share the search id {search_id}: {other.path} and {path}"
                    field, fix = f"source[{index}].path", "Let each run match one source only"
                    raise loaded.error("duplicate-search", message, field, fix=fix)
        excluded = {search for job in jobs.values() for search in job.excluded}
        for search in sorted(excludes(loaded.recipe).keys() - excluded):
            message = "an exclude entry names a search that no source matches"
            raise loaded.error("bad-exclude", message, "exclude.search", search)
    return [jobs[key] for key in sorted(jobs)]
