"""Somebody else's table, cell by cell: values in any spelling, programs in files, joined rows, and doubts about them.

What a row comes to is judged in :mod:`kernel_archive.readers.judged`.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.gpus import GPU_KEYS
from kernel_archive.readers.mapping import ABSENT, US_PER_UNIT, From, Join, filled, inside, lookup, names_in
from kernel_archive.readers.reading import Reading
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text, positive

if TYPE_CHECKING:
    from collections.abc import Iterable

_MISSING: Final = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>"})
TRUE: Final = frozenset({"true", "correct", "passed", "pass", "ok", "yes", "y", "1", "1.0"})
_FALSE: Final = frozenset({"false", "incorrect", "failed", "fail", "no", "n", "0", "0.0"})
#: A number with its unit, as people print them.
_QUANTITY: Final = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(ns|us|\u00b5s|\u03bcs|ms|s|sec|x|\u00d7)")
_SPELLED_UNITS: Final = {"\u00b5s": "us", "\u03bcs": "us", "sec": "s", "\u00d7": "x"}
_MOST_DIGITS: Final = 40
#: What a word of an outcome says of how a program failed, the plainest first.
_FAILURES: Final = (
    (None, r"(?<![a-z])(ok|pass(ed)?|success(ful)?|succeeded|correct|valid|good|not?|no_?error)(?![a-z])"),
    ("compile_failed", r"compil|build|syntax|nvcc"),
    ("infrastructure_failure", r"infra|cancel|preempt"),
    ("incorrect", r"wrong|incorrect|mismatch|assert|numeric|verif|accura|toleran|correctness"),
    (
        "runtime_error",
        r"crash|\btle\b|time_?out|timed_?out|oom|memory|exception|runtime|launch|seg|hang|abort|illegal|error",
    ),
    ("incorrect", r"fail|invalid"),
)
#: Lines named in one finding about many rows.
_LINES_NAMED: Final = 5


def is_missing(value: Any) -> bool:
    """Whether a cell is missing, in any spelling."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or value is ABSENT or (isinstance(value, str) and value.strip().casefold() in _MISSING)


def truth(value: Any) -> bool | None:
    """A boolean in any spelling; ``None`` for what is none.

    >>> truth("True"), truth(0), truth("maybe")
    (True, False, None)
    """
    word = str(value).strip().casefold()
    return True if word in TRUE else False if word in _FALSE else None


def failure_of(word: str) -> str | None:
    """The failure that a word says; ``None`` where it says none, or that all went well.

    >>> failure_of("FAIL_NUMERIC"), failure_of("FAIL_BUILD"), failure_of("build ok"), failure_of("slower")
    ('incorrect', 'compile_failed', None, None)
    """
    return next((outcome for outcome, said in _FAILURES if re.search(said, word.casefold())), None)


def quantity(value: Any) -> tuple[Any, str | None]:
    """A number that may be spelled as text, and the unit that the text states: s, ms, us, ns, or x.

    >>> quantity("12.3 us"), quantity("0.5"), quantity("1.8x"), quantity("fast")
    ((12.3, 'us'), (0.5, None), (1.8, 'x'), ('fast', None))
    """
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) and len(value) < _MOST_DIGITS else None
    return (from_text(value), None) if match is None else (from_text(match[1]), _SPELLED_UNITS.get(match[2], match[2]))


