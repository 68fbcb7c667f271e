"""Building an archive: stage every run, consolidate, write, finish, and rename into place."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kernel_archive._version import DATA_VERSION, __version__
from kernel_archive.archive.jobs import STAGE_VERSION, Job, jobs_of
from kernel_archive.archive.manifest import FORMAT, InputFacts, Manifest, read_manifest, shard_faults, write_manifest
from kernel_archive.archive.recipe import default_recipes, find_recipe, recipe_facts, supersession, unique_names
from kernel_archive.archive.shards import writer_version
from kernel_archive.archive.stage import StagedRun, read_staged, stage_run
from kernel_archive.archive.swap import check_target, locked, replaced_directory, stage_directory
from kernel_archive.archive.team import Team, team
from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.errors import (
    ArchiveMismatchError,
    ArchiveNotFoundError,
    Finding,
    KernelArchiveError,
    RecipeError,
    TargetExistsError,
    printable,
)
from kernel_archive.ids import CANARY, canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kernel_archive.archive.recipe import LoadedRecipe

__all__ = ["BuildResult", "build_archive"]

#: Below this many bytes of logs a second process costs more than it brings.
PARALLEL_BYTES: Final = 24 * 1024 * 1024
#: Findings kept in full in the manifest; all are counted.
FINDINGS_IN_MANIFEST: Final = 200
DATASET_NAME: Final = "gpu-forecasters/kernels"


class Advance(Protocol):
    """Progress: done, total, what."""

    def __call__(self, done: int, total: int, what: str = "") -> None: ...


class BuildResult(msgspec.Struct, kw_only=True):
    """What a build did.

    Attributes:
        path: the archive directory.
        version: its version.
        logical_digest: its digest.
        unchanged: nothing had to be done.
        replaced: version that stood there before, if another.
        runs: runs in all.
        staged: runs read anew.
        rows: rows per table.
        findings: all findings of the logs.
        shown: the first ones.
        not_made: splits that the definitions could not make, and why.
    """

    path: str
    version: str
    logical_digest: str
    unchanged: bool
    replaced: str | None
    runs: int
    staged: int
    rows: dict[str, int]
    findings: int
    shown: list[Finding]
    not_made: dict[str, str]


def _refuse_repeated_inputs(runs: Iterable[StagedRun]) -> None:
    """The same log twice would count every measurement twice; held out and training at once, it would leak."""
    seen: dict[str, StagedRun] = {}
    for run in runs:
        other = seen.setdefault(run.digest, run)
        if other is not run and run.rows:
            roles = f" as {other.role} and as {run.role}" if other.role != run.role else ""
            finding = Finding(
                code="same-run-twice",
                message=f"the same run is matched twice{roles}: {other.search_id} and {run.search_id}",
                field="source.path",
                fix="Let each run match one source of one recipe",
            )
            raise RecipeError(finding.render(), findings=[finding])


def _sizes(jobs: Sequence[Job]) -> dict[str, int]:
    """Bytes that each run's reader may read, by search id."""
    return {job.search_id: sum(path.stat().st_size for path in job.run_files().files) for job in jobs}


def _processes(sizes: Mapping[str, int], most: int) -> int:
    """How many processes read: one where more would cost more than they bring."""
    return 1 if sum(sizes.values()) < PARALLEL_BYTES else max(1, min(most, len(sizes)))


def _stage_all(
    jobs: Sequence[Job],
    sizes: Mapping[str, int],
    stage: Path,
    *,
    strict: bool,
    workers: Team,
    advance: Advance | None,
) -> tuple[list[str], int]:
    """Fragment names in the order of the jobs, and how many were made anew."""
    before = {p.stem for p in stage.glob("*.parquet")}
    largest_first = sorted(jobs, key=lambda job: -sizes[job.search_id])
    keys: dict[str, str] = {}
    for i, key in workers.do([partial(stage_run, job, stage, strict=strict) for job in largest_first]):
        keys[largest_first[i].search_id] = key
        if advance:
            advance(len(keys), len(jobs), largest_first[i].search_id)
    return [keys[job.search_id] for job in jobs], len(set(keys.values()) - before)


