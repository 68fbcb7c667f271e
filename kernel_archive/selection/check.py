"""Checking the splits of an archive: facts, labels, rows recomputed from the definitions, leaks, frozen ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_archive.errors import Finding, KernelArchiveError, printable
from kernel_archive.selection.definitions import recorded_definition
from kernel_archive.selection.freeze import check_frozen, differences, frozen_columns, frozen_split
from kernel_archive.selection.leakage import leakage_findings, present_members
from kernel_archive.selection.make import Rules, select_split
from kernel_archive.selection.published import published_labels
from kernel_archive.selection.selected import CANONICAL, check_inputs
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.withheld import check_withheld
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.selection.selected import Selection


def _presence(archive: Archive) -> Iterator[Finding]:
    """Every derived table has facts and the other way round, and a published split's labels are what its facts say."""
    manifest = archive.manifest
    for name, split in SPLIT_TABLES.items():
        facts, table = manifest.splits.get(name), manifest.tables.get(name)
        if (facts is None) != (table is None):
            missing = "facts" if facts is None else "rows"
            yield Finding(code="split-missing", message=f"the split has no {missing}", field=name, fix="Build again")
        elif facts is None or table is None:
            why = manifest.reports.get("splits_not_made", {}).get(name)
            yield Finding(
                code="split-missing",
                severity="warning",
                message=f"the archive has no such split{f': {why}' if why else ''}",
                field=name,
            )
        else:
            rows = sum(table.rows.values())
            if rows != facts.rows:
                message = f"{rows} rows, the facts say {facts.rows}"
                yield Finding(code="wrong-rows", message=message, field=name)
            if facts.origin == "published":
                yield from published_labels(split, archive.arrow(name), facts)
    for name in sorted(manifest.splits.keys() - SPLIT_TABLES.keys()):
        message = "the manifest states facts of no derived table"
        yield Finding(code="unknown-split", message=message, value=printable(name))


def _against(selection: Selection, archive: Archive, facts: SplitFacts) -> Iterator[Finding]:
    """What a split holds against what its definition selects."""
    again = selection.facts
    table = selection.split.table
    wanted = list(zip(*(selection.rows[n].to_pylist() for n in frozen_columns(selection.split)), strict=True))
    # The digest says nothing about the order of the rows: they are compared one by one.
    named = list(differences(wanted, frozen_split(archive, table).rows, table, "its definition"))
    if named:
        yield from named
    elif again.logical_digest != facts.logical_digest:
        yield Finding(
            code="split-content",
            message="the rows are the selected ones, but columns or texts differ from the kernels",
            field=table,
            fix="Make the split again",
        )
    elif again.facts != facts.facts:
        changed = sorted(k for k in {*again.facts, *facts.facts} if again.facts.get(k) != facts.facts.get(k))
        message = f"facts differ from those of the rows: {', '.join(changed)}"
        yield Finding(code="split-facts", message=message, field=table, fix="Make the split again")
    elif again.name != facts.name and not facts.name.endswith("-reselected"):
        canonical = facts.name == CANONICAL
        yield Finding(
            code="split-name",
            severity="warning",
            message=f"is called {printable(facts.name)!r}; by this version's definitions it is {again.name!r}",
            field=table,
            fix="Another version of the definitions made it" if canonical else None,
        )


def _recomputed(tables: ArchiveTables, members: Mapping[str, pa.Table]) -> Iterator[Finding]:
    """What every selected split holds against what its recorded parameters select, given the other splits as they are."""
    for name, split in SPLIT_TABLES.items():
        facts = tables.archive.manifest.splits.get(name)
        if facts is None or facts.origin != "selected":
            continue
        try:
            definition = recorded_definition(split, facts.parameters)
            gpu = facts.parameters.get("gpu") if split.kind == "eval" else None
            others = {n: rows for n, rows in members.items() if n != name}
            selection = select_split(split, tables, Rules(definitions={name: definition}, gpu=gpu), others)
            yield from _against(selection, tables.archive, facts)
        except (KernelArchiveError, KeyError) as error:
            yield Finding(
                code="split-parameters",
                message=f"the recorded parameters don't select anything: {printable(str(error), 300)}",
                field=name,
                fix="Make the splits again",
            )


def check_splits(archive: Archive) -> list[Finding]:
    """Findings about the splits of an archive.

    Facts and tables belong together; every selected row, label and fact is recomputed from the definition that the
    facts record; nothing of the evaluation is in training (found from the texts, whatever ids a table states); the
    splits of a released version are the frozen ones.
    """
    found = list(_presence(archive))
    if any(f.severity == "error" for f in found):
        return found
    tables = ArchiveTables(archive)
    members = present_members(tables)
    found.extend(check_inputs(archive))
    found.extend(check_withheld(archive))
    return [*found, *_recomputed(tables, members), *leakage_findings(tables, members), *check_frozen(archive)]
