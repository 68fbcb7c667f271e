"""What an archive tells of itself: counts, the audit, and one kernel traced to its log lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.labels import FLAGS
from kernel_archive.errors import UsageError, place_of, printable
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import content_path
from kernel_archive.toml_files import toml_beside

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive

Row = dict[str, Any]

#: Refuse a shorter beginning of an id.
MIN_PREFIX: Final = 6
_MEASURED: Final = ("speedup", "runtime_us", "reference_runtime_us")
_COUNTED: Final = {
    "kernels": ("problem", "gpu", "language", "generation_method", "bin", "split"),
    "evaluations": ("outcome",),
}
_QUERIES: Final = toml_beside(__file__, "info.toml")


def archive_info(archive: Archive) -> Row:
    """Count what an archive holds; the result is JSON-ready, with ``None`` for unlogged totals."""
    manifest = archive.manifest
    counts = {}
    for table, columns in _COUNTED.items():
        for name in columns:
            query = f"SELECT {name}::VARCHAR, count(*) FROM {table} GROUP BY {name} ORDER BY {name}"
            keys, numbers = archive.sql(query).columns
            counts[name] = dict(zip(keys.to_pylist(), numbers.to_pylist(), strict=True))
    return {
        "path": str(archive.path),
        "name": manifest.name,
        "version": manifest.version,
        "logical_digest": manifest.logical_digest,
        "bin_scheme": manifest.bin_scheme,
        "package": manifest.package,
        "tables": {name: facts.rows for name, facts in manifest.tables.items()},
        "counts": counts,
        "problems": archive.sql(_QUERIES["problems"]).to_pylist(),
        "methods": archive.sql(_QUERIES["methods"]).to_pylist(),
        **archive.sql(_QUERIES["totals"]).to_pylist()[0],
        "flags": manifest.reports.get("flags", {}),
        "builders": manifest.builders,
        "inputs": {"runs": len(manifest.inputs), "bytes": sum(i.bytes for i in manifest.inputs)},
        "findings": {key: manifest.findings[key] for key in ("total", "by_code")},
        "reports": {k: v for k, v in manifest.reports.items() if k not in {"build_key", "flags"}},
        "splits": {
            name: {"name": split.name, "rows": split.rows, "scheme": split.scheme}
            for name, split in manifest.splits.items()
        },
    }


def audit_archive(archive: Archive, *, examples: int = 5) -> Row:
    """List every flag with rule, counts and worst examples, and what was left out of the tables."""
    flags = []
    flagged = archive.sql(_QUERIES["flagged"]).to_pylist()
    for flag in FLAGS:
        by_problem = {row["problem"]: row["n"] for row in flagged if row["flag"] == flag.name}
        worst = _QUERIES["worst"].format(order=flag.worst)
        row: Row = {"flag": flag.name, "rule": flag.rule, "why": flag.why}
        row |= {"kernels": sum(by_problem.values()), "by_problem": by_problem}
        flags.append(row | {"worst": archive.sql(worst, [flag.name, examples]).to_pylist()})
    return {
        "kernels": sum(archive.manifest.tables["kernels"].rows.values()),
        "flags": flags,
        "excluded": archive.sql(_QUERIES["excluded"]).to_pylist(),
        "rows_left_out": archive.manifest.reports.get("log_counts", {}).get("rows_left_out", 0),
        "findings": archive.manifest.findings,
    }


def find_kernel(archive: Archive, wanted: str) -> Row:
    """Find the one kernel or failure of an id (also of a program or evaluation), or a beginning.

    The row comes with the name of its ``table``; of an excluded kernel only ``kernel_id``.
    """
    text, quoted = wanted.strip().lower(), repr(printable(wanted))
    if len(text) < MIN_PREFIX:
        raise UsageError(f"{quoted} is too short for an id; give at least {MIN_PREFIX} digits")
    # Ids are hexadecimal; other text is in no table, and could hold wildcards of LIKE.
    is_id = set(text) <= set("0123456789abcdef")
    matches = archive.sql(_QUERIES["kernels_by_id"], [f"{text}%"]).to_pylist() if is_id else []
    if not matches:
        message = f"no kernel, program or evaluation has the id {quoted} in {archive.path}"
        raise UsageError(message)
    if len(matches) > 1:
        listed = "; ".join("{kernel_id} ({problem} on {gpu})".format_map(m) for m in matches[:8])
        raise UsageError(f"{quoted} fits {len(matches)} kernels: {listed}. Give more digits")
    kernel = matches[0]["kernel_id"]
    for table in ("kernels", "failures"):
        rows = archive.sql(f"SELECT * FROM {table} WHERE kernel_id = ?", [kernel]).to_pylist()
        if rows:
            return {"table": table, **rows[0]}
    return {"table": "evaluations", "kernel_id": kernel}


def trace(archive: Archive, wanted: str) -> Row:
    """Collect what the archive has about one kernel, measurements and splits included.

    ``label_from`` is the log line of its label, ``lineage`` are its ancestors, nearest first.
    """
    kernel = find_kernel(archive, wanted)
    kernel_id = kernel["kernel_id"]
    measurements = _placed(archive.sql(_QUERIES["measurements"], [kernel_id]).to_pylist())
    search = kernel.get("search_id") or (measurements[0]["search_id"] if measurements else None)
    splits = [
        name
        for name, split in SPLIT_TABLES.items()
        if name in archive.tables
        and archive.sql(f"SELECT 1 FROM {name} WHERE {split.kernel} = ?", [kernel_id]).num_rows
    ]
    return {
        "kernel": kernel,
        "label_from": next(filter(None, (_label_line(kernel, m) for m in measurements)), None),
        "measurements": measurements,
        "lineage": list(_ancestors(archive, search, kernel_id)),
        "splits": splits,
    }


def _label_line(kernel: Row, measurement: Row) -> str | None:
    """Name the line of a measurement that gives a kernel's label, by a path to open from here."""
    same = all(measurement[key] == kernel.get(key) for key in _MEASURED)
    counts = same and measurement["speedup"] is not None and not measurement["excluded"]
    return str(measurement["place"]) if counts else None


def _placed(rows: list[Row]) -> list[Row]:
    """Add the ``place`` of each row: its log line, by a path to open from here where one is."""
    for row in rows:
        builder, file = row["search_id"].split("/")[0], row["source_file"]
        places = (Path(file), content_path("builders") / builder / file)
        here = next((os.path.relpath(place) for place in places if place.is_file()), None)
        line = place_of(here or file, row["source_line"])
        row["place"] = line if here else f"{line} in the folder of the builder {builder}"
    return rows


def _ancestors(archive: Archive, search: str | None, kernel_id: str) -> Iterator[Row]:
    """Yield the first evaluation of every ancestor in a search, nearest first, each once."""
    rows = archive.sql(_QUERIES["search"], [search]).to_pylist()
    remaining = {row["kernel_id"]: row for row in rows}
    row = remaining.pop(kernel_id, None)
    while row is not None:
        distance = row["parent_distance"]
        row = remaining.pop(row["parent_kernel_id"], None)
        if row is not None:
            yield {**_placed([row])[0], "distance": distance}