def _summary(directory: Path, manifest: Manifest, *, unchanged: bool, replaced: str | None, staged: int) -> BuildResult:
    shown = [msgspec.convert(f, Finding) for f in manifest.findings["first"]]
    return BuildResult(
        path=str(directory),
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        unchanged=unchanged,
        replaced=replaced,
        runs=len(manifest.inputs),
        staged=staged,
        rows={name: sum(facts.rows.values()) for name, facts in manifest.tables.items()},
        findings=manifest.findings["total"],
        shown=shown,
        not_made={str(k): str(v) for k, v in manifest.reports.get("splits_not_made", {}).items()},
    )


def _present(out: Path) -> Manifest | None:
    try:
        return read_manifest(out)
    except (ArchiveNotFoundError, ArchiveMismatchError):
        return None  # a manifest that can't be read protects nothing: the archive is built again


def _whole(out: Path, manifest: Manifest) -> bool:
    """Whether every file that the manifest names is there with its bytes, the card too, and no split is a variant."""
    if manifest.splits and not (out / "README.md").is_file():
        return False
    if any(split.name != "canonical" for split in manifest.splits.values()):
        return False
    return not any(shard_faults(out, manifest.shards()))


def build_archive(
    builders: Sequence[str] = (),
    *,
    out: str | Path = DATASET_NAME,
    version: str | None = None,
    jobs: int | None = None,
    strict: bool = False,
    replace: bool = False,
    scheme: Scheme = DEFAULT_SCHEME,
    override: Callable[[LoadedRecipe], LoadedRecipe] | None = None,
    finish: Callable[[Path, Sequence[Path]], None] | None = None,
    finish_key: str = "",
    advance: Advance | None = None,
) -> BuildResult:
    """Consolidate raw logs into an archive directory.

    Args:
        builders: names of shipped builders or paths of recipes; the shipped default ones when empty.
        out: the archive directory.
        version: name of a release; the shipped data's own, or the first 12 digits of the digest, when not given.
        jobs: processes that read logs; one per core when not given.
        strict: a damaged log line ends the build.
        replace: allow another release to be overwritten.
        scheme: bin scheme of the labels.
        override: changes recipes after they are read (sources taken from a local copy).
        finish: called with the new directory, before it is renamed into place, and the staged published rows.
        finish_key: everything else that ``finish`` depends on, so that an unchanged build is recognised.
        advance: progress.

    Raises:
        RecipeError: a recipe is at fault.
        LogError: a log is unreadable, or damaged and ``strict``.
        TargetExistsError: the target is not ours, or is another release.
    """
    target = Path(out)
    check_target(target)
    recipes = [find_recipe(name) for name in builders] if builders else default_recipes()
    # What a recipe says is what its file says, also when its sources come from a local copy.
    facts = sorted((recipe_facts(recipe) for recipe in recipes), key=lambda recipe: str(recipe["name"]))
    supersedes = supersession(facts)
    shipped = not builders
    if override is not None:
        recipes = [override(recipe) for recipe in recipes]
    unique_names(recipes)
    recipes.sort(key=lambda loaded: loaded.recipe.name)
    stage = stage_directory(target)
    with locked(stage):
        listed = jobs_of(recipes, stage / "downloads")
        unknown_versions = hashlib.sha256(
            canonical_json([FORMAT, STAGE_VERSION, __version__, writer_version(), scheme, finish_key])
        ).hexdigest()
        named = version or (DATA_VERSION if shipped else None)
        sizes = _sizes(listed)
        with team(_processes(sizes, jobs or os.cpu_count() or 1)) as workers:
            keys, staged = _stage_all(listed, sizes, stage, strict=strict, workers=workers, advance=advance)
            build_key = hashlib.sha256(canonical_json([unknown_versions, sorted(keys), facts, named])).hexdigest()
            present = _present(target)
            if present is not None and present.reports.get("build_key") == build_key and _whole(target, present):
                return _summary(target, present, unchanged=True, replaced=None, staged=staged)
            paths = [stage / f"{key}.parquet" for key in keys]
            runs = [read_staged(path) for path in paths]
            _refuse_repeated_inputs(runs)
            with replaced_directory(target) as new:
                manifest = _write(
                    new, runs, paths, facts, scheme, named, build_key, stage / "spill", supersedes, workers
                )
                published = [
                    p for p in (path.with_name(f"{path.stem}.published.parquet") for path in paths) if p.is_file()
                ]
                if finish is not None:
                    finish(new, published)
                    manifest = read_manifest(new)
                replaced = _replaces(target, present, manifest, allowed=replace)
    return _summary(target, manifest, unchanged=False, replaced=replaced, staged=staged)


