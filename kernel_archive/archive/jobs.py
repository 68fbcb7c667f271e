"""From recipes to the list of runs to read: globs, URLs, search ids, input digests."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.recipe import RECIPE_NAME
from kernel_archive.errors import RecipeError, printable
from kernel_archive.ids import canonical_json
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.mapping import names_in
from kernel_archive.storage import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.archive.recipe import LoadedRecipe, Source
    from kernel_archive.archive.remote import RemoteRun

#: Raised when the fragments' own layout or the derivation of their columns changes.
STAGE_VERSION: Final = 6
#: Independent counts may lie beside logs; they are no logs.
_NOT_A_RUN: Final = frozenset({"EXPECTED.json", "README.md"})
#: Names of problems that can stand in a file name.
_PROBLEM_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOG_ENDINGS: Final = (".zst", ".gz", ".jsonl", ".json", ".pkl", ".pickle", ".parquet", ".csv", ".tsv")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run to stage."""

    search_id: str  # builder name and the run's path
    builder: str
    source_index: int  # which [[source]] of the recipe
    source: Source
    path: Path  # the matched file or directory
    base: Path  # directory that provenance is relative to
    recipe_directory: Path  # where the recipe's own files (references) are
    excluded: dict[str, dict[str, str]]  # search id -> node -> reason; several where one file holds several searches
    gpus: tuple[str, ...] = ()  # of which the recipe states facts
    roles: dict[str, list[str]] = {}  # role -> patterns of the problems whose rows have it, whatever the source says
    remote: RemoteRun | None = None  # the files of a run behind a URL: path and base are of its names only

    def run_files(self) -> RunFiles:
        """The files of the run, as its reader declares them."""
        settings: dict[str, Any] = {k: v for k, v in msgspec.structs.asdict(self.source).items() if v is not None}
        settings["recipe_directory"] = self.recipe_directory
        return RunFiles(self.path, self.base, READERS[self.source.format], settings)

    def role_of(self, problem: str | None) -> str:
        """The role of a problem's rows: what the recipe's ``[eval]`` says of the problem, else what the source says."""
        for role, patterns in self.roles.items():
            if problem is not None and any(fnmatch.fnmatchcase(problem, pattern) for pattern in patterns):
                return role
        return self.source.role

    @property
    def bytes(self) -> int:
        """Of all its files."""
        if self.remote is not None:
            return sum(file.bytes or 0 for file in self.remote.files)
        return sum(path.stat().st_size for path in self.run_files().files)

    @contextmanager
    def on_this_machine(self) -> Iterator[Job]:
        """The run with its files in a directory."""
        if self.remote is None:
            yield self
            return
        from kernel_archive.archive.remote import fetched

        with fetched(self.remote) as folder:
            yield msgspec.structs.replace(self, path=folder / self.path, base=folder, remote=None)

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
        return self.path.relative_to(self.base).as_posix() if self.path != self.base else self.path.name

    def bad_exclude(self, what: str, value: str) -> RecipeError:
        """The error of an ``[[exclude]]`` entry that names what is not there."""
        return RecipeError.of(
            code="bad-exclude",
            message=f"an exclude entry names {what}",
            file=str(self.recipe_file),
            field="exclude",
            value=value,
        )

    def reference_text(self, problem: str | None) -> str | None:
        """The reference program that the recipe supplies for a problem, if it does.

        Raises:
            RecipeError: the named file can't be read.
        """
        if self.source.reference in (None, "root") or problem is None:
            return None
        path = self.recipe_directory / self.source.reference.replace("{problem}", problem)
        try:
            # A problem's name comes from a log: it may not lead out of the recipe's folder.
            inside = path.resolve().is_relative_to(self.recipe_directory.resolve())
            if _PROBLEM_FILE.fullmatch(problem) and inside:
                return path.read_text(encoding="utf-8")
            message, value = "the path of a reference program leaves the recipe's folder", problem
        except (OSError, ValueError) as error:
            message, value = f"reference program cannot be read: {error}", path.name
        raise RecipeError.of(
            code="bad-recipe",
            message=message,
            file=str(self.recipe_file),
            field=f"source[{self.source_index}].reference",
            value=value,
        )


def run_digest(files: RunFiles) -> tuple[str, dict[str, str], int]:
    """Digest over names and digests of a run's files; the digest per provenance name; bytes on disk.

    Names count relative to the run: a run that was moved or renamed keeps its digest.
    """
    each: dict[str, str] = {}
    inside: dict[str, str] = {}
    size = 0
    for path in files.files:
        digest = file_sha256(path)
        each[files.name(path)] = digest
        inside[path.relative_to(files.root).as_posix() if path.is_relative_to(files.root) else path.name] = digest
        size += path.stat().st_size
    return hashlib.sha256(canonical_json(inside)).hexdigest(), each, size


def fragment_key(job: Job, digest: str) -> str:
    """Name of a staged fragment: everything that its content depends on."""
    reader = READERS[job.source.format]
    references: dict[str, str] = {}
    if job.source.reference is not None:
        pattern = job.source.reference.replace("{problem}", "*")
        if not Path(pattern).is_absolute():
            references = {p.name: file_sha256(p) for p in sorted(job.recipe_directory.glob(pattern)) if p.is_file()}
    key = {
        "stage": STAGE_VERSION,
        "reader": [reader.name, reader.version],
        "search": job.search_id,
        "source": msgspec.to_builtins(job.source),
        "source_key": job.source_key,
        "excluded": job.excluded,
        "gpus": job.gpus,
        "roles": job.roles,
        "references": references,
        "input": digest,
    }
    return hashlib.sha256(canonical_json(key)).hexdigest()


