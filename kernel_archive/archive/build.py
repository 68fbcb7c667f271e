"""Build the measured tables of an archive, step by step.

:func:`plan_build` reads the recipes, :func:`stage_runs` turns every run into a fragment,
:func:`build_tables` merges, labels and writes them. :mod:`kernel_archive.pipeline` goes on with
splits and card. The caller holds the lock of the target meanwhile.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from kernel_archive._version import DATA_VERSION, __version__
from kernel_archive.archive.consolidate import consolidate
from kernel_archive.archive.jobs import STAGE_VERSION, RunJob, jobs_of
from kernel_archive.archive.labels import LabelRules, supersession
from kernel_archive.archive.launches import write_launches
from kernel_archive.archive.manifest import (
    FORMAT,
    Manifest,
    present_manifest,
    shard_faults,
    write_manifest,
)
from kernel_archive.archive.readings import reading_table
from kernel_archive.archive.recipe import (
    ARCHIVE_NAME,
    About,
    EvaluationRules,
    LoadedRecipe,
    common_table,
    load_recipes,
    local_copy,
    recipe_facts,
)
from kernel_archive.archive.shards import writer_version
from kernel_archive.archive.stage import StagedRun, stage_run
from kernel_archive.archive.store import Store, open_store
from kernel_archive.archive.swap import (
    check_target,
    locked_stage,
    replaced_directory,
    stage_directory,
)
from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.errors import Finding, RecipeError, TargetExistsError, UsageError, printable
from kernel_archive.executors import Call, iterate_results, open_executor
from kernel_archive.ids import CANARY, canonical_json, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Below this many bytes of logs a second process costs more than it brings.
PARALLEL_BYTES: Final = 24 * 1024 * 1024
#: Findings kept in full in the manifest; all are counted.
FINDINGS_IN_MANIFEST: Final = 200
DATASET_NAME: Final = "gpu-forecasters/kernels"


#: Shows progress: done, total, what.
Advance: TypeAlias = "Callable[[int, int, str], None]"


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user can say of a build."""

    builders: Sequence[str] = ()  # shipped ones or paths of builder.toml; without, the default ones
    out: str | Path | None = None  # the archive directory; without, the archive's name
    name: str | None = None  # of the archive, owner/dataset; without, that of the recipe
    version: str | None = None  # name of a release
    jobs: int | None = None  # processes; without, one per core
    strict: bool = False  # a damaged log line ends the build
    replace: bool = False  # another release may be overwritten
    scheme: Scheme = DEFAULT_SCHEME  # bins of the labels
    source: str | Path | None = None  # a local copy of what a recipe reads from the Hub
    engine: str = "local"  # "local", processes of this machine, or "dask": the archive is the same
    scheduler: str | None = None  # address of a Dask scheduler; without, a cluster on this machine
    #: Where fragments lie, a directory or URL that all workers see; without, beside ``out``.
    stage: str | Path | None = None


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
    not_made: dict[str, str]  # splits that the kernels don't allow, and why
    own: bool  # an archive of one's own, which says itself what its evaluation split asks about


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A build as its options and recipes say."""

    options: BuildOptions
    target: Path
    recipes: list[LoadedRecipe]  # sorted by name
    facts: list[dict[str, Any]]  # of the recipes, for the manifest
    name: str
    version: str | None
    about: dict[str, str]
    evaluation: EvaluationRules | None  # of an archive of one's own
    rules: LabelRules
    content: str  # digest of everything else that the archive depends on: definitions, templates
    jobs: list[RunJob]  # the runs to read, the largest first

    @property
    def hidden(self) -> Path:
        """The folder for everything unfinished."""
        return stage_directory(self.target)

    @property
    def store(self) -> Store:
        """Where fragments are."""
        return open_store(self.options.stage or self.hidden)


class Staging(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a build as they were read."""

    runs: list[StagedRun]  # sorted by search id
    anew: int  # how many of them were read now
    key: str  # digest of everything that the archive depends on


