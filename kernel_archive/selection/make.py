"""Making the splits of an archive directory: decide, prove that nothing leaks, write, and note it in the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import shard_faults, write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.schema import TABLES
from kernel_archive.selection.definitions import (
    DiscoveryDefinition,
    EvalDefinition,
    TrainDefinition,
    canonical_definition,
    load_definition,
    with_changes,
)
from kernel_archive.selection.discovery import select_discovery
from kernel_archive.selection.evaluation import AmbiguousGpuError, select_eval
from kernel_archive.selection.leakage import compared_programs, leakage_findings, present_members, refuse_leakage
from kernel_archive.selection.published import published_rows, published_split, relabelled
from kernel_archive.selection.selected import CANONICAL, with_inputs
from kernel_archive.selection.similarity import similarity_report
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.training import held_out_programs, select_train
from kernel_archive.splits import SPLIT_TABLES, split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from kernel_archive.archive.manifest import Manifest, SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.archive.team import Team
    from kernel_archive.bins import Scheme
    from kernel_archive.errors import Finding
    from kernel_archive.selection.definitions import Definition
    from kernel_archive.selection.selected import Selection
    from kernel_archive.splits import Split


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How splits are made, where it is not the canonical way.

    Attributes:
        definitions: table -> definition of its split; the canonical one where there is none.
        gpu: the GPU of evaluation splits, when their definition's rule should not choose.
    """

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    gpu: str | None = None

    @classmethod
    def changed(
        cls,
        table: str = "eval",
        *,
        archive: Archive | None = None,
        definition: str | Path | None = None,
        gpu: str | None = None,
        **changes: Any,
    ) -> Rules:
        """Rules with one definition changed in some fields: one from a file, else the archive's canonical one.

        ``None`` leaves a field as it is; without an archive the shipped definition is changed.

        Raises:
            RecipeError: the definition is at fault.
        """
        rule = (
            canonical_definition(split_of(table), ArchiveTables(archive))
            if definition is None and archive is not None
            else load_definition(table, definition)
        )
        return cls(definitions={table: with_changes(rule, **changes)}, gpu=gpu)


class Made(msgspec.Struct, kw_only=True):
    """What was done.

    Attributes:
        facts: facts per split's table that the archive has now.
        changed: tables that were written.
        kept: published tables that were left as they are.
        skipped: table -> why it was not made.
        leakage: the manifest's report: findings that are warnings, and similarity.
    """

    facts: dict[str, SplitFacts]
    changed: list[str] = []
    kept: list[str] = []
    skipped: dict[str, str] = {}
    leakage: dict[str, Any] = {}


