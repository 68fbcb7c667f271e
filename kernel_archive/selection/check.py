"""Checking the splits of an archive.

Facts, labels, rows recomputed from the definitions, leaks, frozen ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kernel_archive.errors import Finding, KernelArchiveError, printable
from kernel_archive.selection.definitions import recorded_definition
from kernel_archive.selection.freeze import (
    changed_facts,
    check_frozen,
    differences,
    frozen_columns,
    frozen_rows,
)
from kernel_archive.selection.inputs import check_inputs
from kernel_archive.selection.label_order import check_label_order
from kernel_archive.selection.leakage import leakage_findings, present_members
from kernel_archive.selection.make import select_split
from kernel_archive.selection.published import check_published
from kernel_archive.selection.selected import CANONICAL
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.withheld import check_withheld
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.selection.selected import Selection

_AGAIN = "Make the split again"


def _presence(archive: Archive) -> Iterator[Finding]:
    """Check that every derived table has facts and the other way round."""
    manifest = archive.manifest
    for name, split in SPLIT_TABLES.items():
        facts, table = manifest.splits.get(name), manifest.tables.get(name)
        if (facts is None) != (table is None):
            message = f"the split has no {'facts' if facts is None else 'rows'}"
            yield Finding(code="split-missing", message=message, field=name, fix=_AGAIN)
        elif facts is None or table is None:
            why = manifest.reports.get("splits_not_made", {}).get(name)
            message = f"the archive has no such split{f': {why}' if why else ''}"
            yield Finding(code="split-missing", severity="warning", message=message, field=name)
        else:
            rows = sum(table.rows.values())
            if rows != facts.rows:
                message = f"{rows} rows, the facts say {facts.rows}"
                yield Finding(code="wrong-rows", message=message, field=name)
            if facts.origin == "published":
                yield from check_published(split, archive.polars(name), facts)
    for name in sorted(manifest.splits.keys() - SPLIT_TABLES.keys()):
        message = "the manifest states facts of no derived table"
        yield Finding(code="unknown-split", message=message, value=printable(name))


def _against(selection: Selection, archive: Archive, facts: SplitFacts) -> Iterator[Finding]:
    """Compare what a split holds with what its definition selects."""
    again, table = selection.facts, selection.split.table
    wanted = selection.rows.select(frozen_columns(selection.split)).rows()
    # The digest says nothing about the order of the rows: they are compared one by one.
    rows = list(differences(wanted, frozen_rows(archive, table), table, "its definition"))
    named = msgspec.structs.replace(again, name=facts.name, parameters=facts.parameters)
    if rows:
        yield from rows
    elif again.logical_digest != facts.logical_digest:
        message = "the rows are the selected ones, but columns or texts differ from the kernels"
        yield Finding(code="split-content", message=message, field=table, fix=_AGAIN)
    elif changed := list(changed_facts(named, facts, table, "the rows")):
        yield from changed
    elif again.name != facts.name:
        message = f"is called {printable(facts.name)!r}; its definition is {again.name!r}"
        fix = "Another version of the definitions made it" if facts.name == CANONICAL else None
        yield Finding(code="split-name", severity="warning", message=message, field=table, fix=fix)


def _recomputed(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Compare every selected split with what its recorded parameters select."""
    for name, split in SPLIT_TABLES.items():
        facts = tables.archive.manifest.splits.get(name)
        if facts is None or facts.origin != "selected":
            continue
        try:
            definition = recorded_definition(split, facts.parameters)
            gpu = facts.parameters.get("gpu") if split.kind in ("eval", "close") else None
            others = {n: rows for n, rows in members.items() if n != name}
            selection = select_split(split, tables, others, definition, gpu)
            yield from _against(selection, tables.archive, facts)
        except (KernelArchiveError, KeyError) as error:
            message = f"the recorded parameters don't select anything: {printable(error, 300)}"
            yield Finding(code="split-parameters", message=message, field=name, fix=_AGAIN)


def check_splits(archive: Archive) -> list[Finding]:
    """Find what is wrong with the splits of an archive.

    Facts and tables belong together; every selected row, label and fact is recomputed from the
    definition that the facts record; nothing of the evaluation is in training (found from the
    texts, whatever ids a table states); the splits of a released version are the frozen ones.
    """
    findings = list(_presence(archive))
    if any(f.severity == "error" for f in findings):
        return findings
    tables = ArchiveTables(archive)
    members = present_members(tables)
    return [
        *findings,
        *check_inputs(archive),
        *check_withheld(archive),
        *check_label_order(archive),
        *_recomputed(tables, members),
        *leakage_findings(tables, members),
        *check_frozen(archive),
    ]