def _replaces(target: Path, present: Manifest | None, new: Manifest, *, allowed: bool) -> str | None:
    """The version that would be replaced, if another; a release is only replaced when asked."""
    if present is None:
        return None
    # Splits made in another way do not make another release: they can be made again.
    same_name = present.version == new.version or not (present.released or new.released)
    if same_name and present.measured_digest == new.measured_digest:
        return None
    if present.released and not allowed:
        raise TargetExistsError(
            f"{target} holds release {present.version} ({present.logical_digest[:19]}…); this build is {new.version} "
            f"({new.logical_digest[:19]}…). Choose another --out, or overwrite it with --replace"
        )
    return present.version


def _fragments(runs: Sequence[StagedRun], paths: Sequence[Path]) -> dict[str, Path]:
    """The fragment of every search. A file of several searches can hold one that is called like another run."""
    found: dict[str, tuple[Path, StagedRun]] = {}
    for run, path in zip(runs, paths, strict=True):
        for row in run.searches:
            _, other = found.setdefault(str(row["search_id"]), (path, run))
            if other is not run:
                finding = Finding(
                    code="same-search-twice",
                    message=f"two runs hold a search called {printable(str(row['search_id']))}: {other.path} and {run.path}",
                    field="source.path",
                    fix="Rename one of the files, or let only one of them match",
                )
                raise RecipeError(finding.render(), findings=[finding])
    return {name: path for name, (path, _) in found.items()}


def _write(
    directory: Path,
    runs: list[StagedRun],
    paths: list[Path],
    recipes: list[dict[str, Any]],
    scheme: Scheme,
    version: str | None,
    build_key: str,
    scratch: Path,
    supersedes: Sequence[tuple[str, str]],
    workers: Team,
) -> Manifest:
    """Tables and manifest of the measured part."""
    import duckdb

    from kernel_archive.archive.consolidate import consolidate

    fragments = _fragments(runs, paths)
    try:
        tables, report = consolidate(
            runs,
            fragments,
            directory,
            scheme=scheme,
            scratch=scratch,
            supersedes=supersedes,
            unanimous=[str(recipe["name"]) for recipe in recipes if recipe["unanimous"]],
            workers=workers,
        )
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error
    findings = [finding for run in runs for finding in run.findings]
    codes: dict[str, int] = {}
    for finding in findings:
        codes[finding.code] = codes.get(finding.code, 0) + 1
    counts: dict[str, int] = {}
    for run in runs:
        for name, count in run.counts.items():
            counts[name] = counts.get(name, 0) + count
    manifest = Manifest(
        format=FORMAT,
        name=DATASET_NAME,
        version=version or "",  # without a name it is called after its digest, which is known when it is written
        logical_digest="",
        package=__version__,
        writer=writer_version(),
        bin_scheme=scheme,
        builders=recipes,
        tables=tables,
        splits={},
        inputs=[
            InputFacts(
                search_id=run.search_id,
                builder=run.builder,
                path=run.path,
                digest=f"sha256:{run.digest}",
                bytes=run.bytes,
                evaluations=run.rows,
                findings=run.n_findings,
            )
            for run in runs
        ],
        findings={
            "total": sum(run.n_findings for run in runs),
            "by_code": dict(sorted(codes.items())),
            "first": [msgspec.to_builtins(f) for f in findings[:FINDINGS_IN_MANIFEST]],
        },
        reports={**report, "log_counts": dict(sorted(counts.items())), "build_key": build_key},
        canary=CANARY,
    )
    return write_manifest(directory, manifest)
