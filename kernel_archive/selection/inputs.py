"""The rows of the evaluation splits and of the close pairs without their labels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from kernel_archive.archive.manifest import Manifest
from kernel_archive.archive.open import Archive
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import Finding
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLITS

#: Table of inputs -> its splits, each with the table that it repeats.
INPUTS: Final[dict[str, dict[str, str]]] = {
    inputs: dict(
        zip(
            TABLES[inputs].splits,
            [split.table for split in SPLITS.values() if split.inputs == inputs],
            strict=True,
        )
    )
    for inputs in sorted({split.inputs for split in SPLITS.values()} - {""})
}


def _inputs(archive: Archive, table: str) -> dict[str, pa.Table]:
    """Read what each split of a table of inputs holds."""
    names = TABLES[table].schema.names
    return {
        name: archive.arrow(source, columns=names)
        for name, source in INPUTS[table].items()
        if source in archive.manifest.tables
    }


def write_inputs(directory: Path, manifest: Manifest) -> Manifest:
    """Write the tables of inputs for the splits that a manifest names."""
    tables = dict(manifest.tables)
    for table in INPUTS:
        if parts := _inputs(Archive(directory, manifest), table):
            tables[table] = write_table(directory, table, parts)
    ordered = {name: tables[name] for name in TABLES if name in tables}
    return msgspec.structs.replace(manifest, tables=ordered)


def check_inputs(archive: Archive) -> Iterator[Finding]:
    """Check that the tables hold exactly the rows of their splits, in their order."""
    for table in INPUTS:
        facts = archive.manifest.tables.get(table)
        for name, rows in _inputs(archive, table).items():
            finding = partial(Finding, field=f"{table}.{name}", fix="Make the split again")
            if facts is None or name not in facts.splits:
                message = "the evaluation split has no rows without labels"
                yield finding(code="inputs-missing", severity="warning", message=message)
            elif archive.arrow(table, name) != rows.cast(TABLES[table].schema):
                message = "the evaluation split has other rows without labels"
                yield finding(code="inputs-differ", message=message)
