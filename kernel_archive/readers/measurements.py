"""``measurements``: a table of independent measurements that somebody else made.

The recipe says what the table calls our columns: ``columns = { code = "custom_code", speedup = "score_default" }``.
A missing value (null, empty, NaN, or a text such as ``None``) is missing: a row without code or speedup is counted and
left out, never read as 0.
"""

from __future__ import annotations

import difflib
import math
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, get_args

from kernel_archive.errors import Finding, printable
from kernel_archive.problems import kernelbench_id
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.reading import Reading
from kernel_archive.readers.records import Evaluation, Outcome
from kernel_archive.readers.report import Report
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text, natural, not_negative, positive, step_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["COLUMNS", "MEASUREMENTS"]


def _text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None


def _number(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reads a number of a kind that may be spelled as text."""
    return lambda value: kind(from_text(value))


#: Columns that become a field of the evaluation, and how each is read.
_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        (
            "gpu", "reference_code", "parent_node_id", "error_type", "error_text", "model", "started_at", "completed_at",
        ),
        _text,
    ),
    "step": _number(step_number),
    "input_tokens": _number(natural),
    "output_tokens": _number(natural),
    "gpu_seconds": _number(not_negative),
}  # fmt: skip
#: Times, which count for successes only.
_TIMES: Final = ("runtime_us", "reference_runtime_us")
#: Our columns that a table can have.
COLUMNS: Final = ("code", "speedup", "outcome", "node_id", "problem", "level", "number", *_TIMES, *_FIELDS)
_MISSING: Final = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>"})
#: Rows among which every column must be seen.
_HEAD_ROWS: Final = 100
_OUTCOMES: Final = frozenset(get_args(Outcome))
_PASSED: Final = frozenset({"true", "correct", "passed", "pass", "ok"})


class _Table(Reading):
    """The rows of one table."""

    columns: dict[str, str]

    def cell(self, row: dict[str, Any], name: str) -> Any:
        """A cell by our name of its column; ``None`` where it is missing in any spelling."""
        value = row.get(self.columns[name]) if name in self.columns else None
        if isinstance(value, float) and math.isnan(value):
            return None
        return None if isinstance(value, str) and value.strip().casefold() in _MISSING else value

    def take(self, line: int, row: dict[str, Any]) -> None:
        """Take in one row; one without code or score is counted."""
        self.count("rows")
        code, given = self.cell(row, "code"), from_text(self.cell(row, "speedup"))
        logged = self.cell(row, "outcome")
        said = "success" if logged is None else str(logged).strip().casefold()
        outcome: Any = "success" if said in _PASSED else said
        if outcome not in _OUTCOMES:
            self.count("rows_unknown_outcome")
            message = f"not one of {', '.join(sorted(_OUTCOMES))}; the row is left out"
            self.error("unknown-outcome", message, line=line, field=self.columns["outcome"], value=str(logged))
            return
        timed = outcome == "success"
        lacking = [name for name, value in (("code", code), ("speedup", given if timed else 0)) if value is None]
        for name in lacking:
            self.count(f"rows_without_{name}")
        if len(lacking) > 1:
            self.count("rows_without_code_and_speedup")
        if lacking:
            return
        speedup = positive(given) if timed else None
        if not isinstance(code, str) or (timed and speedup is None):
            self.count("rows_bad_value")
            field = self.columns["speedup" if isinstance(code, str) else "code"]
            message = "left out: the code is no text, or the speedup no finite number above 0"
            self.warning("bad-value", message, line=line, field=field, value=row.get(field))
            return
        node = _text(self.cell(row, "node_id")) or f"row-{line}"
        if node in self.found:
            self.warning("duplicate-node", "the node id stands twice", line=line, value=node)
            node = f"{node}@{line}"
        fields: dict[str, Any] = {name: kind(self.cell(row, name)) for name, kind in _FIELDS.items()}
        if timed:
            fields |= {name: positive(from_text(self.cell(row, name))) for name in _TIMES}
        self.found[node] = Evaluation(
            node_id=node,
            code=code,
            outcome=outcome,
            source_file=self.file,
            source_line=line,
            speedup=speedup,
            problem=self._problem_of(row, line),
            **fields,
        )

    def _problem_of(self, row: dict[str, Any], line: int) -> str | None:
        """The problem's name, or its KernelBench level and number."""
        level, number = (natural(from_text(self.cell(row, name))) for name in ("level", "number"))
        name = _text(self.cell(row, "problem"))
        if name is None and level is not None and number is not None:
            return kernelbench_id(level, number)
        if name is None and (level is not None or number is not None):
            self.warning("bad-value", "level and number of a problem come together", line=line)
        return name


def _columns(run: RunFiles) -> dict[str, str] | Finding:
    """The recipe's mapping of columns, or what is wrong with it."""
    columns = run.settings.get("columns")
    field, fix = "columns", 'say in the recipe: columns = { code = "...", speedup = "...", problem = "..." }'
    if not isinstance(columns, dict) or "code" not in columns or "speedup" not in columns:
        message = "the format 'measurements' needs columns for code and speedup"
    else:
        unknown = next((str(name) for name in columns if name not in COLUMNS), None)
        if unknown is None:
            return {str(ours): str(theirs) for ours, theirs in columns.items()}
        near = difflib.get_close_matches(unknown, COLUMNS, n=1)
        message = "no such column" + (f"; did you mean {near[0]!r}?" if near else "")
        field, fix = f"columns.{printable(unknown)}", f"one of: {', '.join(COLUMNS)}"
    return Finding(code="bad-columns", message=message, file=run.name(run.path), field=field, fix=fix)


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per row with code and speedup, the counts of the others, and what was wrong."""
    if not run.path.is_file():
        yield wrong_format(run, MEASUREMENTS)
        return
    columns = _columns(run)
    if isinstance(columns, Finding):
        yield columns
        return
    report = Report()
    table = _Table(run, run.path, report)
    table.columns = columns
    rows = table_rows(run, run.path, report)
    head = list(islice(rows, _HEAD_ROWS))
    if not head:
        yield from nothing_read(run, MEASUREMENTS, run.path, report)
        return
    # Rows of JSON lines may leave the key of a missing value out.
    present = {name for _, row in head for name in row}
    for ours, theirs in columns.items():
        if theirs not in present:
            message = f"the table has no column {printable(theirs)}"
            fix = f"its columns are: {', '.join(printable(c, 40) for c in sorted(present)[:30])}"
            yield Finding(code="wrong-format", message=message, file=table.file, field=f"columns.{ours}", fix=fix)
            return
    for number, row in chain(head, rows):
        table.take(number, row)
    yield from table.records()


MEASUREMENTS: Final = ReaderSpec(
    name="measurements",
    title="A table of independent measurements, with a mapping from our column names to its own",
    expects="files (Parquet, CSV or JSON lines); the recipe's columns must name code and speedup",
    files=(),
    version=2,
    records=_records,
)
