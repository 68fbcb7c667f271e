"""Making the splits of an archive directory.

Decide, prove that nothing leaks, write, and note it in the manifest.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.archive.manifest import shard_faults, write_manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.schema import TABLES
from kernel_archive.selection.close import select_close
from kernel_archive.selection.definitions import (
    CloseDefinition,
    DiscoveryDefinition,
    EvalDefinition,
    TrainDefinition,
    canonical_definition,
    load_definition,
    with_changes,
)
from kernel_archive.selection.discovery import select_discovery
from kernel_archive.selection.evaluation import AmbiguousGpuError, select_eval
from kernel_archive.selection.inputs import write_inputs
from kernel_archive.selection.leakage import (
    evaluated_programs,
    leakage_findings,
    present_members,
    refuse_leakage,
)
from kernel_archive.selection.published import read_published
from kernel_archive.selection.similarity import similarity_report
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.training import held_out_programs, select_train
from kernel_archive.splits import SPLIT_TABLES, split_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import polars as pl

    from kernel_archive.archive.manifest import Manifest, SplitFacts
    from kernel_archive.errors import Finding
    from kernel_archive.selection.definitions import Definition
    from kernel_archive.selection.selected import Selection
    from kernel_archive.splits import SplitSpec


@dataclass(frozen=True, kw_only=True)
class SplitRules:
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
    ) -> SplitRules:
        """Change one definition in some fields: one from a file, else the archive's canonical one.

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


class SplitChanges(msgspec.Struct, kw_only=True):
    """What remaking splits did.

    Attributes:
        facts: facts of every split that the archive has now, by table.
        changed: tables that were written.
        kept: published tables that were left as they are.
        leakage: the manifest's report: findings that are warnings, and similarity.
        directory: where the new archive lies until it takes the old one's place; ``None`` where
            nothing changed.
    """

    facts: dict[str, SplitFacts]
    changed: list[str] = []
    kept: list[str] = []
    leakage: dict[str, Any] = {}
    directory: Path | None = None


