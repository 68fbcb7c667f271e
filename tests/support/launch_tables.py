"""An archive with rows of the table ``launches``."""

import msgspec
import pyarrow as pa

from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES


def with_launches(archive, launches):
    """The archive with these rows as its table of launches."""
    columns = dict.fromkeys(TABLES["launches"].schema.names)
    rows = [
        {**columns, "canary": CANARY, "launch_id": str(i), "case": 0, "n": 1, "bytes": 0, **row}
        for i, row in enumerate(launches)
    ]
    table = pa.Table.from_pylist(rows, schema=TABLES["launches"].schema)
    facts = write_table(archive.path, "launches", {"train": table})
    tables = {**archive.manifest.tables, "launches": facts}
    write_manifest(archive.path, msgspec.structs.replace(archive.manifest, tables=tables))
    return open_archive(archive.path)
