"""Rows that somebody else measured, judged: what a row says becomes an evaluation, and what contradicts itself is doubted.

A missing value (null, empty, NaN, or a text such as ``None``) is missing, never 0: a row without code or speedup is counted,
said and left out. :class:`Judged` refuses rows that contradict themselves, and says which; rows of every foreign format pass it.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final, get_args

from kernel_archive.errors import Finding, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import kernelbench_id
from kernel_archive.readers.mapping import (
    ABSENT,
    US_PER_UNIT,
    From,
    Join,
    filled,
    inside,
    lookup,
)
from kernel_archive.readers.reading import Reading
from kernel_archive.readers.records import Evaluation, Outcome
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text, natural, not_negative, positive, step_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record
    from kernel_archive.readers.report import Report

__all__ = ["DOUBTFUL_RATIO", "REFUSED_RATIO", "Judged", "is_missing", "judged", "truth", "whatever_counts"]


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
        ("gpu", "parent_node_id", "error_type", "error_text", "model", "started_at", "completed_at", "search"), _text
    ),
    "step": _number(step_number),
    "input_tokens": _number(natural),
    "output_tokens": _number(natural),
    "gpu_seconds": _number(not_negative),
}
_MISSING: Final = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>"})
_OUTCOMES: Final = frozenset(get_args(Outcome))
_TRUE: Final = frozenset({"true", "correct", "passed", "pass", "ok", "yes", "1", "1.0"})
_FALSE: Final = frozenset({"false", "incorrect", "failed", "fail", "no", "0", "0.0"})
#: What loops say of a program that they go on from.
_KEPT: Final = frozenset({*_TRUE, "keep", "kept", "accept", "accepted", "best", "improved", "baseline"})
#: Columns of theirs that would say that a row is no success, if the recipe mapped them.
_VERDICTS: Final = frozenset(
    {"correct", "is_correct", "iscorrect", "correctness", "passed", "pass", "success", "succeeded", "valid", "is_valid"}
)
_GPU_KEYS: Final = frozenset({"gpu", "gpu_name", "gpu_type", "hardware", "device", "device_name"})
#: A speedup further from the ratio of its own times is doubted; one further than the second is not taken.
DOUBTFUL_RATIO: Final = 1.02
REFUSED_RATIO: Final = 1.20
#: A text that is no program but the name of one: an id, a number, a path.
_NAME: Final = re.compile(r"[\w./\\:@+-]{1,300}|[^\n]{1,300}\.(?:py|cu|cuh|cpp|cc|hip|txt|triton|ptx)")
#: Codes of findings for which rows do not count.
_REFUSALS: Final = (
    "no-program", "no-code-file", "bad-path", "speedup-contradicted", "unmapped-failure", "two-gpus", "unknown-outcome",
)  # fmt: skip
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
    return True if word in _TRUE else False if word in _FALSE else None


class Judged(Reading):
    """The rows of one table, and its doubts: one finding for all rows of a kind."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.columns: dict[str, From] = {}
        self.joins: list[tuple[Join, dict[tuple[str, ...], dict[str, Any] | None]]] = []
        #: What a row is called where it stands on no line of its own.
        self.label = ""
        self.root_is_reference = self.run.settings.get("reference") == "root"
        self._doubts: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._roots: dict[tuple[str | None, ...], Evaluation] = {}
        self._kept: dict[tuple[str | None, ...], str] = {}

    # -- cells

    def cell(self, row: dict[str, Any], name: str) -> Any:
        """A cell by our name of its column; ``None`` where it is missing in any spelling."""
        rule = self.columns.get(name)
        if rule is None:
            return None
        value = rule.value if rule.column is None else lookup(row, rule.column)
        return None if is_missing(value) else value

    def _program(self, row: dict[str, Any], line: int | None, name: str) -> Any:
        """The text of a program, in the table or in the file that it names; ``None`` where it is missing."""
        rule = self.columns.get(name)
        if rule is None or rule.file is None:
            return self.cell(row, name)
        path = inside(self.run.root, rule.file, row)
        if path is None:
            if filled(rule.file, row) is not None:
                self.doubt("bad-path", "the name of a file leads out of its folder", line, name, error=True)
            return None
        data = self.run.whole(path) if path.is_file() else None
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else None
        if text is None or is_missing(text):
            message = "the file is empty" if text is not None else "there is no such file, or it cannot be read"
            self.doubt("no-code-file", message, line, name, filled(rule.file, row), error=True)
            return None
        return text

    def _time(self, row: dict[str, Any], name: str) -> float | None:
        """A time in microseconds."""
        value = positive(from_text(self.cell(row, name)))
        return None if value is None else value * US_PER_UNIT[self.columns[name].unit or "us"]

    def doubt(
        self,
        code: str,
        message: str,
        line: int | None,
        name: str | None = None,
        value: object = None,
        fix: str | None = None,
        *,
        error: bool = False,
    ) -> None:
        """Note something wrong with a row: rows of one code and column make one finding, which names the first lines."""
        rule = self.columns.get(name or "")
        field = (rule.column or rule.file) if rule is not None else name
        seen = self._doubts.setdefault(
            (code, field),
            {
                "message": message,
                "value": value,
                "fix": fix,
                "error": error,
                "at": [],
                "n": 0,
                "first": (self.file, line, self.label),
            },
        )
        seen["n"] += 1
        if len(seen["at"]) < _LINES_NAMED:
            seen["at"].append(self.label if line is None else str(line))

    def _odd_references(self) -> None:
        """Doubt speedups that, with their times, imply another time of the reference than the others of their problem and GPU."""
        implied: dict[tuple[str | None, ...], list[tuple[float, Evaluation]]] = {}
        for record in self.found.values():
            if record.speedup and record.runtime_us and record.reference_runtime_us is None:
                of = (record.search, record.problem, record.gpu)
                implied.setdefault(of, []).append((record.speedup * record.runtime_us, record))
        for rows in implied.values():
            usual = median(time for time, _ in rows)
            steady = [time for time, _ in rows if 1 / REFUSED_RATIO <= time / usual <= REFUSED_RATIO]
            if len(steady) < max(3, 0.75 * len(rows)):
                continue  # references of many sizes, or too few rows to tell
            for time, record in rows:
                if not 1 / REFUSED_RATIO <= time / usual <= REFUSED_RATIO:
                    self.file, self.label = record.source_file or self.file, record.node_id
                    message = "speedup times runtime is the reference's time, and here another than in most rows of its problem"
                    fix = "See which of the two is right; map reference_runtime to have every row checked"
                    self.doubt("odd-reference", message, record.source_line, "speedup", record.speedup, fix)

    def finish(self) -> None:
        """Say what was doubted."""
        place = self.file
        self._odd_references()
        self.file = place
        for (code, field), seen in self._doubts.items():
            file, line, label = seen["first"]
            lines = ", ".join(seen["at"]) + (", ..." if seen["n"] > _LINES_NAMED else "")
            what = "in" if line is None else "lines"
            message = seen["message"] + (
                f": {seen['n']:,} rows ({what} {lines})"
                if seen["n"] > 1
                else f": {label}"
                if label and not file.endswith(label)
                else ""
            )
            value = None if seen["value"] is None else str(seen["value"])
            say = self.report.error if seen["error"] else self.report.warning
            say(code, message, file=file, line=line, field=field, value=value, fix=seen["fix"])

    # -- rows

    def take(self, line: int | None, row: dict[str, Any]) -> None:
        """Take in one row; one without code or score is counted."""
        self.count("rows")
        row = self._joined(row, line)
        code = self._program(row, line, "code")
        outcome = self._outcome(row, line)
        if outcome is None:
            return
        timed = outcome == "success"
        times = {name: self._time(row, name) if timed else None for name in ("runtime", "reference_runtime")}
        problem = self._problem_of(row, line)
        family = (_text(self.cell(row, "search")), problem, _text(self.cell(row, "gpu")))
        root = self._roots.get(family) if self.root_is_reference else None
        if self.root_is_reference and times["reference_runtime"] is None:
            times["reference_runtime"] = root.runtime_us if root is not None else times["runtime"]
        given = from_text(self.cell(row, "speedup")) if timed else None
        speedup = positive(given)
        if timed and given is not None and speedup is None:
            self._no_value(row, line, "speedup")
            return
        excluded = None
        if timed:
            speedup, excluded = self._believed(row, line, speedup, times["runtime"], times["reference_runtime"])
        if not self._complete(row, line, code, has_speedup=speedup is not None or not timed):
            return
        if excluded is None and timed and "outcome" not in self.columns:
            excluded = self._denied(row, line)
        node = _text(self.cell(row, "node_id")) or f"row-{line or len(self.found) + 1}"
        if node in self.found:
            self.warning("duplicate-node", "the node id stands twice", line=line, value=node)
            node = f"{node}@{line or len(self.found) + 1}"
        fields: dict[str, Any] = {name: kind(self.cell(row, name)) for name, kind in _FIELDS.items()}
        if fields["gpu_seconds"] is not None:
            fields["gpu_seconds"] *= US_PER_UNIT[self.columns["gpu_seconds"].unit or "s"] / US_PER_UNIT["s"]
        if "kept" in self.columns and fields["parent_node_id"] is None:
            fields["parent_node_id"] = self._kept.get(family)
        if str(self.cell(row, "kept")).strip().casefold() in _KEPT:
            self._kept[family] = node
        record = self.found[node] = Evaluation(
            node_id=node,
            code=code,
            outcome=outcome,
            source_file=self.file,
            source_line=line,
            speedup=speedup,
            runtime_us=times["runtime"],
            reference_runtime_us=times["reference_runtime"],
            is_root=truth(self.cell(row, "is_root")) is True,
            problem=problem,
            reference_code=_text(self._program(row, line, "reference_code")),
            excluded=excluded,
            **fields,
        )
        if self.root_is_reference and timed and excluded is None:
            if root is None:
                root = self._roots[family] = record
                record.is_root = True
            record.reference_code = record.reference_code or root.code

    def _complete(self, row: dict[str, Any], line: int | None, code: Any, *, has_speedup: bool) -> bool:
        """Whether a row has its program and its speedup; if not, it is counted and said."""
        if code is None:
            self.count("rows_without_code")
            if has_speedup:
                self.doubt("no-code", "rows without a program are left out", line, "code")
            else:
                message = "rows with neither a program nor a speedup are left out"
                self.doubt("no-measurement", message, line, fix="Events of another kind need no change")
        if not has_speedup:
            self.count("rows_without_speedup")
            if code is not None:
                self._no_speedup(row, line)
        if code is None or not has_speedup:
            if code is None and not has_speedup:
                self.count("rows_without_code_and_speedup")
            return False
        if not isinstance(code, str):
            self._no_value(row, line, "code")
            return False
        if _NAME.fullmatch(code.strip()) is not None:
            self.count("rows_bad_value")
            theirs = self.columns["code"].column or "name"
            message = "an id or a path stands where the program should be; the rows are left out"
            fix = f'If it names a file: code = {{ file = "{{{theirs}}}" }}, with the folder in front; else map another column'
            self.doubt("no-program", message, line, "code", code.strip(), fix, error=True)
            return False
        return True

    def _no_speedup(self, row: dict[str, Any], line: int | None) -> None:
        """Say that a row without failure has no speedup, and what would give it one."""
        wanted = ("speedup",) if "speedup" in self.columns else ("runtime", "reference_runtime")
        lacks = next((name for name in wanted if positive(from_text(self.cell(row, name))) is None), wanted[0])
        value = self.cell(row, lacks)
        if value is not None:
            fix = "It is no number above 0. Decimals have a point, not a comma"
        elif {"outcome", "correct", "compiled"} & self.columns.keys():
            fix = "They are no failures by their outcome: what lacks is this figure"
            fix += ", the baseline of their problem" * (lacks == "reference_runtime")
        else:
            fix = "If they are failures, map outcome, correct or compiled"
        message = (
            "rows without a speedup are left out"
            if len(wanted) == 1
            else "no speedup without both times: the rows are left out"
        )
        self.doubt("no-speedup", message, line, lacks, value, fix)

    def _no_value(self, row: dict[str, Any], line: int | None, name: str) -> None:
        self.count("rows_bad_value")
        message = "left out: the code is no text, or the speedup no finite number above 0"
        self.warning("bad-value", message, line=line, field=self.columns[name].column, value=self.cell(row, name))

    def _outcome(self, row: dict[str, Any], line: int | None) -> Any:
        """The outcome of a row, from its outcome or its verdicts; ``None``, reported, where it is not known."""
        logged, rule = self.cell(row, "outcome"), self.columns.get("outcome")
        if rule is not None and rule.values is not None and logged is not None:
            words = {key.strip().casefold(): ours for key, ours in rule.values.items()}
            logged = words.get(str(logged).strip().casefold(), logged)
        said = "" if logged is None else str(logged).strip().casefold()
        if said not in _OUTCOMES and logged is not None:
            right = truth(logged)
            if right is None:
                self.count("rows_unknown_outcome")
                message = f"not one of {', '.join(sorted(_OUTCOMES))}; the row is left out"
                fix = f'outcome = {{ column = "{rule.column if rule else ""}", values = {{ "{said}" = "success" }} }}'
                self.error("unknown-outcome", message, line=line, field=rule and rule.column, value=logged, fix=fix)
                return None
            said = "success" if right else "incorrect"
        for name, failure in (("compiled", "compile_failed"), ("correct", "incorrect")):
            value = self.cell(row, name)
            if value is not None and said in ("", "success"):
                right = truth(value)
                if right is None:
                    self.count("rows_unknown_outcome")
                    message = "neither true nor false; the row is left out"
                    self.error("unknown-outcome", message, line=line, field=self.columns[name].column, value=value)
                    return None
                said = said if right else failure
            elif value is None and name in self.columns and said == "":
                said = "runtime_error" if _text(self.cell(row, "error_text")) else said
        return said or "success"

    def _believed(
        self,
        row: dict[str, Any],
        line: int | None,
        speedup: float | None,
        runtime: float | None,
        reference: float | None,
    ) -> tuple[float | None, str | None]:
        """The speedup that counts, and why the row does not count where its figures contradict each other."""
        if runtime is not None and runtime == reference and not self.root_is_reference:
            message = "the candidate's time is exactly the reference's"
            self.doubt(
                "equal-times", message, line, "runtime", runtime, "See whether both come from the same measurement"
            )
        ratio = reference / runtime if runtime is not None and reference is not None else None
        gpu = _text(self.cell(row, "gpu")) or self.run.settings.get("gpu")
        others = [_text(self.cell(row, "reference_gpu"))]
        others += [_joined_gpu(row.get(j.name)) for j, _ in self.joins if self._timed_by(j)]
        other = next((o for o in others if o and gpu and canonical_gpu(o) != canonical_gpu(gpu)), None)
        if other is not None:
            message = f"the candidate was timed on {printable(gpu)}, the reference on another GPU: no ratio of such times counts"
            self.doubt(
                "two-gpus",
                message,
                line,
                "reference_gpu",
                other,
                "Take the reference's time of the same GPU",
                error=True,
            )
            return speedup if speedup is not None else ratio, "its two times come from different GPUs"
        lacks = next(
            (n for n, t in (("runtime", runtime), ("reference_runtime", reference)) if n in self.columns and t is None),
            None,
        )
        if speedup is not None and lacks is not None:
            message = "a time that the recipe maps is missing: the speedup counts unchecked"
            self.doubt(
                "unchecked-speedup",
                message,
                line,
                lacks,
                fix="Give the time, or take the column of times out of the recipe",
            )
        if speedup is None or ratio is None or self.run.settings.get("speedup_from") == "times":
            return (ratio if ratio is not None else speedup), None
        off = max(speedup / ratio, ratio / speedup)
        if off <= DOUBTFUL_RATIO or self.run.settings.get("speedup_from") == "column":
            return speedup, None
        inverse = max(speedup * ratio, 1 / (speedup * ratio)) <= DOUBTFUL_RATIO
        hint = "; it is the inverse of their ratio" if inverse else ""
        hint = hint or next(
            (f"; the times seem off by {n:,}x: a unit?" for n in (1000, 1_000_000) if 0.5 < off / n < 2), ""
        )
        message = f"the speedup is not the ratio of the row's two times ({ratio:.4g}){hint}"
        fix = 'Say which counts: speedup_from = "times" or "column" in the [[source]]'
        refused = off > REFUSED_RATIO
        code = "speedup-contradicted" if refused else "speedup-doubtful"
        self.doubt(
            code, message + (" and does not count" if refused else ""), line, "speedup", speedup, fix, error=refused
        )
        return speedup, "its speedup contradicts the ratio of its times" if refused else None

    def _timed_by(self, join: Join) -> bool:
        """Whether a time comes from a joined table."""
        rules = (self.columns.get(name) for name in ("runtime", "reference_runtime"))
        return any(rule is not None and str(rule.column).startswith(join.name + ".") for rule in rules)

    def _denied(self, row: dict[str, Any], line: int | None) -> str | None:
        """Why a row is no success although the recipe maps no outcome: a column of its own says so."""
        mapped = {rule.column for rule in self.columns.values()}
        for key, value in row.items():
            if key not in mapped and key.casefold() in _VERDICTS and not is_missing(value) and truth(value) is False:
                message = "the row says that it failed, and the recipe maps no outcome; the rows do not count"
                fix = f'Map it: outcome = "{printable(key)}"'
                self.doubt("unmapped-failure", message, line, key, value, fix, error=True)
                return f"its column {printable(key)} says that it failed"
        return None

    def _problem_of(self, row: dict[str, Any], line: int | None) -> str | None:
        """The problem's name, or its KernelBench level and number."""
        level, number = (natural(from_text(self.cell(row, name))) for name in ("level", "number"))
        name = _text(self.cell(row, "problem"))
        if name is None and level is not None and number is not None:
            return kernelbench_id(level, number)
        if name is None and (level is not None or number is not None):
            self.warning("bad-value", "level and number of a problem come together", line=line)
        return name

    # -- joins

    def load_joins(self, joins: Iterable[Join]) -> None:
        """Read the second tables: key -> row, ``None`` for a key that stands twice."""
        self.joins = []
        for join in joins:
            path = self.run.root / join.path
            found: dict[tuple[str, ...], dict[str, Any] | None] = {}
            for line, row in table_rows(self.run, path, self.report, at=join.rows):
                key = _key(row, join.on.values())
                if key in found:
                    message = "the key stands twice in the joined table: rows with it get nothing from it"
                    where = {"file": self.run.name(path), "line": line, "field": ", ".join(join.on.values())}
                    self.report.error("join-ambiguous", message, value=", ".join(key), **where)
                    found[key] = None
                elif key is not None:
                    found[key] = row
            self.joins.append((join, found))

    def _joined(self, row: dict[str, Any], line: int | None) -> dict[str, Any]:
        """A row with the rows of the other tables that belong to it."""
        for join, rows in self.joins:
            key = _key(row, join.on)
            partner = rows.get(key) if key is not None else None
            if partner is None:
                self.count("rows_without_partner")
                message = f"no row of {join.path} belongs to it"
                self.doubt("no-partner", message, line, ", ".join(join.on), key and ", ".join(key))
            else:
                row = {**row, join.name: partner}
        return row


