"""Build the measured tables of an archive, step by step.

A :class:`Build` reads the recipes, turns every run into a fragment, and merges, labels and writes
them. :mod:`kernel_archive.pipeline` goes on with splits and card. The caller holds the lock of the
target meanwhile.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from kernel_archive._version import DATA_VERSION, __version__
from kernel_archive.archive.consolidate import consolidate, label_rules
from kernel_archive.archive.fragment_store import open_store
from kernel_archive.archive.jobs import STAGE_VERSION, jobs_of
from kernel_archive.archive.manifest import (
    FORMAT,
    Manifest,
    present_manifest,
    shard_faults,
)
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
from kernel_archive.archive.recipe_files import write_launches
from kernel_archive.archive.shards import writer_version
from kernel_archive.archive.stage import StagedRun, stage_run
from kernel_archive.archive.swap import check_target, work_folder_of
from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.errors import (
    Finding,
    LogError,
    RecipeError,
    TargetExistsError,
    UsageError,
    printable,
)
from kernel_archive.executors import Call, iterate_results, open_executor
from kernel_archive.ids import CANARY, canonical_json, sha256_hex
from kernel_archive.problems import normalise_problem
from kernel_archive.splits import SPLIT_TABLES

#: An archive without a row of these holds nothing to use.
_WITH_PROGRAMS: Final = frozenset({"kernels", *SPLIT_TABLES})
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
    own: bool  # a user's archive, whose recipe says what its evaluation split asks about


class Build:
    """One build: what its options and recipes say, and its steps.

    Attributes:
        target: the archive directory.
        work_folder: the folder for everything unfinished.
        store: where fragments are, once runs are staged.
        runs: the runs as they were read, sorted by id.
        key: digest of everything that the archive depends on.
    """

    def __init__(self, options: BuildOptions, content_digest: str = "") -> None:
        """Read the recipes and list the runs, which raises what is wrong with any of them.

        ``content_digest`` is that of everything else that the archive depends on.
        """
        if options.name is not None and not re.match(ARCHIVE_NAME, options.name):
            raise UsageError(
                f"--name {printable(options.name)}: an archive is called owner/dataset, for "
                "example me/my-kernels"
            )
        recipes = load_recipes(options.builders)
        about: About = common_table(recipes, "archive") or About(name=DATASET_NAME)
        self.options = options
        self.name = options.name or about.name
        texts = msgspec.structs.asdict(about)
        self.about = {k: text for k, text in texts.items() if k != "name" and text is not None}
        self.eval_rules: EvaluationRules | None = common_table(recipes, "eval")
        if self.eval_rules is None and self.name != DATASET_NAME:
            self.eval_rules = EvaluationRules()
        self.version = options.version or ("" if options.builders else DATA_VERSION)
        self.target = Path(options.out or self.name)
        check_target(self.target)
        self.work_folder = work_folder_of(self.target)
        # What a recipe says is what its file says, also when its sources come from a local copy.
        self.builders = [recipe_facts(recipe) for recipe in recipes]
        self.rules = label_rules(recipes, options.scheme)
        if options.source is not None:
            recipes = [local_copy(recipe, options.source) for recipe in recipes]
        self.recipes = recipes
        self.run_jobs = sorted(jobs_of(recipes, self.work_folder), key=lambda job: -job.bytes)
        self.runs: list[StagedRun] = []
        self._n_staged = 0
        self._content_digest = content_digest

    def stage_runs(self, advance: Advance | None = None) -> None:
        """Read every run that was not read before; set ``store``, ``runs`` and ``key``."""
        self.store = open_store(self.options.stage or self.work_folder)
        self._read_runs(advance)
        _refuse_repeats(self.runs)
        for recipe in self.recipes if self.options.source is None else ():  # a copy may be a part
            _refuse_idle_patterns(recipe, {p for run in self.runs for p in run.problems})
        versions = [FORMAT, STAGE_VERSION, __version__, writer_version(), self.options.scheme]
        keys = sorted(run.key for run in self.runs)
        facts = [self.builders, self.version or None, self.name]
        self.key = sha256_hex(canonical_json([versions, self._content_digest, keys, *facts]))

    def _read_runs(self, advance: Advance | None) -> None:
        options = self.options
        calls = [
            Call(job.run_id, partial(stage_run, job, self.store, strict=options.strict))
            for job in self.run_jobs
        ]
        n_processes = options.jobs
        if options.engine == "local":
            is_small = sum(job.bytes for job in self.run_jobs) < PARALLEL_BYTES
            n_processes = 1 if is_small else min(options.jobs or os.cpu_count() or 1, len(calls))
        with open_executor(n_processes, engine=options.engine, scheduler=options.scheduler) as pool:
            for _, (run, was_read) in iterate_results(pool, calls):
                self.runs.append(run)
                self._n_staged += was_read
                if advance:
                    advance(len(self.runs), len(calls), run.facts.search_id)
        self.runs.sort(key=lambda run: run.facts.search_id)

    def unchanged_result(self) -> BuildResult | None:
        """Return the result when the target holds this very build already, whole, with splits."""
        present = present_manifest(self.target)
        if present is None or present.reports.get("build_key") != self.key:
            return None
        lacks_card = present.splits and not (self.target / "README.md").is_file()
        has_variants = any(split.name != "canonical" for split in present.splits.values())
        is_withheld = "withheld" in present.reports  # what withholding emptied comes back
        faults = shard_faults(self.target, present.shards())
        if lacks_card or has_variants or is_withheld or any(faults) or not has_programs(present):
            return None
        # Never refused as another release would be: it is the one that is there.
        return msgspec.structs.replace(self.result(present), unchanged=True)

    def write_tables(self, directory: Path) -> Manifest:
        """Merge, label and write what was staged; return the manifest, not written yet."""
        scratch = self.work_folder / f"merge.{os.getpid()}"
        tables, report = consolidate(
            self.runs, self.store, directory, rules=self.rules, scratch=scratch
        )
        log_counts = Counter[str]()
        for run in self.runs:
            log_counts.update(run.counts)
        findings = [finding for run in self.runs for finding in run.findings]
        manifest = Manifest(
            format=FORMAT,
            name=self.name,
            version=self.version,  # without a name it is called after its digest
            logical_digest="",  # known when it is written
            package=__version__,
            writer=writer_version(),
            bin_scheme=self.options.scheme,
            builders=self.builders,
            tables=tables,
            splits={},
            inputs=[run.facts for run in self.runs],
            findings={
                "total": sum(run.facts.findings for run in self.runs),
                "by_code": dict(sorted(Counter(finding.code for finding in findings).items())),
                "first": msgspec.to_builtins(findings[:FINDINGS_IN_MANIFEST]),
            },
            reports={
                **report,
                "log_counts": dict(sorted(log_counts.items())),
                "build_key": self.key,
            },
            canary=CANARY,
            about=self.about,
            eval_rules=msgspec.to_builtins(self.eval_rules),
        )
        return write_launches(directory, manifest, self.recipes)

    def result(self, new: Manifest) -> BuildResult:
        """Return the result before the archive takes its place; refuse to replace a release."""
        present = present_manifest(self.target)
        replaced = None
        # Splits made in another way do not make another release: they can be made again.
        if present is not None:
            same_name = present.version == new.version or not (present.released or new.released)
            if not same_name or present.measured_digest != new.measured_digest:
                replaced = present.version
        if present is not None and replaced and present.released and not self.options.replace:
            raise TargetExistsError(
                f"{self.target} holds release {present.version} ({present.logical_digest[:19]}…); "
                f"this build is {new.version} ({new.logical_digest[:19]}…). Choose another --out, "
                "or overwrite it with --replace"
            )
        pairs = new.splits.get("train_pairs")
        why = pairs.why_no_pairs() if pairs is not None and not pairs.rows else None
        why_no_pairs = {"train_pairs": why} if why else {}
        return BuildResult(
            path=str(self.target),
            version=new.version,
            logical_digest=new.logical_digest,
            unchanged=False,
            replaced=replaced,
            runs=len(new.inputs),
            staged=self._n_staged,
            rows={name: sum(facts.rows.values()) for name, facts in new.tables.items()},
            findings=new.findings["total"],
            shown=msgspec.convert(new.findings["first"], list[Finding]),
            not_made=new.reports.get("splits_not_made", {}) | why_no_pairs,
            own=new.eval_rules is not None,
        )


def has_programs(manifest: Manifest) -> bool:
    """Tell whether an archive has a kernel, or a row of a split."""
    tables = [facts for name, facts in manifest.tables.items() if name in _WITH_PROGRAMS]
    return any(sum(facts.rows.values()) for facts in tables)


def refuse_empty(manifest: Manifest) -> None:
    """Raise a LogError for an archive without programs, which could replace a good one.

    It has the first findings, and says what became of most rows.
    """
    if has_programs(manifest):
        return
    n_rows = sum(run.evaluations for run in manifest.inputs)
    log_counts = manifest.reports.get("log_counts", {})
    findings = msgspec.convert(manifest.findings["first"], list[Finding])
    counts = {f: log_counts.get(f"rows_{f.code.replace('-', '_')}", 0) for f in findings}
    most = max(counts, key=counts.__getitem__, default=None)
    why = f"none of {n_rows:,} evaluations is a success that counts"
    if most is not None and counts[most] > n_rows:
        why = f"{counts[most]:,} rows are left out. {most.render()}"
    message = f"no program with a speedup came out, so nothing is built: {why}"
    raise LogError(message, findings=findings)


def _refuse_idle_patterns(loaded: LoadedRecipe, problems: set[str]) -> None:
    """Refuse names and patterns of ``[eval]`` that fit no problem of any log."""
    rules = loaded.recipe.eval or EvaluationRules()
    named = [("eval.tasks", t, {t, normalise_problem(t), f"*.{t}"}) for t in rules.tasks or []]
    for role, patterns in rules.roles.items():
        named += [(f"eval.roles.{role}", pattern, {pattern}) for pattern in patterns]
    for field, name, fitting in named:
        if not any(fnmatch.fnmatchcase(problem, p) for p in fitting for problem in problems):
            shown = ", ".join(printable(problem, 60) for problem in sorted(problems)[:12])
            fix = f"The problems are: {shown or 'none'}" + (", ..." if len(problems) > 12 else "")
            raise loaded.error("idle-pattern", "it fits no problem", field, value=name, fix=fix)


def _refuse_repeats(runs: Sequence[StagedRun]) -> None:
    """Refuse a log that is matched twice, which could leak, and two searches of one name."""
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
