"""Rows that somebody else measured, judged: what a row says becomes an evaluation, and what contradicts itself is doubted.

A missing value (null, empty, NaN, or a text such as ``None``) is missing, never 0: a row without code or speedup is counted,
said and left out. :class:`Judged` refuses rows that contradict themselves, and says which; rows of every foreign format pass it.
"""

from __future__ import annotations

import json
import re
from statistics import median
from typing import TYPE_CHECKING, Any, Final, get_args

from kernel_archive.errors import Finding, printable
from kernel_archive.gpus import GPU_KEYS, canonical_gpu, gpu_in, same_gpu
from kernel_archive.problems import kernelbench_id
from kernel_archive.readers.cells import TRUE, Table, failure_of, is_missing, joined_gpu, quantity, spelled, truth
from kernel_archive.readers.mapping import US_PER_UNIT, From, Join, filled, names_in
from kernel_archive.readers.records import Evaluation, Outcome
from kernel_archive.readers.values import from_text, natural, not_negative, positive, step_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record
    from kernel_archive.readers.report import Report


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
#: A text that is no program but the name of one: an id, a number, a path.
_NAME: Final = re.compile(r"[\w./\\:@+-]{1,300}|[^\n]{1,300}\.(?:py|cu|cuh|cpp|cc|hip|txt|triton|ptx)")
#: Words of outcomes that one finding names.
_WORDS_NAMED: Final = 8
#: Codes of findings for which rows do not count.
_REFUSALS: Final = (
    "no-program", "no-code-file", "bad-path", "speedup-contradicted", "unmapped-failure", "two-gpus", "unknown-outcome",
)  # fmt: skip