def plan_build(options: BuildOptions, content: str = "") -> BuildPlan:
    """Read the recipes of a build, and list its runs.

    Raises:
        RecipeError: a recipe is at fault, or a path matches nothing.
        TargetExistsError: the target is not ours.
        UsageError: the name is none.
    """
    if options.name is not None and not re.match(ARCHIVE_NAME, options.name):
        raise UsageError(
            f"--name {printable(options.name)}: an archive is called owner/dataset, for example "
            "me/my-kernels"
        )
    recipes = load_recipes(options.builders)
    about: About = common_table(recipes, "archive") or About(name=DATASET_NAME)
    evaluation: EvaluationRules | None = common_table(recipes, "eval")
    name = options.name or about.name
    if evaluation is None and name != DATASET_NAME:
        evaluation = EvaluationRules()
    target = Path(options.out or name)
    check_target(target)
    # What a recipe says is what its file says, also when its sources come from a local copy.
    facts = [recipe_facts(recipe) for recipe in recipes]
    unanimous = [str(recipe["name"]) for recipe in facts if recipe["unanimous"]]
    rules = LabelRules(options.scheme, supersession(facts), unanimous, reading_table(recipes))
    if options.source is not None:
        recipes = [local_copy(recipe, options.source) for recipe in recipes]
    texts = {key: getattr(about, key) for key in ("title", "description", "citation")}
    return BuildPlan(
        options=options,
        target=target,
        recipes=recipes,
        facts=facts,
        name=name,
        version=options.version or (None if options.builders else DATA_VERSION),
        about={key: text for key, text in texts.items() if text is not None},
        evaluation=evaluation,
        rules=rules,
        content=content,
        jobs=sorted(jobs_of(recipes, stage_directory(target)), key=lambda job: -job.bytes),
    )


def stage_runs(plan: BuildPlan, advance: Advance | None = None) -> Staging:
    """Read every run that was not read before."""
    options, store = plan.options, plan.store
    calls = [
        Call(job.search_id, partial(stage_run, job, store, strict=options.strict))
        for job in plan.jobs
    ]
    jobs = options.jobs
    if options.engine == "local":
        most = min(jobs or os.cpu_count() or 1, len(calls))
        jobs = 1 if sum(job.bytes for job in plan.jobs) < PARALLEL_BYTES else most
    runs: list[StagedRun] = []
    anew = 0
    with open_executor(jobs, engine=options.engine, scheduler=options.scheduler) as executor:
        for _, (run, was_read) in iterate_results(executor, calls):
            runs.append(run)
            anew += was_read
            if advance:
                advance(len(runs), len(calls), run.facts.search_id)
    runs.sort(key=lambda run: run.facts.search_id)
    _refuse_repeats(runs)
    versions = [FORMAT, STAGE_VERSION, __version__, writer_version(), options.scheme]
    keys = sorted(run.key for run in runs)
    depends_on = [versions, plan.content, keys, plan.facts, plan.version, plan.name]
    return Staging(runs=runs, anew=anew, key=sha256_hex(canonical_json(depends_on)))


def _refuse_repeats(runs: Sequence[StagedRun]) -> None:
    """Refuse a log that is matched twice, and two runs that hold a search of one name.

    The same log twice would count every measurement twice; held out and training at once, it would
    leak.
    """
    seen: dict[str, StagedRun] = {}
    for run in runs:
        once = [str(row["search_id"]) for row in run.searches]
        if run.facts.evaluations:
            once.append(run.facts.digest)
        for name in once:
            other = seen.setdefault(name, run)
            if other is not run:
                names = f"{other.facts.search_id}, {run.facts.search_id}"
                roles = f"as {other.role} and as {run.role}"
                message = f"the same run is matched twice, {roles}: {names}"
                fix = "Let each run match one source of one recipe, or rename one of the files"
                field = "source.path"
                raise RecipeError.of(code="same-run-twice", message=message, field=field, fix=fix)


