"""Deciding the splits of an archive before anything is written: select by the rules, and prove that nothing leaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kernel_archive.errors import UsageError
from kernel_archive.selection.definitions import (
    DiscoveryDefinition,
    EvalDefinition,
    TrainDefinition,
    load_definition,
    with_changes,
)
from kernel_archive.selection.discovery import select_discovery
from kernel_archive.selection.evaluation import AmbiguousGpuError, select_eval
from kernel_archive.selection.leakage import check_leakage, check_near_copies, members_of, refuse_leakage
from kernel_archive.selection.own import canonical_definition
from kernel_archive.selection.published import relabelled
from kernel_archive.selection.selected import CANONICAL, Member, Selection
from kernel_archive.selection.similarity import Program
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.training import held_out_programs, select_train
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES, split_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.archive.team import Team
    from kernel_archive.bins import Scheme
    from kernel_archive.errors import Finding
    from kernel_archive.selection.definitions import Definition
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


def present_members(tables: ArchiveTables, names: Iterable[str] = tuple(SPLIT_TABLES)) -> dict[str, list[Member]]:
    """Rows of the splits that an archive holds, by table, with the ids of their texts."""
    found = {}
    for name in names:
        if name in tables.archive.manifest.tables:
            split = SPLIT_TABLES[name]
            columns = ("row_id", split.task, "search_id", *split.programs)
            if split.kind == "train":
                columns = (*columns, "pair_type")
            found[name] = members_of(split, tables.batches(name, columns), tables.tokens)
    return found


def leakage_findings(
    tables: ArchiveTables,
    members: Mapping[str, Sequence[Member]],
    selections: Mapping[str, Selection] | None = None,
) -> list[Finding]:
    """Leaks between the splits of an archive (see :mod:`kernel_archive.selection.leakage`).

    Args:
        tables: the archive's tables.
        members: rows of its splits, by table.
        selections: splits that are about to take the place of those that the archive has.
    """
    facts = tables.archive.manifest.splits
    published = [
        n
        for n, split in SPLIT_TABLES.items()
        if n in facts and facts[n].origin == "published" and split.kind == "train"
    ]
    chosen = selections or {}
    stated = {name: (chosen[name] if name in chosen else facts[name]).parameters for name in {*chosen, *facts}}
    programs = {
        name: (float(threshold), rows)
        for name, rows in compared_programs(tables, chosen).items()
        if (threshold := stated.get(name, {}).get("near_copy")) is not None
    }
    lenient = bool(published)
    return [*check_leakage(tables, members, lenient=lenient), *check_near_copies(tables, programs, lenient=lenient)]


def select_split(
    split: Split, tables: ArchiveTables, rules: Rules, members: Mapping[str, Sequence[Member]]
) -> Selection:
    """Select one split of an archive.

    Args:
        split: which one.
        tables: the archive.
        rules: how.
        members: rows of the other splits by table, which training pairs must not touch.

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


def compared_programs(tables: ArchiveTables, selections: Mapping[str, Selection]) -> dict[str, list[Program]]:
    """Programs of the evaluation splits, by table, under the names of their rows: from their own texts."""
    rows: dict[str, list[Program]] = {}
    for split in EVALUATIONS.values():
        names = ("row_id", split.task, split.candidate)
        chosen = selections.get(split.table)
        for part in tables.stored(split.table, names) if chosen is None else chosen.parts():
            for values in zip(*(part[n].to_pylist() for n in names), strict=True):
                rows.setdefault(split.table, []).append(Program(*values))
    return rows


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is decided before anything is written.

    Attributes:
        tables: the archive that is read.
        names: tables of the splits that were asked for.
        selections: splits to write, by table.
        skipped: why a split is not made.
        warnings: leaks that no build can mend.
    """

    tables: ArchiveTables
    names: Sequence[str]
    selections: dict[str, Selection]
    skipped: dict[str, str]
    warnings: list[Finding]


def plan_splits(
    archive: Archive,
    names: Sequence[str],
    rules: Rules | None = None,
    *,
    skip_ambiguous: bool = False,
    scheme: Scheme | None = None,
    workers: Team | None = None,
) -> Plan:
    """Select, and refuse leaks.

    Args:
        archive: the archive.
        names: tables of the splits to make.
        rules: how; canonically when not given.
        skip_ambiguous: leave an evaluation split out, with the reason, when its GPU must be named.
        scheme: what is published among them is not selected: its labels are made anew under this scheme.
        workers: who looks at the parts of a large archive; this process alone when not given.

    Raises:
        AmbiguousGpuError: the GPU of an evaluation split must be named.
        LeakageError: training would hold something of the evaluation.
        UsageError: there is nothing on the GPU that was named.
    """
    tables = ArchiveTables(archive, workers)
    if names:
        tables.texts  # noqa: B018 - begins to read them, while rows are chosen
    manifest = archive.manifest
    members: dict[str, Sequence[Member]] = dict(present_members(tables, [n for n in SPLIT_TABLES if n not in names]))
    made: dict[str, Selection] = {}
    skipped: dict[str, str] = {}
    for name, split in SPLIT_TABLES.items():
        facts = manifest.splits.get(name)
        if name not in names:
            continue
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
    return Plan(tables=tables, names=names, selections=made, skipped=skipped, warnings=warnings)