def select_split(
    split: SplitSpec, tables: ArchiveTables, rules: SplitRules, members: Mapping[str, pl.DataFrame]
) -> Selection:
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
        case CloseDefinition():
            return select_close(split, tables, rule, gpu=rules.gpu)
        case DiscoveryDefinition():
            return select_discovery(split, tables, rule)
        case TrainDefinition():
            return select_train(split, tables, rule, held_out=held_out_programs(tables, members))
    raise UsageError(f"no rule selects by a {type(rule).__name__}")


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Everything that is decided before anything is written.

    Attributes:
        tables: the archive's tables.
        names: tables of the splits that were asked for.
        selections: the splits by table.
        skipped: table -> why its split is not made.
        warnings: leaks that only warn.
    """

    tables: ArchiveTables
    names: Sequence[str]
    selections: dict[str, Selection]
    skipped: dict[str, str]
    warnings: list[Finding]


def plan_splits(
    archive: Archive,
    names: Sequence[str],
    rules: SplitRules | None = None,
    *,
    skip_ambiguous: bool = False,
) -> SplitPlan:
    """Select splits and refuse leaks."""
    tables = ArchiveTables(archive)
    members = present_members(tables, [n for n in SPLIT_TABLES if n not in names])
    selections: dict[str, Selection] = {}
    skipped: dict[str, str] = {}
    for name in (n for n in SPLIT_TABLES if n in names):
        try:
            selection = select_split(SPLIT_TABLES[name], tables, rules or SplitRules(), members)
        except AmbiguousGpuError as error:
            if not skip_ambiguous:
                raise
            skipped[name] = str(error)
        else:
            selections[name], members[name] = selection, selection.members
    warnings = refuse_leakage(leakage_findings(tables, members, selections))
    return SplitPlan(
        tables=tables, names=names, selections=selections, skipped=skipped, warnings=warnings
    )


def write_plan(plan: SplitPlan, directory: Path, manifest: Manifest) -> Manifest:
    """Write what was planned."""
    listed = evaluated_programs(plan.tables, plan.selections).values()
    programs = {s.name: s for rows in listed for s, _ in rows}
    nears = plan.tables.neighbours.of(programs.values())
    leakage = {
        "warnings": [msgspec.to_builtins(f) for f in plan.warnings],
        "similarity": similarity_report(
            [(s.name, s.problem) for s in programs.values()], nears.values()
        ),
    }
    stored = _write_selections(directory, manifest, plan.selections.values())
    # What was not asked for this time is still missing for the reason that was found then.
    before = manifest.reports.get("splits_not_made", {})
    missing = {**{n: why for n, why in before.items() if n not in plan.names}, **plan.skipped}
    reports = {**manifest.reports, "leakage": leakage, "splits_not_made": missing}
    return msgspec.structs.replace(write_inputs(directory, stored), reports=reports)


def _write_selections(
    directory: Path, manifest: Manifest, selections: Iterable[Selection]
) -> Manifest:
    """Write the files of splits; return the manifest with them in place of those that it names."""
    tables, splits = dict(manifest.tables), dict(manifest.splits)
    for selection in selections:
        name = selection.split.table
        metadata = {"bin_scheme": selection.scheme, "split": selection.variant}
        (part,) = TABLES[name].splits
        tables[name] = write_table(directory, name, {part: selection.parts()}, metadata=metadata)
        selection.digest = tables[name].logical_digest
        splits[name] = selection.facts
    return msgspec.structs.replace(
        manifest,
        tables={name: tables[name] for name in TABLES if name in tables},
        splits={name: splits[name] for name in SPLIT_TABLES if name in splits},
    )


def make_splits(
    directory: str | Path,
    manifest: Manifest | None = None,
    *,
    names: Sequence[str] = tuple(SPLIT_TABLES),
    rules: SplitRules | None = None,
) -> Manifest:
    """Make derived tables of an archive directory that nobody else reads yet.

    Nothing is written when the splits would leak. Where held-out kernels exist on several GPUs and
    none is the canonical one, an evaluation split is left out, with the reason in the manifest.

    Args:
        directory: the directory.
        manifest: its manifest, which the caller will write; without one, the stored one is read
            and written again.
        names: tables of the splits.
        rules: how, where it is not the canonical way.

    Returns:
        The manifest with the splits.

    Raises:
        LeakageError: training would hold something of the evaluation; the rows are named.
        UsageError: there is nothing on the GPU that was named.
    """
    place = Path(directory)
    archive = open_archive(place) if manifest is None else Archive(place, manifest)
    plan = plan_splits(archive, names, rules, skip_ambiguous=True)
    made = write_plan(plan, place, archive.manifest)
    return write_manifest(place, made) if manifest is None else made


@contextmanager
def remade_splits(
    directory: str | Path, names: Sequence[str], *, rules: SplitRules | None = None
) -> Iterator[SplitChanges]:
    """Make derived tables of an existing archive anew.

    Readers see the old archive or the new one, never half of it: the new one lies in the
    ``directory`` of what is yielded, for a card to be written, and takes the old one's place at the
    end of the block. A split that others published is left as it is. What would come out as it is
    already is not written, unless its files are not those that the manifest names.

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
        manifest, splits = archive.manifest, archive.manifest.splits
        kept = [n for n in names if n in splits and splits[n].origin == "published"]
        damaged = {n: list(shard_faults(place, manifest.shards(n))) for n in names}
        if faults := [fault for n in kept for fault in damaged[n]]:
            # Where the files of a published split were changed, only its source has it.
            raise ArchiveMismatchError.from_findings(faults)
        plan = plan_splits(archive, [n for n in names if n not in kept], rules)
        if not any(
            splits.get(n) != s.facts or n not in manifest.tables or damaged[n]
            for n, s in plan.selections.items()
        ):
            report = manifest.reports.get("leakage", {})
            yield SplitChanges(facts=dict(splits), kept=kept, leakage=report)
            return
        with replaced_directory(place, copy=True) as new:
            stored = write_manifest(new, write_plan(plan, new, manifest))
            yield SplitChanges(
                facts=dict(stored.splits),
                changed=list(plan.selections),
                kept=kept,
                leakage=stored.reports["leakage"],
                directory=new,
            )


def store_published(
    directory: str | Path, staged: Sequence[Path], manifest: Manifest | None = None
) -> Manifest:
    """Write the splits that others published into an archive directory that nobody else reads yet.

    Args:
        directory: the directory.
        staged: files of published rows.
        manifest: its manifest, which the caller will write; without one, the stored one is read
            and written again.

    Returns:
        The manifest with these splits.

    Raises:
        DataError: a row id stands twice, a speedup is not finite and above 0, or a label is not
            1 to 8.
    """
    place = Path(directory)
    archive = open_archive(place) if manifest is None else Archive(place, manifest)
    selections = read_published(staged, archive)
    if not selections:
        return archive.manifest
    stored = _write_selections(place, archive.manifest, selections)
    return write_manifest(place, stored) if manifest is None else stored