def unchanged(plan: BuildPlan, staging: Staging) -> BuildResult | None:
    """Return the result when the target holds this very build already, whole, with its splits."""
    present = present_manifest(plan.target)
    if present is None or present.reports.get("build_key") != staging.key:
        return None
    no_card = present.splits and not (plan.target / "README.md").is_file()
    variants = any(split.name != "canonical" for split in present.splits.values())
    if no_card or variants or any(shard_faults(plan.target, present.shards())):
        return None
    result = finished(plan, staging, present)
    result.unchanged = True
    return result


def build_tables(plan: BuildPlan, staging: Staging, directory: Path) -> Manifest:
    """Merge, label and write what was staged; return the manifest, not written yet, without splits.

    Raises:
        RecipeError: a line beside a recipe is at fault.
        KernelArchiveError: the merge takes more memory or disk than there is.
    """
    runs = staging.runs
    tables, report = consolidate(
        runs,
        plan.store,
        directory,
        rules=plan.rules,
        gpus={gpu: facts for loaded in plan.recipes for gpu, facts in loaded.recipe.gpu.items()},
        scratch=plan.hidden / f"merge.{os.getpid()}",
    )
    log_counts = Counter[str]()
    for run in runs:
        log_counts.update(run.counts)
    findings = [finding for run in runs for finding in run.findings]
    manifest = Manifest(
        format=FORMAT,
        name=plan.name,
        version=plan.version or "",  # without a name it is called after its digest
        logical_digest="",  # known when it is written
        package=__version__,
        writer=writer_version(),
        bin_scheme=plan.options.scheme,
        builders=plan.facts,
        tables=tables,
        splits={},
        inputs=[run.facts for run in runs],
        findings={
            "total": sum(run.facts.findings for run in runs),
            "by_code": dict(sorted(Counter(finding.code for finding in findings).items())),
            "first": msgspec.to_builtins(findings[:FINDINGS_IN_MANIFEST]),
        },
        reports={
            **report,
            "log_counts": dict(sorted(log_counts.items())),
            "build_key": staging.key,
        },
        canary=CANARY,
        about=plan.about,
        evaluation=None if plan.evaluation is None else msgspec.to_builtins(plan.evaluation),
    )
    return write_launches(directory, manifest, plan.recipes)


def finished(plan: BuildPlan, staging: Staging, new: Manifest) -> BuildResult:
    """Return the result of a build, before the new archive takes its place.

    Raises:
        TargetExistsError: another release would be replaced, and ``replace`` is not given.
    """
    present = present_manifest(plan.target)
    replaced = None
    # Splits made in another way do not make another release: they can be made again.
    if present is not None:
        same_name = present.version == new.version or not (present.released or new.released)
        if not same_name or present.measured_digest != new.measured_digest:
            replaced = present.version
    if present is not None and replaced and present.released and not plan.options.replace:
        raise TargetExistsError(
            f"{plan.target} holds release {present.version} ({present.logical_digest[:19]}…); "
            f"this build is {new.version} ({new.logical_digest[:19]}…). Choose another --out, or "
            "overwrite it with --replace"
        )
    return BuildResult(
        path=str(plan.target),
        version=new.version,
        logical_digest=new.logical_digest,
        unchanged=False,
        replaced=replaced,
        runs=len(new.inputs),
        staged=staging.anew,
        rows={name: sum(facts.rows.values()) for name, facts in new.tables.items()},
        findings=new.findings["total"],
        shown=msgspec.convert(new.findings["first"], list[Finding]),
        not_made=new.reports.get("splits_not_made", {}),
        own=new.evaluation is not None,
    )


def build_archive(
    builders: Sequence[str] = (), *, advance: Advance | None = None, **options: Any
) -> BuildResult:
    """Build an archive of the measured tables alone, without splits and card.

    ``options`` are those of :class:`BuildOptions`; errors are those of the steps.
    """
    plan = plan_build(BuildOptions(builders=builders, **options))
    with locked_stage(plan.hidden):
        staging = stage_runs(plan, advance)
        if result := unchanged(plan, staging):
            return result
        with replaced_directory(plan.target) as new:
            manifest = write_manifest(new, build_tables(plan, staging, new))
            return finished(plan, staging, manifest)