def spelled(value: Any) -> str | None:
    """A value that is a text, a number or a time, as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None


class Doubt(msgspec.Struct):
    """What is wrong with rows of one kind: said once, of the first one, with the first lines (``at``) and their number."""

    message: str
    value: object
    fix: str | None
    error: bool
    file: str
    line: int | None
    label: str
    n: int = 0
    at: list[str] = []


class Table(Reading):
    """The rows of one table, and what was doubted of them: one finding for all rows of a kind."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.columns: dict[str, From] = {}
        self.joins: list[tuple[Join, dict[tuple[str, ...], dict[str, Any] | None]]] = []
        #: The row that is taken in, its line, and what it is called where it stands on no line of its own.
        self.row: dict[str, Any] = {}
        self.line: int | None = None
        self.label = ""
        self._doubts: dict[tuple[str, str | None], Doubt] = {}

    # -- cells

    def cell(self, name: str) -> Any:
        """A cell by our name of its column; ``None`` where it is missing in any spelling."""
        rule = self.columns.get(name)
        if rule is None:
            return None
        value = rule.value if rule.column is None else lookup(self.row, rule.column)
        if rule.column is None and isinstance(value, str) and names_in(value):
            value = filled(value, self.row)
        return None if is_missing(value) else value

    def program(self, name: str) -> Any:
        """The text of a program, in the table or in the file that it names; ``None`` where it is missing."""
        rule = self.columns.get(name)
        if rule is None or rule.file is None:
            return self.cell(name)
        path = inside(self.run.root, rule.file, self.row)
        if path is None:
            if (said := filled(rule.file, self.row)) is not None:
                self.doubt("bad-path", "the name of a file leads out of its folder", name, said, error=True)
            return None
        data = self.run.whole(path) if path.is_file() else None
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else None
        if text is None or is_missing(text):
            message = "the file is empty" if text is not None else "there is no such file, or it cannot be read"
            self.doubt("no-code-file", message, name, filled(rule.file, self.row), error=True)
            return None
        return text

    def time(self, name: str) -> float | None:
        """A time in microseconds; the unit that a cell states itself counts."""
        number, unit = quantity(self.cell(name))
        value = positive(number) if unit != "x" else None
        return None if value is None else value * US_PER_UNIT[unit or self.columns[name].unit or "us"]

    def doubt(
        self,
        code: str,
        message: str,
        name: str | None = None,
        value: object = None,
        fix: str | None = None,
        *,
        error: bool = False,
        theirs: bool = False,
    ) -> None:
        """Note something wrong with a row: rows of one code and column make one finding, which names the first lines; ``name`` is our column's, or ``theirs``."""
        rule = None if theirs else self.columns.get(name or "")
        field = (rule.column or rule.file) if rule is not None else name
        seen = self._doubts.get((code, field))
        if seen is None:
            seen = self._doubts[code, field] = Doubt(message, value, fix, error, self.file, self.line, self.label)
        seen.n += 1
        if len(seen.at) < _LINES_NAMED:
            seen.at.append(self.label if self.line is None else str(self.line))

    def finish(self) -> None:
        """Say what was doubted."""
        for (code, field), seen in self._doubts.items():
            message = seen.message
            if seen.n > 1:
                lines = ", ".join(seen.at) + (", ..." if seen.n > _LINES_NAMED else "")
                message += f": {seen.n:,} rows ({'in' if seen.line is None else 'lines'} {lines})"
            elif seen.label and not seen.file.endswith(seen.label):
                message += f": {seen.label}"
            value = None if seen.value is None else str(seen.value)
            say = self.report.error if seen.error else self.report.warning
            say(code, message, file=seen.file, line=seen.line, field=field, value=value, fix=seen.fix)

    # -- joins

    def load_joins(self, joins: Iterable[Join]) -> None:
        """Read the second tables: key -> row, ``None`` for a key that stands twice."""
        self.joins = []
        for join in joins:
            path = self.run.root / join.path
            found: dict[tuple[str, ...], dict[str, Any] | None] = {}
            for line, row in table_rows(self.run, path, self.report, at=join.rows):
                key = key_of(row, join.on.values())
                if key in found:
                    message = "the key stands twice in the joined table: rows with it get nothing from it"
                    where = {"file": self.run.name(path), "line": line, "field": ", ".join(join.on.values())}
                    self.report.error("join-ambiguous", message, value=", ".join(key), **where)
                    found[key] = None
                elif key is not None:
                    found[key] = row
            self.joins.append((join, found))

    def joined(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the rows of the other tables that belong to it."""
        for join, rows in self.joins:
            key = key_of(row, join.on)
            partner = rows.get(key) if key is not None else None
            if partner is None:
                self.count("rows_without_partner")
                message = f"no row of {join.path} belongs to it"
                self.doubt("no-partner", message, ", ".join(join.on), key and ", ".join(key))
            else:
                row = {**row, join.name: partner}
        return row


def key_of(row: dict[str, Any], names: Iterable[str]) -> tuple[str, ...] | None:
    """The values that rows are joined by; 1, 1.0 and "1" are one. ``None`` where one is missing."""
    values = [lookup(row, name) for name in names]
    if any(map(is_missing, values)):
        return None
    return tuple(str(int(n) if isinstance(n, float) and n.is_integer() else n).strip() for n in map(from_text, values))


def joined_gpu(partner: Any) -> str | None:
    """The GPU that a joined row names."""
    values = (
        (value for key, value in partner.items() if key.casefold() in GPU_KEYS) if isinstance(partner, dict) else ()
    )
    return next((text for value in values if (text := spelled(value)) and not is_missing(text)), None)
