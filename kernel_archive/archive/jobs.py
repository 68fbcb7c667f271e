"""From recipes to the list of runs to read: globs, URLs, run ids, input digests."""

from __future__ import annotations

import fnmatch
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from kernel_archive.archive.recipe import LoadedRecipe, Recipe, Source
from kernel_archive.archive.sources import fetch_source, first_wildcard
from kernel_archive.errors import printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.schema import Role
from kernel_archive.storage import file_sha256

#: Raised when the fragments' own layout or the derivation of their columns changes.
STAGE_VERSION: Final = 13
#: Independent counts may lie beside logs; they are no logs.
_NOT_A_RUN: Final = frozenset({"EXPECTED.json", "README.md"})
#: Names of problems that can be part of a file name.
_PROBLEM_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOG_ENDING: Final = re.compile(r"(\.(zst|gz|jsonl|json|pkl|pickle|parquet|csv|tsv))+$")


def folder_name(folder: Path) -> str:
    """Name the problem of a folder: a level's folder has its problems' numbers.

    >>> folder_name(Path("runs/level1/19_ReLU"))
    'level1/19_ReLU'
    """
    is_level = re.fullmatch(r"level_?\d+", folder.parent.name)
    return f"{folder.parent.name}/{folder.name}" if is_level else folder.name


class RunJob(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One run to stage."""

    run_id: str  # builder name and the run's path; also the id of its search where it has one
    loaded: LoadedRecipe
    index: int  # which [[source]] of the recipe
    path: Path  # the matched file or directory
    base: Path  # directory that provenance is relative to
    excluded: dict[str, dict[str, str]] = {}  # by search: nodes that are excluded, and why

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
        return _relative(self.path, self.base)

    @cached_property
    def problem(self) -> str | None:
        """What the recipe says of the problem, with the name of the run's folder filled in."""
        folder = self.path.parent if self.path.is_file() else self.path
        return self.source.problem and self.source.problem.replace("{folder}", folder_name(folder))

    @cached_property
    def run_files(self) -> RunFiles:
        """The files of the run, as its reader declares them."""
        return RunFiles(self.path, self.base, READERS[self.source.format], self.source.query)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.run_files.files)

    @cached_property
    def file_digests(self) -> dict[Path, str]:
        """The sha256 of every file of the run, as hex digits."""
        return {path: file_sha256(path) for path in self.run_files.files}

    @cached_property
    def digest(self) -> str:
        """The sha256 over names and digests of all files; the names are relative to the run."""
        root = self.run_files.root
        by_name = {
            path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name: digest
            for path, digest in self.file_digests.items()
        }
        return sha256_hex(canonical_json(by_name))

    @cached_property
    def source_digests(self) -> dict[str, str]:
        """The sha256 of each file by its name in the tables."""
        return {self.run_files.name(path): digest for path, digest in self.file_digests.items()}

    @cached_property
    def fragment_key(self) -> str:
        """Digest of everything that a staged run depends on; its record is ``<key>.run``."""
        reader = READERS[self.source.format]
        key = {
            "stage": STAGE_VERSION,
            "reader": [reader.name, reader.version],
            "search": self.run_id,
            "source": msgspec.to_builtins(self.source) | {"problem": self.problem},
            "source_key": self.source_key,
            "excluded": self.excluded,
            "gpus": tuple(self.loaded.recipe.gpu),
            "roles": self.roles,
            "references": self._reference_digests(),
            "input": self.digest,
        }
        return sha256_hex(canonical_json(key))

    def _reference_digests(self) -> dict[str, str]:
        """Digest every file that the pattern of references may name: no problem is known yet."""
        pattern, folder = self.source.reference or "", self.loaded.directory
        patterns = {pattern.replace("{problem}", name) for name in ("*", "*/*", "*/*/*")}
        files = {p for name in patterns if name and name[0] != "/" for p in folder.glob(name)}
        return {p.relative_to(folder).as_posix(): file_sha256(p) for p in files if p.is_file()}

    @property
    def roles(self) -> dict[Role, list[str]]:
        """Roles -> patterns of the problems that have them whatever their source says."""
        return self.loaded.recipe.eval.roles if self.loaded.recipe.eval else {}

    def role_of(self, problem: str) -> Role:
        """Return the role of a problem's rows: that of the recipe's ``[eval]``, else its source."""
        for role, patterns in self.roles.items():
            names = filter(None, (problem, normalise_problem(problem)))
            if any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns):
                return role
        return self.source.role

    def reference_text(self, problem: str | None, log_spelling: str | None = None) -> str | None:
        """Read the reference program that the recipe supplies for a problem, if it does.

        Its file may have the problem's name as the log spells it.
        """
        if self.source.reference is None or problem is None:
            return None
        field = f"source[{self.index}].reference"
        spelled_file = self.source.reference.replace("{problem}", log_spelling or "")
        is_name = log_spelling and all(map(_PROBLEM_FILE.fullmatch, log_spelling.split("/")))
        if log_spelling and is_name and (self.loaded.directory / spelled_file).is_file():
            problem = log_spelling
        elif "{problem}" in self.source.reference and not _PROBLEM_FILE.fullmatch(problem):
            # A name from a log may not lead elsewhere.
            message = "no reference file can be called as this problem is"
            fix = "Name problems by letters, digits, '_', '.' and '-', for a query by replace(...)"
            raise self.loaded.error("bad-recipe", message, field, value=problem, fix=fix)
        path = self.loaded.beside(self.source.reference.replace("{problem}", problem), field)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"reference program cannot be read: {error}"
            raise self.loaded.error("bad-recipe", message, field, value=path.name) from None


