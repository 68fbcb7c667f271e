"""Somebody else's table, row by row: cells, programs in files, joined rows, and what is doubted of them.

Doubted are figures that contradict each other, and columns that nothing is read from. What a row comes to is judged in
:mod:`kernel_archive.readers.measurements`.
"""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.gpus import GPU_KEYS, canonical_gpu, gpu_in, same_gpu
from kernel_archive.readers.files import is_file
from kernel_archive.readers.mapping import US_PER_UNIT, From, Join, filled, inside, names_in
from kernel_archive.readers.reading import Reading
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import is_missing, key_of, lookup, object_of, positive, quantity, spelled, truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation
    from kernel_archive.readers.salvage import Report

#: Columns of theirs that would say that a row is no success, if the recipe mapped them.
_VERDICTS: Final = frozenset(
    {"correct", "is_correct", "iscorrect", "correctness", "passed", "pass", "success", "succeeded", "valid", "is_valid"}
)
#: What the same program is measured with.
_SHAPES: Final = re.compile(
    r"((input|tensor|problem)_?)?(shapes?|sizes?|dims?|dimensions)|d_?type|batch(_?size)?|seq_?len(gth)?|hidden(_?(size|dim))?",
    re.IGNORECASE,
)
#: A speedup further from the ratio of its own times is doubted; one further than the second is not taken.
DOUBTFUL_RATIO: Final = 1.02
REFUSED_RATIO: Final = 1.20
#: Lines named in one finding about many rows.
_LINES_NAMED: Final = 5


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


