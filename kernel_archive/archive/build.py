"""Building an archive: stage every run, consolidate, write, finish, and rename into place."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kernel_archive._version import DATA_VERSION, __version__
from kernel_archive.archive.consolidate import consolidate
from kernel_archive.archive.jobs import STAGE_VERSION, Job, jobs_of
from kernel_archive.archive.labels import Rules
from kernel_archive.archive.manifest import (
    FORMAT,
    InputFacts,
    Manifest,
    present_manifest,
    read_manifest,
    shard_faults,
    write_manifest,
)
from kernel_archive.archive.readings import check_readings, readings_digest, unfit_programs
from kernel_archive.archive.recipe import (
    ARCHIVE_NAME,
    Evaluation,
    default_recipes,
    find_recipe,
    recipe_facts,
    stated_once,
    supersession,
    unique_names,
)
from kernel_archive.archive.shards import writer_version
from kernel_archive.archive.stage import StagedRun, stage_run
from kernel_archive.archive.store import Store
from kernel_archive.archive.swap import check_target, locked_stage, replaced_directory, stage_directory
from kernel_archive.archive.team import Call, Team, team
from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.errors import (
    Finding,
    RecipeError,
    TargetExistsError,
    UsageError,
    printable,
)
from kernel_archive.ids import CANARY, canonical_json, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernel_archive.archive.recipe import About, LoadedRecipe

#: Below this many bytes of logs a second process costs more than it brings.
PARALLEL_BYTES: Final = 24 * 1024 * 1024
#: Findings kept in full in the manifest; all are counted.
FINDINGS_IN_MANIFEST: Final = 200
DATASET_NAME: Final = "gpu-forecasters/kernels"


class Advance(Protocol):
    """Progress: done, total, what."""

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """So far."""


class BuildResult(msgspec.Struct, kw_only=True):
    """What a build did, and which archive stands at ``path`` now."""

    path: str
    version: str
    logical_digest: str
    unchanged: bool  # nothing had to be done
    replaced: str | None  # version that stood there before, if another
    runs: int
    staged: int  # runs that were read anew
    rows: dict[str, int]  # by table
    findings: int
    shown: list[Finding]  # the first ones
    not_made: dict[str, str]  # splits that the definitions could not make, and why
    own: bool  # an archive of one's own, which says itself what its evaluation split asks about


def _refuse_repeats(runs: Sequence[StagedRun]) -> None:
    """Refuse a log that is matched twice, and two runs that hold a search of one name.

    The same log twice would count every measurement twice; held out and training at once, it would leak. A file of several
    searches can hold one that is called like another run.
    """
    by_digest: dict[str, StagedRun] = {}
    by_search: dict[str, StagedRun] = {}
    for run in runs:
        other = by_digest.setdefault(run.digest, run)
        if other is not run and run.rows:
            roles = f" as {other.role} and as {run.role}" if other.role != run.role else ""
            raise RecipeError.of(
                code="same-run-twice",
                message=f"the same run is matched twice{roles}: {other.search_id} and {run.search_id}",
                field="source.path",
                fix="Let each run match one source of one recipe",
            )
        for row in run.searches:
            name = str(row["search_id"])
            other = by_search.setdefault(name, run)
            if other is not run:
                raise RecipeError.of(
                    code="same-search-twice",
                    message=f"two runs hold a search called {printable(name)}: {other.path} and {run.path}",
                    field="source.path",
                    fix="Rename one of the files, or let only one of them match",
                )


def _stage_all(
    jobs: Sequence[Job], store: Store, workers: Team, sizes: Mapping[str, int], *, strict: bool, advance: Advance | None
) -> tuple[list[StagedRun], int]:
    """What every run holds, in the order of the jobs, and how many runs were read anew."""
    largest_first = sorted(jobs, key=lambda job: -sizes[job.search_id])
    runs: dict[str, StagedRun] = {}
    anew = 0
    calls = [Call(job.search_id, partial(stage_run, job, store, strict=strict)) for job in largest_first]
    for _, (run, was_read) in workers.do(calls):
        runs[run.search_id] = run
        anew += was_read
        if advance:
            advance(len(runs), len(jobs), run.search_id)
    return [runs[job.search_id] for job in jobs], anew


def _name(asked: str | None, about: About | None) -> str:
    """The archive's name.

    Raises:
        UsageError: the name asked for is none.
    """
    if asked is not None and not re.match(ARCHIVE_NAME, asked):
        raise UsageError(f"--name {printable(asked)}: an archive is called owner/dataset, for example me/my-kernels")
    return asked or (DATASET_NAME if about is None else about.name)


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
        own=manifest.evaluation is not None,
    )


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
    out: str | Path | None = None,
    name: str | None = None,
    version: str | None = None,
    jobs: int | None = None,
    strict: bool = False,
    replace: bool = False,
    scheme: Scheme = DEFAULT_SCHEME,
    override: Callable[[LoadedRecipe], LoadedRecipe] | None = None,
    finish: Callable[[Path, Sequence[Path]], None] | None = None,
    finish_key: str = "",
    engine: str = "local",
    scheduler: str | None = None,
    stage: str | Path | None = None,
    advance: Advance | None = None,
    say: Callable[[str], None] | None = None,
) -> BuildResult:
    """Consolidate raw logs into an archive directory.

    What is not said here is as in :func:`kernel_archive.pipeline.build`. ``override`` changes recipes after they are read (sources
    taken from a local copy). ``finish`` is called with the new directory, before it is renamed into place, and with the staged
    published rows; ``finish_key`` is everything else that it depends on, so that an unchanged build is recognised.

    Raises:
        RecipeError: a recipe is at fault.
        LogError: a log is unreadable, or damaged and ``strict``.
        TargetExistsError: the target is not ours, or is another release.
    """
    recipes = [find_recipe(builder) for builder in builders] if builders else default_recipes()
    about: About | None = stated_once(recipes, "archive")
    stated = {} if about is None else msgspec.structs.asdict(about)
    evaluation: Evaluation | None = stated_once(recipes, "eval")
    called = _name(name, about)
    own = None if called == DATASET_NAME and evaluation is None else evaluation or Evaluation()
    target = Path(called if out is None else out)
    check_target(target)
    # What a recipe says is what its file says, also when its sources come from a local copy.
    facts = sorted(
        ({**recipe_facts(recipe), "readings": readings_digest(recipe)} for recipe in recipes),
        key=lambda recipe: str(recipe["name"]),
    )
    unfit = unfit_programs(recipes)
    supersedes = supersession(facts)
    if override is not None:
        recipes = [override(recipe) for recipe in recipes]
    unique_names(recipes)
    recipes.sort(key=lambda loaded: loaded.recipe.name)
    named = version or (None if builders else DATA_VERSION)
    hidden = stage_directory(target)
    store = Store(str(hidden) if stage is None else str(stage) if "://" in str(stage) else str(Path(stage).absolute()))
    with locked_stage(hidden), store.held() as check_held:
        listed = jobs_of(recipes)
        sizes = {job.search_id: job.bytes for job in listed}
        processes = jobs
        if engine == "local":
            processes = 1 if sum(sizes.values()) < PARALLEL_BYTES else min(jobs or os.cpu_count() or 1, len(listed))
        with team(processes, engine=engine, scheduler=scheduler) as workers:
            if say is not None and workers.link is not None:
                say(f"The work can be watched at {workers.link}")
            runs, anew = _stage_all(listed, store, workers, sizes, strict=strict, advance=advance)
            versions = [FORMAT, STAGE_VERSION, __version__, writer_version(), scheme, finish_key]
            build_key = sha256_hex(canonical_json([versions, sorted(run.key for run in runs), facts, named, called]))
            present = present_manifest(target)
            if present is not None and present.reports.get("build_key") == build_key and _whole(target, present):
                return _summary(target, present, unchanged=True, replaced=None, staged=anew)
            _refuse_repeats(runs)
            with replaced_directory(target) as new:
                unanimous = [str(recipe["name"]) for recipe in facts if recipe["unanimous"]]
                gpus = {gpu: known for loaded in recipes for gpu, known in loaded.recipe.gpu.items()}
                rules = Rules(scheme, supersedes, unanimous, unfit)
                tables, report = consolidate(runs, store, new, rules=rules, gpus=gpus, workers=workers)
                shards = [shard.path for split in tables["evaluations"].splits.values() for shard in split]
                check_readings(recipes, new, shards)
                manifest = Manifest(
                    format=FORMAT,
                    name=called,
                    version=named or "",  # without a name it is called after its digest
                    logical_digest="",  # found when it is written
                    package=__version__,
                    writer=writer_version(),
                    bin_scheme=scheme,
                    builders=facts,
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
                    findings=_findings(runs),
                    reports={**report, "log_counts": _log_counts(runs), "build_key": build_key},
                    canary=CANARY,
                    about={key: said for key, said in stated.items() if key != "name" and said is not None},
                    evaluation=None if own is None else msgspec.to_builtins(own),
                )
                manifest = write_manifest(new, manifest)
                if finish is not None:
                    with ExitStack() as stack:
                        finish(
                            new,
                            [stack.enter_context(store.reading(r.published_rows)) for r in runs if r.published_rows],
                        )
                    manifest = read_manifest(new)
                check_held()
                replaced = _replaces(target, present, manifest, allowed=replace)
    return _summary(target, manifest, unchanged=False, replaced=replaced, staged=anew)


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


def _findings(runs: Sequence[StagedRun]) -> dict[str, Any]:
    """Findings as the manifest has them: their number, those kept by code, and the first ones in full."""
    kept = [finding for run in runs for finding in run.findings]
    codes = Counter(finding.code for finding in kept)
    return {
        "total": sum(run.n_findings for run in runs),
        "by_code": dict(sorted(codes.items())),
        "first": [msgspec.to_builtins(finding) for finding in kept[:FINDINGS_IN_MANIFEST]],
    }


def _log_counts(runs: Sequence[StagedRun]) -> dict[str, int]:
    """Further counts of the formats, over all runs."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.counts)
    return dict(sorted(total.items()))