def _exclude_reasons(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Map search ids to the reasons of excluded nodes."""
    excluded: dict[str, dict[str, str]] = {}
    for entry in recipe.exclude:
        name = f"{recipe.name}/{entry.search.removeprefix(recipe.name + '/')}"
        excluded.setdefault(name, {})[entry.node] = entry.reason
    return excluded


def _split_pattern(path: str) -> tuple[Path, str]:
    """Split a glob into the directory above its first wildcard, and the rest of it."""
    parts = Path(path).parts
    fixed = min(first_wildcard(parts), len(parts) - 1)
    return Path(*parts[:fixed]), "/".join(parts[fixed:])


def _relative(path: Path, base: Path) -> str:
    """Return a run's path below its base; its name where it is the base itself."""
    return path.name if path == base else path.relative_to(base).as_posix()


def _matched_paths(loaded: LoadedRecipe, index: int, work_folder: Path) -> list[tuple[Path, Path]]:
    """List what a source matches, each with what its name is relative to."""
    source = loaded.recipe.source[index]
    base, pattern = loaded.directory, source.path
    field, fix = f"source[{index}].path", "Paths are relative to the recipe; wildcards: *, ? and **"
    code, message = "no-match", "the path matches no file or directory"
    if "://" in pattern:
        reads_beside = bool(READERS[source.format].files)
        base, pattern = fetch_source(pattern, work_folder, beside=reads_beside)
        code, message = "bad-source", "the address matches no file"
    elif Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        base, pattern = _split_pattern(os.path.normpath(base / pattern))
    paths: list[Path] = []
    try:
        paths = [base] if source.path == "." else sorted(base.glob(pattern))
    except (RecursionError, ValueError, IndexError, NotImplementedError, OSError) as error:
        code, message = "bad-recipe", f"the path cannot be looked for: {printable(error)}"
    matches = [(path, base) for path in paths if path.name not in _NOT_A_RUN]
    if not matches:
        raise loaded.error(code, message, field, value=source.path, fix=fix)
    return matches


def jobs_of(recipes: list[LoadedRecipe], work_folder: Path = Path()) -> list[RunJob]:
    """List the runs of all recipes, sorted by id; sources behind URLs go into ``work_folder``."""
    jobs: dict[str, RunJob] = {}
    for loaded in recipes:
        excluded = _exclude_reasons(loaded.recipe)
        unmatched = set(excluded)
        for index in range(len(loaded.recipe.source)):
            for path, base in _matched_paths(loaded, index, work_folder):
                run_path = _LOG_ENDING.sub("", _relative(path, base)).removeprefix("logs/")
                run_id = f"{loaded.recipe.name}/{run_path}"
                prefix = f"{run_id}/"
                reasons = {s: why for s, why in excluded.items() if f"{s}/".startswith(prefix)}
                unmatched -= reasons.keys()
                if other := jobs.get(run_id):
                    message = f"two runs share the id {run_id}: {other.path} and {path}"
                    field, fix = f"source[{index}].path", "Let each run match one source only"
                    raise loaded.error("duplicate-search", message, field, fix=fix)
                jobs[run_id] = RunJob(
                    run_id=run_id,
                    loaded=loaded,
                    index=index,
                    path=path,
                    base=base,
                    excluded=reasons,
                )
        if unmatched:
            message = "an exclude entry names a search that no source matches"
            raise loaded.error("bad-exclude", message, "exclude.search", value=min(unmatched))
    return [jobs[key] for key in sorted(jobs)]