def select_split(split: Split, tables: ArchiveTables, rules: Rules, members: Mapping[str, pa.Table]) -> Selection:
    """Select one split of an archive.

    ``members`` are rows of the other splits by table, which training pairs must not touch.

    Raises:
        AmbiguousGpuError: the GPU of an evaluation split must be named.
        UsageError: there is nothing on the GPU that was named.
    """
    rule = rules.definitions.get(split.table) or canonical_definition(split, tables)
    match rule:
        case EvalDefinition():
            return select_eval(split, tables, rule, gpu=rules.gpu)
        case DiscoveryDefinition():
            return select_discovery(split, tables, rule)
        case TrainDefinition():
            return select_train(split, tables, rule, held_out=held_out_programs(tables, members))
    raise UsageError(f"no rule selects by a {type(rule).__name__}")


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Everything that is decided before anything is written: splits by table, why others are not made, leaks to warn of."""

    tables: ArchiveTables
    names: Sequence[str]
    selections: dict[str, Selection]
    skipped: dict[str, str]
    warnings: list[Finding]


def _planned(
    archive: Archive,
    names: Sequence[str],
    rules: Rules | None,
    *,
    skip_ambiguous: bool = False,
    scheme: Scheme | None = None,
    workers: Team | None = None,
) -> _Plan:
    """Select, and refuse leaks; arguments as those of :func:`make_splits` and :func:`remake_splits`."""
    tables = ArchiveTables(archive, workers)
    if names:
        tables.texts  # noqa: B018 - begins to read them, while rows are chosen
    manifest = archive.manifest
    members = present_members(tables, [n for n in SPLIT_TABLES if n not in names])
    made: dict[str, Selection] = {}
    skipped: dict[str, str] = {}
    for name in (n for n in SPLIT_TABLES if n in names):
        split, facts = SPLIT_TABLES[name], manifest.splits.get(name)
        try:
            if scheme is not None and facts is not None and facts.origin == "published":
                selection = relabelled(split, archive.arrow(name), scheme, facts)
            else:
                selection = select_split(split, tables, rules or Rules(), members)
                if name in manifest.reports.get("published_splits", {}):
                    # Others published this split of this archive: what is selected here is not the canonical one.
                    variant = name if selection.variant == CANONICAL else selection.variant
                    selection = replace(selection, variant=f"{variant}-reselected")
        except AmbiguousGpuError as error:
            if not skip_ambiguous:
                raise
            skipped[name] = str(error)
            continue
        made[name], members[name] = selection, selection.members
    warnings = refuse_leakage(leakage_findings(tables, members, made))
    return _Plan(tables=tables, names=names, selections=made, skipped=skipped, warnings=warnings)


def _carry_out(plan: _Plan, directory: Path) -> Made:
    """Write what was planned, the similarity report beside it, and the manifest last."""
    manifest = plan.tables.archive.manifest
    compared = compared_programs(plan.tables, plan.selections).values()
    rows = list({program.name: program for programs in compared for program in programs}.values())
    similarity = similarity_report(rows, plan.tables.neighbours.of(rows))
    stored = _written(directory, manifest, plan.selections.values())
    leakage = {"warnings": [msgspec.to_builtins(f) for f in plan.warnings], "similarity": similarity}
    # What was not asked for this time is still missing for the reason that was found then.
    before = manifest.reports.get("splits_not_made", {})
    missing = {**{n: why for n, why in before.items() if n not in plan.names}, **plan.skipped}
    reports = {**manifest.reports, "leakage": leakage, "splits_not_made": missing}
    write_manifest(directory, msgspec.structs.replace(with_inputs(directory, stored), reports=reports))
    return Made(facts=dict(stored.splits), changed=list(plan.selections), skipped=plan.skipped, leakage=leakage)


def _written(directory: Path, manifest: Manifest, selections: Iterable[Selection]) -> Manifest:
    """The manifest with these splits in place of those that it names, once their files are written."""
    tables, splits = dict(manifest.tables), dict(manifest.splits)
    for selection in selections:
        name = selection.split.table
        metadata = {"bin_scheme": selection.scheme, "split": selection.variant}
        (split,) = TABLES[name].splits
        tables[name] = write_table(directory, name, {split: selection.parts()}, metadata=metadata)
        selection.digest = tables[name].logical_digest
        splits[name] = selection.facts
    return msgspec.structs.replace(
        manifest,
        tables={name: tables[name] for name in TABLES if name in tables},
        splits={name: splits[name] for name in SPLIT_TABLES if name in splits},
    )


def make_splits(
    directory: str | Path,
    names: Sequence[str] = tuple(SPLIT_TABLES),
    *,
    rules: Rules | None = None,
    workers: Team | None = None,
) -> Made:
    """Make derived tables of an archive directory that nobody else reads yet (a build's, before it is renamed).

    Nothing is written when the splits would leak. Where held-out kernels exist on several GPUs and none is the canonical one,
    an evaluation split is left out, with the reason in the manifest. ``workers`` look at the parts of a large archive.

    Raises:
        LeakageError: training would hold something of the evaluation; the rows are named.
        UsageError: there is nothing on the GPU that was named.
    """
    archive = open_archive(directory)
    plan = _planned(archive, names, rules, skip_ambiguous=True, workers=workers)
    return _carry_out(plan, Path(directory))


def remake_splits(
    directory: str | Path,
    names: Sequence[str],
    *,
    rules: Rules | None = None,
    reselect: bool = False,
    scheme: Scheme | None = None,
    finish: Callable[[Path], object] | None = None,
) -> Made:
    """Make derived tables of an existing archive anew; readers see the old archive or the new one, never half of it.

    A split that others published is left as it is unless ``reselect`` is given; with ``scheme`` its labels alone are
    made anew, which makes it a variant. What would come out as it is already is not written, unless its files are not
    those that the manifest names.

    ``finish`` is called with the new directory before it takes its place (the card).

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the files of a published split are not those that the manifest names.
        KernelArchiveError: another process is at work on the archive.
        LeakageError: training would hold something of the evaluation; the rows are named.
        UsageError: there is nothing on the GPU that was named, or several GPUs and none was.
    """
    place = Path(directory)
    # Before the lock, whose folder would otherwise be made beside an archive that is not there.
    open_archive(place)
    with locked_stage(stage_directory(place)):
        # Read again: another process may have replaced the archive just before the lock was free.
        archive = open_archive(place)
        splits = archive.manifest.splits
        published = [] if reselect else [n for n in names if n in splits and splits[n].origin == "published"]
        damaged = {n: list(shard_faults(place, archive.manifest.shards(n))) for n in names}
        if faults := [fault for n in published for fault in damaged[n]]:
            # A published split can't be selected again: where its files were changed, only its source has it.
            raise ArchiveMismatchError.from_findings(faults)
        kept = [n for n in published if scheme is None or splits[n].scheme == scheme]
        chosen = [n for n in names if n not in kept]
        if chosen:
            plan = _planned(archive, chosen, rules, skip_ambiguous=False, scheme=None if reselect else scheme)
            if any(
                splits.get(n) != s.facts or n not in archive.manifest.tables or damaged[n]
                for n, s in plan.selections.items()
            ):
                with replaced_directory(place, copy=True) as new:
                    made = _carry_out(plan, new)
                    if finish is not None:
                        finish(new)
                made.kept = kept
                return made
        return Made(facts=dict(splits), kept=kept, leakage=archive.manifest.reports.get("leakage", {}))


def store_published(directory: str | Path, staged: Sequence[Path]) -> list[str]:
    """Write the splits that others published into an archive directory that nobody else reads yet.

    Each file's rows keep their order, files come as given.

    Returns:
        Names of the tables that were written.

    Raises:
        DataError: a row id stands twice, a speedup is not finite and above 0, or a label is not 1 to 8.
    """
    rows = [row for path in staged for row in sorted(published_rows(pq.read_table(path)), key=lambda r: r.order)]
    published = [split for name, split in SPLIT_TABLES.items() if any(row.split == name for row in rows)]
    if not published:
        return []
    archive = open_archive(directory)
    kernels = archive.arrow("kernels", columns=["problem", "gpu", "program_id", "kernel_id"])
    selections = {split.table: published_split(split, rows, kernels=kernels) for split in published}
    stored = _written(Path(directory), archive.manifest, selections.values())
    facts = {name: msgspec.to_builtins(selection.facts) for name, selection in selections.items()}
    write_manifest(
        Path(directory), msgspec.structs.replace(stored, reports={**stored.reports, "published_splits": facts})
    )
    return list(selections)
