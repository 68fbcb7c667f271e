"""``measurements``: a table of independent measurements that somebody else made.

The recipe says what the table calls our columns: ``columns = { code = "custom_code", speedup = "score_default" }``.
A missing value (null, empty, NaN, or a text such as ``None``) is missing: a row without code or speedup is counted and
left out, never read as 0.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, get_args

from kernel_archive.errors import Finding, printable
from kernel_archive.problems import kernelbench_id
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.records import Evaluation, Outcome, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text, natural, not_negative, positive, step_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["COLUMNS", "MEASUREMENTS"]

#: Our columns that a table can have.
COLUMNS: Final = (
    "code", "speedup", "problem", "level", "number", "gpu", "reference_code", "outcome", "node_id", "parent_node_id",
    "step", "runtime_us", "reference_runtime_us", "error_type", "error_text", "model", "input_tokens", "output_tokens",
    "gpu_seconds", "started_at", "completed_at",
)  # fmt: skip
_MISSING: Final = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>"})
#: Rows among which every column must be seen.
_HEAD_ROWS: Final = 100
_OUTCOMES: Final = frozenset(get_args(Outcome))
_PASSED: Final = frozenset({"true", "correct", "passed", "pass", "ok"})


def _value(row: dict[str, Any], column: str | None) -> Any:
    """A cell; ``None`` where it is missing in any spelling."""
    value = row.get(column) if column is not None else None
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if isinstance(value, str) and value.strip().casefold() in _MISSING else value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, int | float) else None


def _outcome(value: Any) -> str | None:
    if value is None:
        return "success"
    text = str(value).strip().casefold()
    return text if text in _OUTCOMES else "success" if text in _PASSED else None


def _check(run: RunFiles) -> dict[str, str] | Finding:
    columns = run.settings.get("columns")
    if not isinstance(columns, dict) or "code" not in columns or "speedup" not in columns:
        return Finding(
            code="bad-columns",
            message="the format 'measurements' needs columns for code and speedup",
            file=run.name(run.path),
            field="columns",
            fix='say in the recipe: columns = { code = "...", speedup = "...", problem = "..." }',
        )
    for name in columns:
        if name not in COLUMNS:
            near = difflib.get_close_matches(str(name), COLUMNS, n=1)
            return Finding(
                code="bad-columns",
                message="no such column" + (f"; did you mean {near[0]!r}?" if near else ""),
                file=run.name(run.path),
                field=f"columns.{name}",
                fix=f"one of: {', '.join(COLUMNS)}",
            )
    return {str(k): str(v) for k, v in columns.items()}


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per row with code and speedup, the counts of the others, and what was wrong."""
    report = Report()
    if not run.path.is_file():
        yield wrong_format(run, MEASUREMENTS)
        return
    columns = _check(run)
    if isinstance(columns, Finding):
        yield columns
        return
    file = run.name(run.path)
    counts: Counter[str] = Counter()
    nodes: set[str] = set()
    rows = table_rows(run, run.path, report)
    head = list(islice(rows, _HEAD_ROWS))
    # Rows of JSON lines may leave the key of a missing value out.
    present = {name for _, row in head for name in row}
    lacking = next(((ours, theirs) for ours, theirs in columns.items() if theirs not in present), None)
    if head and lacking is not None:
        yield Finding(
            code="wrong-format",
            message=f"the table has no column {printable(lacking[1])}",
            file=file,
            field=f"columns.{lacking[0]}",
            fix=f"its columns are: {', '.join(printable(c, 40) for c in sorted(present)[:30])}",
        )
        return
    for number, row in chain(head, rows):
        counts["rows"] += 1
        record = _record(row, columns, number, file, counts, report)
        if record is not None:
            if record.node_id in nodes:
                report.warning(
                    "duplicate-node", "the node id stands twice", file=file, line=number, value=record.node_id
                )
                record.node_id = f"{record.node_id}@{number}"
            nodes.add(record.node_id)
            yield record
    if not head:
        yield from nothing_read(run, MEASUREMENTS, run.path, report)
        return
    yield from report
    yield SearchFacts(counts=dict(counts))


def _record(
    row: dict[str, Any], columns: dict[str, str], number: int, file: str, counts: Counter[str], report: Report
) -> Evaluation | None:
    """One row as an evaluation; ``None`` where code or score are missing or of no use."""

    def cell(name: str) -> Any:
        return _value(row, columns.get(name))

    code, given = cell("code"), from_text(cell("speedup"))
    outcome = _outcome(cell("outcome"))
    if outcome is None:
        counts["rows_unknown_outcome"] += 1
        report.error(
            "unknown-outcome", f"not one of {', '.join(sorted(_OUTCOMES))}; the row is left out", file=file, line=number,
            field=columns["outcome"], value=str(cell("outcome")),
        )  # fmt: skip
        return None
    timed = outcome == "success"
    if code is None:
        counts["rows_without_code"] += 1
    if timed and given is None:
        counts["rows_without_speedup"] += 1
    if code is None and timed and given is None:
        counts["rows_without_code_and_speedup"] += 1
    if code is None or (timed and given is None):
        return None
    speedup = positive(given) if timed else None
    if not isinstance(code, str) or (timed and speedup is None):
        counts["rows_bad_value"] += 1
        field = "code" if not isinstance(code, str) else "speedup"
        report.warning(
            "bad-value", "left out: the code is no text, or the speedup no finite number above 0", file=file, line=number,
            field=columns[field], value=repr(cell(field)),
        )  # fmt: skip
        return None
    return Evaluation(
        node_id=_text(cell("node_id")) or f"row-{number}",
        code=code,
        outcome=outcome,  # type: ignore[arg-type]  # checked against the outcomes above
        source_file=file,
        source_line=number,
        parent_node_id=_text(cell("parent_node_id")),
        step=step_number(from_text(cell("step"))),
        speedup=speedup,
        runtime_us=positive(from_text(cell("runtime_us"))) if timed else None,
        reference_runtime_us=positive(from_text(cell("reference_runtime_us"))) if timed else None,
        error_type=_text(cell("error_type")),
        error_text=_text(cell("error_text")),
        started_at=_text(cell("started_at")),
        completed_at=_text(cell("completed_at")),
        gpu_seconds=not_negative(from_text(cell("gpu_seconds"))),
        input_tokens=natural(from_text(cell("input_tokens"))),
        output_tokens=natural(from_text(cell("output_tokens"))),
        model=_text(cell("model")),
        problem=_problem(cell, number, file, report),
        gpu=_text(cell("gpu")),
        reference_code=_text(cell("reference_code")),
    )


def _problem(cell: Any, number: int, file: str, report: Report) -> str | None:
    """The problem's name, or its KernelBench level and number."""
    name = _text(cell("problem"))
    if name is not None:
        return name
    level, index = natural(from_text(cell("level"))), natural(from_text(cell("number")))
    if level is not None and index is not None:
        return kernelbench_id(level, index)
    if level is not None or index is not None:
        report.warning("bad-value", "level and number of a problem come together", file=file, line=number)
    return None


MEASUREMENTS: Final = ReaderSpec(
    name="measurements",
    title="A table of independent measurements, with a mapping from our column names to its own",
    expects="files (Parquet, CSV or JSON lines); the recipe's columns must name code and speedup",
    files=(),
    version=2,
    records=_records,
)