class Judged(Table):
    """The rows of one table, and its doubts."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.root_is_reference = self.run.settings.get("reference") == "root"
        self._roots: dict[tuple[str | None, ...], Evaluation] = {}
        self._kept: dict[tuple[str | None, ...], str] = {}
        #: Words of outcomes that are not known, and how they are first spelled.
        self._unknown: dict[str, str] = {}
        self._seen: set[int] = set()
        self._shapes: dict[Any, dict[str, Any]] = {}

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

    def _unknown_outcomes(self) -> None:
        """Name every word of an outcome that is not known, with the failure that it seems to say: never a success."""
        rule = self.columns.get("outcome")
        seen = self._doubts.get(("unknown-outcome", rule.column)) if rule is not None else None
        if rule is None or seen is None or not self._unknown:
            return
        seen["value"] = ", ".join(printable(word, 40) for word in list(self._unknown.values())[:_WORDS_NAMED])
        guessed = {word: failure_of(word) or "?" for word in list(self._unknown)[:_WORDS_NAMED]}
        words = ", ".join(f"{json.dumps(printable(word, 40))} = {json.dumps(is_)}" for word, is_ in guessed.items())
        known = "".join(f"{json.dumps(word)} = {json.dumps(is_)}, " for word, is_ in (rule.values or {}).items())
        seen["fix"] = (
            f"If this is what they mean: outcome = {{ column = {json.dumps(rule.column)}, values = {{ {known}{words} }} }}"
        )
        if "?" in guessed.values():
            seen["fix"] += ', with a failure, or "success" for a correct program that was timed, for each "?"'

    def finish(self) -> None:
        """Say what was doubted."""
        place = self.file
        self._odd_references()
        self._unknown_outcomes()
        self.file = place
        if left := self.facts.counts.get("rows", 0) - len(self.found):
            self.count("rows_left_out", left)
        super().finish()

    # -- rows

    def take(self, line: int | None, row: dict[str, Any]) -> None:
        """Take in one row; one without code or score is counted."""
        self.count("rows")
        named = self.columns["code"].file if "code" in self.columns else None
        if named is not None and not names_in(named) and self.facts.counts["rows"] > 1:
            message = "one file is the program of one row; the others are left out"
            fix = 'Say which column names the file of a row: code = { file = "kernels/{column}" }'
            self.doubt("one-program", message, line, "code", named, fix, error=True)
            return
        row = self.joined(row, line)
        code = self.program(row, line, "code")
        problem = self._problem_of(row, line)
        family = (spelled(self.cell(row, "search")), problem, spelled(self.cell(row, "gpu")))
        kept, last = str(self.cell(row, "kept")).strip().casefold() in _KEPT, self._kept.get(family)
        if kept:  # and where this row is left out, what follows was made from no row that is known
            self._kept.pop(family, None)
        outcome = self._outcome(row, line)
        if outcome is None:
            return
        timed = outcome == "success"
        times = {name: self.time(row, name) if timed else None for name in ("runtime", "reference_runtime")}
        root = self._roots.get(family) if self.root_is_reference else None
        if self.root_is_reference and times["reference_runtime"] is None:
            times["reference_runtime"] = root.runtime_us if root is not None else times["runtime"]
        given, unit = quantity(self.cell(row, "speedup")) if timed else (None, None)
        speedup = positive(given) if unit in (None, "x") else None
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
        excluded = excluded or self._elsewhere(row, line)
        if not timed:
            self._fast_failure(row, line, root)
        mark = hash(repr(row))
        if mark in self._seen:
            message = "a row is an exact copy of one before it, and counts as a further measurement"
            self.doubt("same-row", message, line, fix="If nothing was measured again, take the copies out")
        self._seen.add(mark)
        if timed:
            self._sized(row, line, (family, hash(code)))
        named = spelled(self.cell(row, "node_id"))
        node = named or f"row-{line or len(self.found) + 1}"
        if named in self.found:
            self.warning("duplicate-node", "the node id stands twice", line=line, value=node)
            node = f"{node}@{line or len(self.found) + 1}"
        if node in self.found:  # several rows of one line
            node = f"{node}.{len(self.found) + 1}"
        fields: dict[str, Any] = {name: kind(self.cell(row, name)) for name, kind in _FIELDS.items()}
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
            is_root=truth(self.cell(row, "is_root")) is True,
            problem=problem,
            reference_code=spelled(self.program(row, line, "reference_code")),
            excluded=excluded,
            **fields,
        )
        if self.root_is_reference and timed and excluded is None:
            if root is not None and root.runtime_us == record.runtime_us and root.code != record.code:
                self._equal_times(line, row)
            if root is None:
                root = self._roots[family] = record
                record.is_root = True
            record.reference_code = record.reference_code or root.code

    def _complete(self, row: dict[str, Any], line: int | None, code: Any, *, has_speedup: bool) -> bool:
        """Whether a row has its program and its speedup; if not, it is counted and said."""
        if code is None:
            self.count("rows_without_code")
            named = self.columns["code"].file if "code" in self.columns else None
            if named is not None and filled(named, row) is not None:
                pass  # said of the file
            elif has_speedup:
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
        lacking = [
            name
            for name in dict.fromkeys((*wanted, "runtime", "reference_runtime"))
            if (name in wanted or name in self.columns) and positive(quantity(self.cell(row, name))[0]) is None
        ]
        lacks = next((name for name in lacking if self.cell(row, name) is not None), (lacking or wanted)[0])
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
                self._unknown.setdefault(said, str(logged))
                message = f"not one of {', '.join(sorted(_OUTCOMES))}; the rows are left out"
                self.doubt("unknown-outcome", message, line, "outcome", logged, error=True)
                return None
            said = "success" if right else "incorrect"
        for name, failure in (("compiled", "compile_failed"), ("correct", "incorrect")):
            value = self.cell(row, name)
            if value is not None and said in ("", "success"):
                right = truth(value)
                if right is None:
                    self.count("rows_unknown_outcome")
                    message = "neither true nor false; the rows are left out"
                    self.doubt("unknown-outcome", message, line, name, value, error=True)
                    return None
                said = said if right else failure
            elif value is None and name in self.columns and said == "":
                said = "runtime_error" if spelled(self.cell(row, "error_text")) else said
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
            self._equal_times(line, row)
        ratio = reference / runtime if runtime is not None and reference is not None else None
        gpu = spelled(self.cell(row, "gpu")) or self.run.settings.get("gpu")
        others = [spelled(self.cell(row, "reference_gpu"))]
        others += [joined_gpu(row.get(j.name)) for j, _ in self.joins if self._timed_by(j)]
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

    def _equal_times(self, line: int | None, row: dict[str, Any]) -> None:
        message = "the candidate's time is exactly the reference's"
        self.doubt(
            "equal-times",
            message,
            line,
            "runtime",
            self.cell(row, "runtime"),
            "See whether both come from the same measurement",
        )

    def _fast_failure(self, row: dict[str, Any], line: int | None, root: Evaluation | None) -> None:
        """Doubt a failure that claims to be faster than the reference all the same."""
        claimed = positive(quantity(self.cell(row, "speedup"))[0])
        runtime, reference = self.time(row, "runtime"), self.time(row, "reference_runtime")
        reference = reference or (root.runtime_us if root is not None else None)
        claimed = claimed or (reference / runtime if runtime and reference else None)
        if claimed is not None and claimed > 1:
            message = "the row failed, and is faster than the reference all the same: it counts as a failure, without a speedup"
            fix = "If it did not fail, see what outcome, correct and compiled are mapped to"
            name = "speedup" if "speedup" in self.columns else "runtime"
            self.doubt("fast-failure", message, line, name, self.cell(row, name), fix)

    def _sized(self, row: dict[str, Any], line: int | None, of: Any) -> None:
        """Doubt rows of one program with several shapes that nothing is read from: they would be repeats of one kernel."""
        mapped = {name for rule in self.columns.values() for name in rule.wanted}
        shapes = {key: str(row[key]) for key in row if key not in mapped and _SHAPES.fullmatch(key)}
        first = self._shapes.setdefault(of, shapes) if shapes else {}
        other = [key for key, value in shapes.items() if first.get(key, value) != value]
        if other:
            named = self.columns["problem"].column if "problem" in self.columns else None
            name = "_".join([f"{{{named}}}" if named else "NAME", *(f"{{{printable(key)}}}" for key in other)])
            message = "one program is measured at several of these, which its problem does not name: they become repeats of one kernel"
            fix = f'Make it part of the problem\'s name, in [source.columns]: problem = {{ value = "{name}" }}'
            self.doubt("several-shapes", message, line, other[0], row[other[0]], fix, theirs=True)

    def _elsewhere(self, row: dict[str, Any], line: int | None) -> str | None:
        """Why a row does not count although the recipe says its GPU: a column that nothing is read from names another."""
        gpu: str | None = spelled(self.cell(row, "gpu")) or self.run.settings.get("gpu")
        if gpu is None:
            return None
        mapped = {rule.column for rule in self.columns.values()}
        for key, value in row.items():
            if key.rpartition(".")[2].casefold() in GPU_KEYS and key not in mapped and isinstance(value, str):
                other = gpu_in(value)
                if other is not None and not any(same_gpu(other, name) for name in (gpu, gpu_in(gpu) or gpu)):
                    message = (
                        f"the row names another GPU than the one that is read, {printable(gpu)}: it does not count"
                    )
                    fix = (
                        f'Say where each row\'s GPU is: columns.gpu = "{printable(key)}", or a [[source]] for each GPU'
                    )
                    self.doubt("two-gpus", message, line, key, value, fix, error=True, theirs=True)
                    return f"its column {printable(key)} names another GPU"
        return None

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
        name = spelled(self.cell(row, "problem"))
        if name is None and level is not None and number is not None:
            return kernelbench_id(level, number)
        if name is None and (level is not None or number is not None):
            self.warning("bad-value", "level and number of a problem come together", line=line)
        return name


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