def _split_pattern(path: str) -> tuple[Path, str]:
    """A glob as the directory above its first wildcard, and the rest of it."""
    parts = Path(path).parts
    fixed = next((i for i, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts))
    fixed = min(fixed, len(parts) - 1)
    return Path(*parts[:fixed]), "/".join(parts[fixed:])


def _run_name(path: Path, base: Path) -> str:
    """The part of a search id behind the builder's name."""
    relative = path.relative_to(base).as_posix() if path != base else path.name
    while relative.endswith(_LOG_ENDINGS):
        relative = relative.rsplit(".", 1)[0]
    return relative.removeprefix("logs/")


def _matches(loaded: LoadedRecipe, source: Source, index: int) -> Iterator[tuple[Path, Path, RemoteRun | None]]:
    """Matched paths of a source with the directory that their names are relative to; of a URL, what is behind it."""
    looked_for = re.sub(r"\{[^{}]+\}", "*", source.path)
    if "://" in source.path:
        from kernel_archive.archive.remote import remote_runs

        matched = remote_runs(loaded, msgspec.structs.replace(source, path=looked_for), index)
        runs = [(Path(place), Path(), run) for place, run in matched if Path(place).name not in _NOT_A_RUN]
        if not runs:
            raise _bad_path(loaded, source, index, "bad-source", "the address matches no file that the reader reads")
        yield from runs
        return
    base, pattern = loaded.directory, looked_for
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        base, pattern = _split_pattern(os.path.normpath(base / pattern))
    try:
        found = sorted(p for p in base.glob(pattern) if p.name not in _NOT_A_RUN)
    except (ValueError, IndexError, NotImplementedError, RecursionError, OSError) as error:
        reason = "too many levels" if isinstance(error, RecursionError) else printable(str(error))
        raise _bad_path(loaded, source, index, "bad-recipe", f"the path cannot be looked for: {reason}") from None
    if not found:
        raise _bad_path(loaded, source, index, "no-match", "the path matches no file or directory")
    for path in found:
        yield path, base, None


def _captured(source: Source, path: Path) -> Source:
    """The source of one match: ``{name}`` of its path stands for what is there, wherever else the recipe says ``{name}``.

    >>> from kernel_archive.archive.recipe import Source
    >>> source = Source(
    ...     path="runs/{gpu}/*.csv", format="measurements", role="archive", generation_method="x", gpu="{gpu}"
    ... )
    >>> _captured(source, Path("/data/runs/L40S/a.csv")).gpu
    'L40S'
    """
    names = names_in(source.path)
    if not names:
        return source
    steps = source.path.split("/")
    first = next(i for i, step in enumerate(steps) if re.search(r"[*?{\[]", step))
    parts = re.split(r"(\{[^{}]+\}|\*\*/?|\*|\?)", "/".join(steps[first:]))
    wild = {"**/": r"(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(
        f"(?P<{part[1:-1]}>[^/]+?)" if part[:1] == "{" else wild.get(part, re.escape(part)) for part in parts
    )
    match = re.search(rf"(?:^|/){pattern}$", path.as_posix())
    found = match.groupdict() if match is not None else {}

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"\{(\w+)\}", lambda name: found.get(name[1], name[0]), value)

    plain = msgspec.to_builtins(source)
    return msgspec.convert({**fill(plain), "path": source.path}, type(source))


def _bad_path(loaded: LoadedRecipe, source: Source, index: int, code: str, message: str) -> RecipeError:
    return RecipeError.of(
        code=code,
        message=message,
        file=str(loaded.file),
        field=f"source[{index}].path",
        value=source.path,
        fix="Paths are relative to the recipe; wildcards are *, ? and **",
    )


def jobs_of(recipes: list[LoadedRecipe]) -> list[Job]:
    """Every run of every recipe, sorted by search id.

    Raises:
        RecipeError: a path matches nothing, two runs share an id, or an ``[[exclude]]`` names no search.
    """
    jobs: dict[str, Job] = {}
    for loaded in recipes:
        recipe = loaded.recipe
        excluded: dict[str, dict[str, str]] = {}
        for entry in recipe.exclude:
            name = entry.search if entry.search.startswith(recipe.name + "/") else f"{recipe.name}/{entry.search}"
            excluded.setdefault(name, {})[entry.node] = entry.reason
        for index, source in enumerate(recipe.source):
            for path, base, remote in _matches(loaded, source, index):
                search_id = f"{recipe.name}/{_run_name(path, base)}"
                if search_id in jobs:
                    raise RecipeError.of(
                        code="duplicate-search",
                        message=f"two runs share the search id {search_id}: {jobs[search_id].path} and {path}",
                        file=str(loaded.file),
                        field=f"source[{index}].path",
                        value=source.path,
                        fix="Let each run match one source only; a search can't be held out and training at once"
                        if path == jobs[search_id].path
                        else "A run is named by its path below the first wildcard, or below the recipe: let one source match both, "
                        'such as path = "{p}/results", where they differ',
                    )
                jobs[search_id] = Job(
                    search_id=search_id,
                    builder=recipe.name,
                    source_index=index,
                    source=_captured(source, path),
                    path=path,
                    base=base,
                    remote=remote,
                    recipe_directory=loaded.directory,
                    gpus=tuple(recipe.gpu),
                    roles={str(role): names for role, names in recipe.eval.roles.items()} if recipe.eval else {},
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