def _key(row: dict[str, Any], names: Iterable[str]) -> tuple[str, ...] | None:
    """The values that rows are joined by; 1, 1.0 and "1" are one. ``None`` where one is missing."""
    values = [lookup(row, name) for name in names]
    if any(map(is_missing, values)):
        return None
    return tuple(str(int(n) if isinstance(n, float) and n.is_integer() else n).strip() for n in map(from_text, values))


def _joined_gpu(partner: Any) -> str | None:
    """The GPU that a joined row names."""
    values = (
        (value for key, value in partner.items() if key.casefold() in _GPU_KEYS) if isinstance(partner, dict) else ()
    )
    return next((text for value in values if (text := _text(value)) and not is_missing(text)), None)


def judged(
    run: RunFiles, path: Path, report: Report, columns: dict[str, From], rows: Iterable[tuple[Any, dict[str, Any]]]
) -> Iterator[Record]:
    """The records of rows that a format has brought into columns, doubted as those of every table are.

    Args:
        run: the run.
        path: the file that they come from.
        report: takes the findings.
        columns: where our columns are in a row.
        rows: line, or the file that a row is in where it has no line, and the row; rows of one such file are called by
            their node.
    """
    table = Judged(run, path, report)
    table.columns = columns
    for place, row in rows:
        if isinstance(place, int):
            table.take(place, row)
        else:
            table.file = run.name(place)
            table.label = str(row.get("node_id")) if place == path else place.name
            table.take(None, row)
    table.finish()
    yield from whatever_counts(table)


def whatever_counts(table: Judged) -> Iterator[Record]:
    """The records of a table; where every row was refused, the findings alone."""
    report = table.report
    refused = [f.code for f in report.of(*_REFUSALS)]
    if refused and all(record.excluded is not None for record in table.found.values()):
        yield from report
        message = f"none of its {table.facts.counts['rows']:,} rows counts: {', '.join(sorted(set(refused)))}"
        yield Finding(code="nothing-counts", message=message, file=table.file, fix="Correct the recipe; see above")
        return
    yield from table.records()
