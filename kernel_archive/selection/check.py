"""Check the splits of an archive: facts, rows and labels as the definitions select them, leaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
import polars as pl

from kernel_archive.archive.open import Archive
from kernel_archive.errors import Finding, KernelArchiveError, printable
from kernel_archive.selection.definitions import recorded_definition
from kernel_archive.selection.freeze import check_frozen, compare_split, frozen_columns, is_release
from kernel_archive.selection.inputs import check_inputs
from kernel_archive.selection.label_order import check_label_order
from kernel_archive.selection.leakage import leakage_findings, read_leak_ids
from kernel_archive.selection.make import select_split
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.withheld import check_withheld
from kernel_archive.splits import SPLIT_TABLES

_AGAIN = "Make the split again"


def _presence(archive: Archive) -> Iterator[Finding]:
    """Check that every derived table has facts and the other way round."""
    manifest = archive.manifest
    for name, split in SPLIT_TABLES.items():
        finding = partial(Finding, field=name)
        facts, table = manifest.splits.get(name), manifest.tables.get(name)
        if facts is None and table is None:
            if split.optional:
                continue
            why = manifest.reports.get("splits_not_made", {}).get(name)
            message = f"the archive has no such split{f': {printable(why)}' if why else ''}"
            yield finding(code="split-missing", severity="warning", message=message)
        elif facts is None or table is None:
            message = f"the split has no {'facts' if facts is None else 'rows'}"
            yield finding(code="split-missing", message=message, fix=_AGAIN)


def _recomputed(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Compare every selected split with what its recorded parameters select."""
    for name, split in SPLIT_TABLES.items():
        facts = tables.archive.manifest.splits.get(name)
        if facts is None or facts.origin != "selected":
            continue
        others = {n: rows for n, rows in members.items() if n != name}
        try:
            definition = recorded_definition(split, facts.parameters)
            gpu = facts.parameters.get("gpu")
            selection = select_split(split, tables, others, definition, gpu)
        except (KernelArchiveError, KeyError) as error:
            message = f"the recorded parameters don't select anything: {printable(error, 300)}"
            yield Finding(code="split-parameters", message=message, field=name, fix=_AGAIN)
            continue
        rows = selection.rows.select(frozen_columns(split)).rows()
        # Not the parameters themselves: an older manifest may lack one that has a default now.
        selected_facts = msgspec.structs.replace(selection.facts, parameters=facts.parameters)
        yield from compare_split(tables.archive, name, rows, selected_facts, "its definition")


def check_splits(archive: Archive) -> list[Finding]:
    """Find what is wrong with the splits of an archive.

    Facts and tables belong together; every selected row, label and fact is recomputed from the
    definition that the facts record; nothing of the evaluation is in training (found from the
    texts, whatever ids a table states); the splits of a released version are the frozen ones, and
    an archive that is the release, row by row, was recomputed before it was frozen.
    """
    findings = list(_presence(archive))
    if any(f.severity == "error" for f in findings):
        return findings
    findings += [*check_inputs(archive), *check_withheld(archive), *check_label_order(archive)]
    if not is_release(archive):
        tables = ArchiveTables(archive)
        members = read_leak_ids(tables)
        findings += [*_recomputed(tables, members), *leakage_findings(tables, members)]
    return [*findings, *check_frozen(archive)]
