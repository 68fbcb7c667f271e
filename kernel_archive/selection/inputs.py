"""The rows of every evaluation split without their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import Finding
from kernel_archive.schema import TABLES
from kernel_archive.splits import EVALUATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from kernel_archive.archive.manifest import Manifest

#: Name of the table.
INPUTS: Final = "eval_inputs"


def _inputs(archive: Archive) -> dict[str, pa.Table]:
    """Read what each split of the table holds."""
    names = TABLES[INPUTS].schema.names
    return {
        name: archive.arrow(split.table, columns=names)
        for name, split in EVALUATIONS.items()
        if split.table in archive.manifest.tables
    }


def write_inputs(directory: Path, manifest: Manifest) -> Manifest:
    """Write the table for the evaluation splits that a manifest names."""
    parts = _inputs(Archive(directory, manifest))
    if not parts:
        return manifest
    tables = {**manifest.tables, INPUTS: write_table(directory, INPUTS, parts)}
    ordered = {name: tables[name] for name in TABLES if name in tables}
    return msgspec.structs.replace(manifest, tables=ordered)


def check_inputs(archive: Archive) -> Iterator[Finding]:
    """Check that the table holds exactly the rows of the evaluation splits, in their order."""
    facts = archive.manifest.tables.get(INPUTS)
    for name, rows in _inputs(archive).items():
        if facts is None or name not in facts.splits:
            yield Finding(
                code="inputs-missing",
                severity="warning",
                message="the evaluation split has no rows without labels",
                field=name,
                fix="Make it again",
            )
        elif not archive.arrow(INPUTS, name).equals(rows.cast(TABLES[INPUTS].schema)):
            yield Finding(
                code="inputs-differ",
                message="the rows without labels are not those of the evaluation split",
                field=f"{INPUTS}.{name}",
                fix="Make the split again",
            )
