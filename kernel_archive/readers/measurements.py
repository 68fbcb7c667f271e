"""``measurements``: a table of independent measurements that somebody else made, and the judge of the rows of every such format.

The recipe says where each of our columns comes from (:mod:`kernel_archive.readers.mapping`). What a row says becomes an evaluation,
and what contradicts itself is doubted (:mod:`kernel_archive.readers.doubts`). A missing value (null, empty, NaN, or a text such as
``None``) is missing, never 0: a row without code or speedup is counted, said and left out.
"""

from __future__ import annotations

import json
import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from kernel_archive.errors import Finding, printable, suggestion
from kernel_archive.problems import kernelbench_id
from kernel_archive.readers.doubts import Doubted
from kernel_archive.readers.files import ReaderSpec, is_file
from kernel_archive.readers.mapping import US_PER_UNIT, From, Join, columns_of, filled, inside, names_in
from kernel_archive.readers.records import Evaluation, Outcome
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import (
    ABSENT,
    TRUE,
    failure_of,
    from_text,
    lookup,
    natural,
    not_negative,
    positive,
    quantity,
    spelled,
    step_number,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record
    from kernel_archive.readers.tables import Row


def _number(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reads a number of a kind that may be spelled as text."""
    return lambda value: kind(from_text(value))


#: Columns that become a field of the evaluation, and how each is read.
_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        ("gpu", "parent_node_id", "error_type", "error_text", "model", "started_at", "completed_at", "search"), spelled
    ),
    "step": _number(step_number),
    "input_tokens": _number(natural),
    "output_tokens": _number(natural),
    "gpu_seconds": _number(not_negative),
}
_OUTCOMES: Final = frozenset(get_args(Outcome))
#: What loops say of a program that they go on from.
_KEPT: Final = frozenset({*TRUE, "keep", "kept", "accept", "accepted", "best", "improved", "baseline"})
#: A text that is no program but the name of one: an id, a number, a path.
_NAME: Final = re.compile(r"[\w./\\:@+-]{1,300}|[^\n]{1,300}\.(?:py|cu|cuh|cpp|cc|hip|txt|triton|ptx)")
#: Rows among which every column must be seen.
_HEAD_ROWS: Final = 100
#: Words of outcomes that one finding names.
_WORDS_NAMED: Final = 8
#: Codes of findings for which rows do not count.
_REFUSALS: Final = (
    "no-program", "no-code-file", "bad-path", "speedup-contradicted", "unmapped-failure", "two-gpus", "unknown-outcome",
)  # fmt: skip


class Judged(Doubted):
    """The rows of one table, and what each comes to."""

    def __init__(self, run: RunFiles, path: Path, report: Report, columns: dict[str, From]) -> None:
        super().__init__(run, path, report, columns)
        self._roots: dict[tuple[str | None, ...], Evaluation] = {}
        self._kept: dict[tuple[str | None, ...], str] = {}
        #: Words of outcomes that are not known, and how they are first spelled.
        self._unknown: dict[str, str] = {}

    def _unknown_outcomes(self) -> None:
        """Name every word of an outcome that is not known, with the failure that it seems to say: never a success."""
        rule = self.columns.get("outcome")
        seen = self._doubts.get(("unknown-outcome", rule.column)) if rule is not None else None
        if rule is None or seen is None or not self._unknown:
            return
        seen.value = ", ".join(printable(word, 40) for word in list(self._unknown.values())[:_WORDS_NAMED])
        guessed = {word: failure_of(word) or "?" for word in list(self._unknown)[:_WORDS_NAMED]}
        words = ", ".join(f"{json.dumps(printable(word, 40))} = {json.dumps(is_)}" for word, is_ in guessed.items())
        known = "".join(f"{json.dumps(word)} = {json.dumps(is_)}, " for word, is_ in (rule.values or {}).items())
        seen.fix = f"If this is what they mean: outcome = {{ column = {json.dumps(rule.column)}, values = {{ {known}{words} }} }}"
        if "?" in guessed.values():
            seen.fix += ', with a failure, or "success" for a correct program that was timed, for each "?"'

    def judge(self, rows: Iterable[tuple[int | Path, dict[str, Any]]]) -> Iterator[Record]:
        """The records of all rows; where every row was refused, the findings alone.

        With each row comes its line, or the file that it is in where it has no line; rows of one such file are called by their node.
        """
        own = self.file
        for place, row in rows:
            if isinstance(place, int):
                self.take(place, row)
            else:
                self.file = self.run.name(place)
                self.label = str(row.get("node_id")) if self.file == own else place.name
                self.take(None, row)
        self.finish()
        refused = [f.code for f in self.report.of(*_REFUSALS)]
        if refused and all(record.excluded is not None for record in self.found.values()):
            yield from self.report
            message = f"none of its {self.facts.counts['rows']:,} rows counts: {', '.join(sorted(set(refused)))}"
            yield Finding(code="nothing-counts", message=message, file=self.file, fix="Correct the recipe; see above")
        else:
            yield from self.records()

    def finish(self) -> None:
        """Say what was doubted."""
        place = self.file
        self.odd_references()
        self._unknown_outcomes()
        self.file = place
        if left := self.facts.counts.get("rows", 0) - len(self.found):
            self.count("rows_left_out", left)
        super().finish()

    # -- rows

    def take(self, line: int | None, row: dict[str, Any]) -> None:
        """Take in one row; one without code or score is counted."""
        self.row, self.line = row, line
        self.count("rows")
        named = self.columns["code"].file
        if named is not None and not names_in(named) and self.facts.counts["rows"] > 1:
            message = "one file is the program of one row; the others are left out"
            fix = 'Say which column names the file of a row: code = { file = "kernels/{column}" }'
            self.doubt("one-program", message, "code", named, fix, error=True)
            return
        self.row = self.joined(row)
        code = self.program("code")
        problem = self._problem_of()
        family = (spelled(self.cell("search")), problem, spelled(self.cell("gpu")))
        kept, last = str(self.cell("kept")).strip().casefold() in _KEPT, self._kept.get(family)
        if kept:  # and where this row is left out, what follows was made from no row that is known
            self._kept.pop(family, None)
        outcome = self._outcome()
        if outcome is None:
            return
        timed = outcome == "success"
        times = {name: self.time(name) if timed else None for name in ("runtime", "reference_runtime")}
        root = self._roots.get(family) if self.root_is_reference else None
        if self.root_is_reference and times["reference_runtime"] is None:
            times["reference_runtime"] = root.runtime_us if root is not None else times["runtime"]
        given, unit = quantity(self.cell("speedup")) if timed else (None, None)
        speedup = positive(given) if unit in (None, "x") else None
        if timed and given is not None and speedup is None:
            self._no_value("speedup")
            return
        excluded = None
        if timed:
            speedup, excluded = self.believed(speedup, times["runtime"], times["reference_runtime"])
        if not self._complete(code, has_speedup=speedup is not None or not timed):
            return
        if excluded is None and timed and "outcome" not in self.columns:
            excluded = self.denied()
        excluded = excluded or self.elsewhere()
        if not timed:
            self.fast_failure(root)
        self.repeated()
        if timed:
            self.sized((family, hash(code)))
        named = spelled(self.cell("node_id"))
        node = named or f"row-{line or len(self.found) + 1}"
        if named in self.found:
            self.warning("duplicate-node", "the node id stands twice", line=line, value=node)
            node = f"{node}@{line or len(self.found) + 1}"
        if node in self.found:  # several rows of one line
            node = f"{node}.{len(self.found) + 1}"
        fields: dict[str, Any] = {name: kind(self.cell(name)) for name, kind in _FIELDS.items()}
        if fields["gpu_seconds"] is not None:
            fields["gpu_seconds"] *= US_PER_UNIT[self.columns["gpu_seconds"].unit or "s"] / US_PER_UNIT["s"]
        if "kept" in self.columns and fields["parent_node_id"] is None:
            fields["parent_node_id"] = last
        if kept:
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
            is_root=truth(self.cell("is_root")) is True,
            problem=problem,
            reference_code=spelled(self.program("reference_code")),
            excluded=excluded,
            **fields,
        )
        if self.root_is_reference and timed and excluded is None:
            if root is not None and root.runtime_us == record.runtime_us and root.code != record.code:
                self.equal_times()
            if root is None:
                root = self._roots[family] = record
                record.is_root = True
            record.reference_code = record.reference_code or root.code

    def _complete(self, code: Any, *, has_speedup: bool) -> bool:
        """Whether a row has its program and its speedup; if not, it is counted and said."""
        if code is None:
            self.count("rows_without_code")
            named = self.columns["code"].file
            said_of_the_file = named is not None and filled(named, self.row) is not None
            if not said_of_the_file and has_speedup:
                self.doubt("no-code", "rows without a program are left out", "code")
            elif not said_of_the_file:
                message = "rows with neither a program nor a speedup are left out"
                self.doubt("no-measurement", message, fix="Events of another kind need no change")
        if not has_speedup:
            self.count("rows_without_speedup")
            if code is not None:
                self._no_speedup()
            else:
                self.count("rows_without_code_and_speedup")
        if code is None or not has_speedup:
            return False
        if not isinstance(code, str):
            self._no_value("code")
            return False
        if _NAME.fullmatch(code.strip()) is not None:
            self.count("rows_bad_value")
            theirs = self.columns["code"].column or "name"
            message = "an id or a path stands where the program should be; the rows are left out"
            fix = f'If it names a file: code = {{ file = "{{{theirs}}}" }}, with the folder in front; else map another column'
            self.doubt("no-program", message, "code", code.strip(), fix, error=True)
            return False
        return True

    def _no_speedup(self) -> None:
        """Say that a row without failure has no speedup, and what would give it one."""
        wanted = ("speedup",) if "speedup" in self.columns else ("runtime", "reference_runtime")
        lacking = [
            name
            for name in dict.fromkeys((*wanted, "runtime", "reference_runtime"))
            if (name in wanted or name in self.columns) and positive(quantity(self.cell(name))[0]) is None
        ]
        lacks = next((name for name in lacking if self.cell(name) is not None), (lacking or wanted)[0])
        value = self.cell(lacks)
        if value is not None:
            fix = "It is no number above 0. Decimals have a point, not a comma"
        elif {"outcome", "correct", "compiled"} & self.columns.keys():
            fix = "They are no failures by their outcome: what lacks is this figure"
            fix += ", the baseline of their problem" * (lacks == "reference_runtime")
        else:
            fix = "If they are failures, map outcome, correct or compiled"
        alone = "rows without a speedup are left out"
        message = alone if len(wanted) == 1 else "no speedup without both times: the rows are left out"
        self.doubt("no-speedup", message, lacks, value, fix)

    def _no_value(self, name: str) -> None:
        self.count("rows_bad_value")
        message = "left out: the code is no text, or the speedup no finite number above 0"
        self.warning("bad-value", message, line=self.line, field=self.columns[name].column, value=self.cell(name))

    def _outcome(self) -> Any:
        """The outcome of a row, from its outcome or its verdicts; ``None``, reported, where it is not known."""
        logged, rule = self.cell("outcome"), self.columns.get("outcome")
        if rule is not None and rule.values is not None and logged is not None:
            words = {key.strip().casefold(): ours for key, ours in rule.values.items()}
            logged = words.get(str(logged).strip().casefold(), logged)
        said = "" if logged is None else str(logged).strip().casefold()
        if said not in _OUTCOMES and logged is not None:
            right = truth(logged)
            if right is None:
                self._unknown.setdefault(said, str(logged))
                return self._no_outcome("outcome", logged, f"not one of {', '.join(sorted(_OUTCOMES))}")
            said = "success" if right else "incorrect"
        for name, failure in (("compiled", "compile_failed"), ("correct", "incorrect")):
            value = self.cell(name)
            if value is not None and said in ("", "success"):
                right = truth(value)
                if right is None:
                    return self._no_outcome(name, value, "neither true nor false")
                said = said if right else failure
            elif value is None and name in self.columns and said == "":
                said = "runtime_error" if spelled(self.cell("error_text")) else said
        return said or "success"

    def _no_outcome(self, name: str, value: Any, message: str) -> None:
        self.count("rows_unknown_outcome")
        self.doubt("unknown-outcome", f"{message}; the rows are left out", name, value, error=True)

    def _problem_of(self) -> str | None:
        """The problem's name, or its KernelBench level and number."""
        level, number = (natural(from_text(self.cell(name))) for name in ("level", "number"))
        name = spelled(self.cell("problem"))
        if name is None and level is not None and number is not None:
            return kernelbench_id(level, number)
        if name is None and (level is not None or number is not None):
            self.warning("bad-value", "level and number of a problem come together", line=self.line)
        return name


def _joins_of(run: RunFiles) -> list[Join]:
    return msgspec.convert(msgspec.to_builtins(run.settings.get("join") or []), list[Join])


def _also(run: RunFiles) -> Iterator[Path]:
    """The further files that a run is read from: joined tables, and programs that the table names."""
    joins = _joins_of(run)
    yield from (run.root / join.path for join in joins if (run.root / join.path).is_file())
    columns = columns_of(run.settings.get("columns"), "", run.settings.get("reference"))
    files = [] if isinstance(columns, Finding) else [rule.file for rule in columns.values() if rule.file is not None]
    if files and run.path.is_file():
        table = Judged(run, run.path, Report(), {})
        table.load_joins(join for join in joins if (run.root / join.path).is_file())
        for _, row in table_rows(run, run.path, Report(), at=run.settings.get("rows")):
            for template in files:
                path = inside(run.root, template, table.joined(row))
                if path is not None and is_file(path):
                    yield path


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per row with code and speedup, the counts of the others, and what was wrong."""
    if not run.path.is_file():
        yield wrong_format(run, MEASUREMENTS)
        return
    columns = columns_of(run.settings.get("columns"), run.name(run.path), run.settings.get("reference"))
    if isinstance(columns, Finding):
        yield columns
        return
    report = Report()
    table = Judged(run, run.path, report, columns)
    table.load_joins(_joins_of(run))
    rows = table_rows(run, run.path, report, at=run.settings.get("rows"))
    head = list(islice(rows, _HEAD_ROWS))
    if not head and any(report.of("wrong-format")):
        yield from report
        return
    if not head:
        yield from nothing_read(run, MEASUREMENTS, run.path, report)
        return
    fault = _missing_column(table, head)
    if fault is not None:
        yield fault
        return
    yield from table.judge(chain(head, rows))


def _missing_column(table: Judged, head: list[Row]) -> Finding | None:
    """The first column of the mapping that no row of the head has. Rows of JSON lines may leave a missing value's key out."""
    sample = [row for _, row in head]
    known = {join.name: next((row for row in rows.values() if row), {}) for join, rows in table.joins}
    read = [(ours, theirs) for ours, rule in table.columns.items() for theirs in rule.wanted]
    for ours, theirs in read:
        if all(lookup({**row, **known}, theirs) is ABSENT for row in sample):
            joined = {f"{name}.{key}" for name, row in known.items() for key in row}
            present = sorted(joined.union(*sample))
            near = suggestion(theirs, present)
            listed = f"its columns are: {', '.join(printable(c, 40) for c in present[:30])}"
            fix = f"{near} T{listed[1:]}" if near.startswith("Did") else listed
            message = f"the table has no column {printable(theirs)}"
            return Finding(code="wrong-format", message=message, file=table.file, field=f"columns.{ours}", fix=fix)
    return None


MEASUREMENTS: Final = ReaderSpec(
    name="measurements",
    title="A table of independent measurements, with a mapping from our column names to its own",
    expects="files (Parquet, CSV, TSV, JSON or JSON lines); the recipe's columns must name code and a speedup, times or outcomes",
    files=(),
    version=7,
    records=_records,
    also=_also,
    foreign=True,
)
