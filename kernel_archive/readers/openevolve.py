"""``openevolve``: checkpoints of OpenEvolve and its relatives, a program a file, each of them again in every later checkpoint.

Facts of the format, from its public code: a checkpoint is a folder ``checkpoint_N`` with ``programs/ID.json``, an object
with ``id``, ``code``, ``parent_id``, ``iteration_found``, ``metrics`` (numbers that the user's evaluator names) and more.
What a metric means only the user knows: the recipe's ``columns`` say which is the speedup, a time, a verdict.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.mapping import From, columns_of
from kernel_archive.readers.measurements import Judged
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.sniff import wrong_format
from kernel_archive.readers.values import failure_of, is_missing, lookup, natural, object_of, truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

#: Where the programs are, seen from a run, from its output folder, from its checkpoints, and from one checkpoint.
_FILES: Final = (
    "openevolve_output/checkpoints/*/programs/*.json",
    "checkpoints/*/programs/*.json",
    "checkpoint_*/programs/*.json",
    "programs/*.json",
)
_COLUMNS: Final = {"code": "code", "node_id": "id", "parent_node_id": "parent_id", "step": "iteration_found"}
#: Where what an evaluator wrote as ``metrics.error`` is put; a number there is none.
_ERROR: Final = {"error_text": "said.text", "error_type": "said.type"}


def _checkpoint(path: Path) -> tuple[int, str]:
    """Orders the files of a run: by the number of their checkpoint, then by name."""
    number = re.search(r"(\d+)$", path.parent.parent.name)
    return int(number[1]) if number else 0, path.name


def _programs(run: RunFiles, report: Report) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Every program of the run once, as its last checkpoint has it, with its file."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(run.files, key=_checkpoint):
        value = run.json(path)
        if isinstance(value, Finding):
            report.add(value)
        elif isinstance(value, dict) and isinstance(value.get("id"), str) and isinstance(value.get("code"), str):
            before = found.get(value["id"])
            if before is not None and before[1].get("code") != value["code"]:
                message = "a program of this id has another code in an earlier checkpoint; the last one counts"
                report.warning("program-changed", message, file=run.name(path), field="code", value=value["id"])
            found[value["id"]] = path, value
        else:
            report.error("not-a-row", "no program: id and code are missing; skipped", file=run.name(path))
    return found


def _without_migrants(
    run: RunFiles, found: dict[str, tuple[Path, dict[str, Any]]], report: Report
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The programs without the copies that migrated to another island: these have the figures of the program that they copy.

    A migrant is called ``ID_migrant_N``, or says so in its ``metadata``. Of copies whose first program is not kept the first one
    stays; parents are the programs that stay.
    """
    stays: dict[tuple[str, Any, str], str] = {}
    same: dict[str, str] = {}

    def first(name: str) -> str:
        """The program that a migrant, or a migrant of it, was copied from."""
        seen: set[str] = set()
        while name not in seen:
            seen.add(name)
            row = found.get(name, (None, {}))[1]
            if object_of(row.get("metadata")).get("migrant") is True and isinstance(row.get("parent_id"), str):
                name = row["parent_id"]
            else:
                name = re.sub(r"_migrant_\d+$", "", name)
        return name

    # A program stands before its migrants: the one that is not copied, then by name.
    for name in sorted(found, key=lambda n: (first(n) != n, n)):
        row = found[name][1]
        figures = json.dumps(row.get("metrics"), sort_keys=True, default=str)
        same[name] = stays.setdefault((first(name), row["code"], figures), name)
    copies = [name for name in found if same[name] != name]
    if copies:
        message = f"{len(copies):,} migrants are copies with the figures of the programs that they copy: each program counts once"
        report.info("migrants", message, file=run.name(found[copies[0]][0]), value=copies[0])
    return {
        name: (path, {**row, "parent_id": same.get(str(row.get("parent_id")), row.get("parent_id"))})
        for name, (path, row) in found.items()
        if same[name] == name
    }


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per program, the first one first."""
    report = Report()
    found = _without_migrants(run, _programs(run, report), report)
    if not found:
        yield from report
        yield wrong_format(run, OPENEVOLVE)
        return
    mapped = {**_COLUMNS, **_ERROR, **(run.settings.get("columns") or {})}
    columns = columns_of(mapped, run.name(run.path), run.settings.get("reference"))
    if isinstance(columns, Finding):
        metrics = sorted({str(name) for _, row in found.values() for name in object_of(row.get("metrics"))})
        fix = f'say which metric is what, for example columns = {{ speedup = "metrics.{(metrics or ["speedup"])[0]}" }}'
        listed = f"{columns.message}; its metrics are: {', '.join(metrics[:20]) or 'none'}"
        yield msgspec.structs.replace(columns, message=listed[:600], fix=columns.fix and fix)
        return

    correct = columns.get("correct")
    for _, row in found.values():
        text = object_of(row.get("metrics")).get("error")
        if isinstance(text, str) and not is_missing(text):
            kind = text.split(":")[0].strip()
            row["said"] = {"text": text, "type": kind if kind.isidentifier() else None}
            if correct is not None and correct.column and truth(lookup(row, correct.column)) is False:
                row["said"]["outcome"] = failure_of(kind)
    if "outcome" not in columns and any("outcome" in object_of(row.get("said")) for _, row in found.values()):
        columns["outcome"] = From(column="said.outcome")

    def order(item: tuple[Any, dict[str, Any]]) -> tuple[bool, int, str]:
        row = item[1]
        return row.get("parent_id") is not None, natural(row.get("iteration_found")) or 0, str(row["id"])

    yield from Judged(run, run.path, report, columns).judge(sorted(found.values(), key=order))


OPENEVOLVE: Final = ReaderSpec(
    name="openevolve",
    title="Checkpoints of OpenEvolve and its relatives: programs with parents and metrics",
    expects="run directories (openevolve_output, checkpoints, or one checkpoint); columns must say which metric is the speedup or time",
    files=_FILES,
    version=6,
    records=_records,
    foreign=True,
)