class Doubted(Reading):
    """The rows of one table, held against themselves and each other: one finding for all rows that are doubted alike."""

    def __init__(self, run: RunFiles, path: Path, report: Report, columns: dict[str, From]) -> None:
        super().__init__(run, path, report)
        self.columns = columns
        self.joins: list[tuple[Join, dict[tuple[str, ...], dict[str, Any] | None]]] = []
        #: The row that is taken in, its line, and what it is called where it stands on no line of its own.
        self.row: dict[str, Any] = {}
        self.line: int | None = None
        self.label = ""
        self.root_is_reference = self.run.settings.get("reference") == "root"
        self._doubts: dict[tuple[str, str | None], Doubt] = {}
        self._seen: set[int] = set()
        self._sizes: dict[Any, dict[str, Any]] = {}

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
        data = self.run.whole(path) if is_file(path) else None
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

    # -- doubts

    def repeated(self) -> None:
        """Doubt a row that is like one before it in everything."""
        mark = hash(repr(self.row))
        if mark in self._seen:
            message = "a row is an exact copy of one before it, and counts as a further measurement"
            self.doubt("same-row", message, fix="If nothing was measured again, take the copies out")
        self._seen.add(mark)

    def odd_references(self) -> None:
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
                    self.file, self.line, self.label = record.source_file, record.source_line, record.node_id
                    message = "speedup times runtime is the reference's time, and here another than in most rows of its problem"
                    fix = "See which of the two is right; map reference_runtime to have every row checked"
                    self.doubt("odd-reference", message, "speedup", record.speedup, fix)

    def believed(
        self, speedup: float | None, runtime: float | None, reference: float | None
    ) -> tuple[float | None, str | None]:
        """The speedup that counts, and why the row does not count where its figures contradict each other."""
        if runtime is not None and runtime == reference and not self.root_is_reference:
            self.equal_times()
        ratio = reference / runtime if runtime is not None and reference is not None else None
        gpu = spelled(self.cell("gpu")) or self.run.settings.get("gpu")
        others = self._reference_gpus()
        other = next((o for o in others if o and gpu and canonical_gpu(o) != canonical_gpu(gpu)), None)
        if other is not None:
            message = f"the candidate was timed on {printable(gpu)}, the reference on another GPU: no ratio of such times counts"
            fix = "Take the reference's time of the same GPU"
            self.doubt("two-gpus", message, "reference_gpu", other, fix, error=True)
            return speedup if speedup is not None else ratio, "its two times come from different GPUs"
        times = {"runtime": runtime, "reference_runtime": reference}
        lacks = next((name for name, time in times.items() if name in self.columns and time is None), None)
        if speedup is not None and lacks is not None:
            message = "a time that the recipe maps is missing: the speedup counts unchecked"
            fix = "Give the time, or take the column of times out of the recipe"
            self.doubt("unchecked-speedup", message, lacks, fix=fix)
        if speedup is None or ratio is None or self.run.settings.get("speedup_from") == "times":
            return (ratio if ratio is not None else speedup), None
        off = max(speedup / ratio, ratio / speedup)
        if off <= DOUBTFUL_RATIO or self.run.settings.get("speedup_from") == "column":
            return speedup, None
        hints = [f"; the times seem off by {n:,}x: a unit?" for n in (1000, 1_000_000) if 0.5 < off / n < 2]
        if 1 / DOUBTFUL_RATIO <= speedup * ratio <= DOUBTFUL_RATIO:
            hints = ["; it is the inverse of their ratio"]
        hint = hints[0] if hints else ""
        message = f"the speedup is not the ratio of the row's two times ({ratio:.4g}){hint}"
        fix = 'Say which counts: speedup_from = "times" or "column" in the [[source]]'
        refused = off > REFUSED_RATIO
        code = "speedup-contradicted" if refused else "speedup-doubtful"
        self.doubt(code, message + (" and does not count" if refused else ""), "speedup", speedup, fix, error=refused)
        return speedup, "its speedup contradicts the ratio of its times" if refused else None

    def equal_times(self) -> None:
        """Doubt a time that is the reference's to the last digit."""
        message = "the candidate's time is exactly the reference's"
        fix = "See whether both come from the same measurement"
        self.doubt("equal-times", message, "runtime", self.cell("runtime"), fix)

    def fast_failure(self, root: Evaluation | None) -> None:
        """Doubt a failure that claims to be faster than the reference all the same."""
        claimed = positive(quantity(self.cell("speedup"))[0])
        runtime, reference = self.time("runtime"), self.time("reference_runtime")
        reference = reference or (root.runtime_us if root is not None else None)
        claimed = claimed or (reference / runtime if runtime and reference else None)
        if claimed is not None and claimed > 1:
            message = "the row failed, and is faster than the reference all the same: it counts as a failure, without a speedup"
            fix = "If it did not fail, see what outcome, correct and compiled are mapped to"
            name = "speedup" if "speedup" in self.columns else "runtime"
            self.doubt("fast-failure", message, name, self.cell(name), fix)

    def sized(self, of: Any) -> None:
        """Doubt rows of one program with several shapes that nothing is read from: they would be repeats of one kernel."""
        mapped = {name for rule in self.columns.values() for name in rule.wanted}
        shapes = {key: str(self.row[key]) for key in self.row if key not in mapped and _SHAPES.fullmatch(key)}
        first = self._sizes.setdefault(of, shapes) if shapes else {}
        other = [key for key, value in shapes.items() if first.get(key, value) != value]
        if other:
            named = self.columns["problem"].column if "problem" in self.columns else None
            name = "_".join([f"{{{named}}}" if named else "NAME", *(f"{{{printable(key)}}}" for key in other)])
            message = "one program is measured at several of these, which its problem does not name: they become repeats of one kernel"
            fix = f'Make it part of the problem\'s name, in [source.columns]: problem = {{ value = "{name}" }}'
            self.doubt("several-shapes", message, other[0], self.row[other[0]], fix, theirs=True)

    def elsewhere(self) -> str | None:
        """Why a row does not count although the recipe says its GPU: a column that nothing is read from names another."""
        gpu: str | None = spelled(self.cell("gpu")) or self.run.settings.get("gpu")
        if gpu is None:
            return None
        for key, value in self._unread():
            named = key.rpartition(".")[2].casefold() in GPU_KEYS and isinstance(value, str)
            other = gpu_in(value) if named else None
            if other is not None and not any(same_gpu(other, name) for name in (gpu, gpu_in(gpu) or gpu)):
                message = f"the row names another GPU than the one that is read, {printable(gpu)}: it does not count"
                fix = f'Say where each row\'s GPU is: columns.gpu = "{printable(key)}", or a [[source]] for each GPU'
                self.doubt("two-gpus", message, key, value, fix, error=True, theirs=True)
                return f"its column {printable(key)} names another GPU"
        return None

    def _reference_gpus(self) -> Iterator[str | None]:
        """The GPUs that the row, and the joined rows that a time comes from, name for the reference."""
        yield spelled(self.cell("reference_gpu"))
        timed = [str(self.columns[name].column) for name in ("runtime", "reference_runtime") if name in self.columns]
        for join, _ in self.joins:
            if any(column.startswith(join.name + ".") for column in timed):
                partner = object_of(self.row.get(join.name))
                named = (spelled(value) for key, value in partner.items() if key.casefold() in GPU_KEYS)
                yield next((gpu for gpu in named if gpu and not is_missing(gpu)), None)

    def _unread(self) -> list[tuple[str, Any]]:
        """The cells of columns that none of ours is."""
        mapped = {rule.column for rule in self.columns.values()}
        return [(key, value) for key, value in self.row.items() if key not in mapped]

    def denied(self) -> str | None:
        """Why a row is no success although the recipe maps no outcome: a column of its own says so."""
        for key, value in self._unread():
            if key.casefold() in _VERDICTS and not is_missing(value) and truth(value) is False:
                message = "the row says that it failed, and the recipe maps no outcome; the rows do not count"
                fix = f'Map it: outcome = "{printable(key)}"'
                self.doubt("unmapped-failure", message, key, value, fix, error=True)
                return f"its column {printable(key)} says that it failed"
        return None
