"""Read forecasts from a file, a table or objects: arrays, or every fault of them in one pass.

Whatever the source, a forecast comes as a JSON line, which :mod:`kernel_archive.scoring.formats`
reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from kernel_archive.bins import N_BINS
from kernel_archive.errors import Finding, ForecastError, UsageError, counted, printable
from kernel_archive.scoring import formats
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts
from kernel_archive.scoring.formats import ForecastLine, LineError, fault_of
from kernel_archive.scoring.rules import normalise
from kernel_archive.scoring.split import Split
from kernel_archive.untrusted import Lines, UntrustedFileError, is_parquet, regular_file
from kernel_archive.untrusted_tables import parquet_rows

#: Where forecasts can come from: a file, a data frame that gives an Arrow stream (Polars, Arrow,
#: pandas, DuckDB), objects with the fields of a line, or Forecasts.
ForecastSource: TypeAlias = Any
#: Keep this many findings in full; further ones are only counted.
KEPT_FINDINGS: Final = 20_000
#: Lies beside the forecasts of a submission (:mod:`kernel_archive.board.submissions`).
_SUBMISSION_FILE: Final = "submission.toml"
#: Remember this many forecasters, unknown ids and unknown fields; a file with more is hostile.
_MAX_NAMES: Final = 100
#: Refuse a file in which a smaller share of the lines can be read as forecasts.
_LEAST_READ: Final = 0.05
#: Name this many rows without a forecast.
_NAMED_ROWS: Final = 5
#: A sum further from 1 than this is remarked on: it may be a slip of the writer's.
_SUM_SLACK: Final = 0.01
#: Code of a sum that is not 1 -> what becomes of the lines.
_SUMS: Final = {
    "percent": "Divide percentages by 100: each of these lines counts as no forecast",
    "raw-sum": "Without a sum of 0.5 to 1.5 each of these lines counts as no forecast",
    "scaled": "They are scaled to 1",
}


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a forecast file, and what is wrong with it."""

    file: str  # made printable
    ok: bool  # it can be scored
    n_rows: int
    n_repeats: int
    n_lines: int  # lines with a forecast, faulty ones included
    n_present: int  # row and repeat cells with a good line
    n_parsed: int  # of those, cells with a distribution
    n_deferred: int
    coverage: float  # n_present over rows x repeats
    parse_rate: float | None  # good lines with a distribution, of those that need one
    n_errors: int
    n_warnings: int
    counts: dict[str, int]  # code -> number of findings
    findings: tuple[Finding, ...]  # in order of lines: all, or the first KEPT_FINDINGS


def read_forecasts(
    source: ForecastSource,
    split: Split,
    *,
    name: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
) -> Forecasts:
    """Read forecasts of a split in any of the accepted forms.

    A source is a file (JSON lines, plain, gzip or zstd, or Parquet), a data frame that gives an
    Arrow stream, or objects with the fields of a line. Forecasts stay as they are. ``name`` is that
    of the forecaster, by default the file's without its endings. A raw sum outside the bounds
    counts as a parse failure.

    Raises:
        ForecastError: the forecasts have a fault; it carries every one.
        UsageError: this is nothing that forecasts can be read from.
    """
    if isinstance(source, Forecasts):
        return dataclasses.replace(source, name=name or source.name)
    forecasts, report = check_forecasts(source, split, name=name, raw_sum_bounds=raw_sum_bounds)
    if forecasts is None:
        errors = [f for f in report.findings if f.severity == "error"]
        more = f"{report.n_errors} faults in {report.file}" if report.n_errors > 1 else None
        raise ForecastError.from_findings(errors, more)
    return forecasts


def check_forecasts(
    source: ForecastSource,
    split: Split,
    *,
    name: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
) -> tuple[Forecasts | None, CheckReport]:
    """Report every fault of some forecasts, and return the forecasts when they have none.

    Arguments are those of :func:`read_forecasts`.

    Raises:
        ForecastError: there is no file that could be read.
        UsageError: this is nothing that forecasts can be read from.
    """
    if not isinstance(source, (str, Path)):
        collector = _Collector("rows", split, raw_sum_bounds)
        _read_objects(source, collector)
        return collector.finish(name or "forecasts")
    collector = _Collector(printable(source, 300), split, raw_sum_bounds)
    try:
        path = regular_file(source)
    except UntrustedFileError as error:
        raise ForecastError.from_findings([error.finding(collector.file)]) from None
    digest = _read_parquet(path, collector) if is_parquet(path) else _read_lines(path, collector)
    return collector.finish(name or name_of(source), str(source), digest)


def name_of(path: str | Path) -> str:
    """Name a forecaster after its file, without folder and endings.

    A submission's file is always called ``forecasts``: its folder, where the facts of a submission
    lie beside it, names it.

    >>> name_of("mine/first.jsonl.zst"), name_of("gpt-4.parquet"), name_of(".jsonl")
    ('first', 'gpt-4', 'forecasts')
    """
    name, folder = Path(path).name, Path(path).absolute().parent
    for ending in (".zst", ".gz", ".jsonl", ".ndjson", ".json", ".parquet"):
        name = name.removesuffix(ending)
    if name == "forecasts" and (folder / _SUBMISSION_FILE).is_file():
        return folder.resolve().name
    return name or "forecasts"


class _Collector:
    """Collects forecasts and faults line by line, then makes arrays and a report of them."""

    def __init__(self, file: str, split: Split, raw_sum_bounds: tuple[float, float]) -> None:
        self.file = file
        self.split = split
        self.expected_form = "p_passes" if split.spec.asks_outcome else "probabilities"
        self.raw_sum_bounds = raw_sum_bounds
        # Bound the bytes, uncompressed, and the lines that forecasts of the split can take.
        self.max_bytes = min((16 << 20) + len(split) * (256 << 10), 4 << 30)
        self.max_lines = 10_000 + len(split) * formats.MAX_REPEATS
        self.n_lines = 0
        self.n_errors = 0
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.forecasters: set[str] = set()
        self.unknown_ids: set[str] = set()  # ids of no row
        self.unread_fields: Counter[str] = Counter()
        #: Key of ``_SUMS`` -> lines whose probabilities don't sum to 1, and their sums.
        self.off_sums: dict[str, list[tuple[int, float]]] = defaultdict(list)
        #: (repeat, row) -> number of the line, and its forecast.
        self.cells: dict[tuple[int, int], tuple[int, ForecastLine]] = {}

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there is room."""
        self.counts[finding.code] += 1
        self.n_errors += finding.severity == "error"
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(finding)

    def fault(self, code: str, message: str, **more: Any) -> None:
        """Add a fault of the whole file, or of the place that is given."""
        self.add(Finding(code=code, message=message, file=self.file, **more))

    def take(self, item: tuple[int, bytes] | Finding) -> None:
        """Take a numbered line, or why it can't be read."""
        if isinstance(item, Finding):
            self.add(item)
            return
        number, text = item
        self.n_lines += 1
        try:
            fields = formats.decode_line(text)
            if len(self.unread_fields) < _MAX_NAMES:
                self.unread_fields.update(name for name in fields if name not in formats.KNOWN)
            self._store(formats.read_line(fields, self.expected_form), number)
        except LineError as error:
            for fault in error.findings:
                self.add(replace(fault, file=self.file, line=number))

    def _store(self, line: ForecastLine, number: int) -> None:
        """Keep the forecast of a line in its cell, and note its forecaster or its unknown id."""
        if len(self.forecasters) < _MAX_NAMES:
            self.forecasters.add(str(line.surrogate_label))
        row = self.split.index.get(line.row_id)
        if row is None:
            if len(self.unknown_ids) < _MAX_NAMES:
                self.unknown_ids.add(line.row_id)
            message = f"no row of the {self.split.spec.name} split has this id"
            fix = f"Ids come from: kernel-archive template --split {self.split.spec.name}"
            raise LineError(fault_of("unknown-row", message, "row_id", line.row_id, fix))
        form = "probabilities" if line.p_passes is None else "p_passes"
        if line.probabilities and form != self.expected_form:
            message = f"rows of the {self.split.spec.name} split have another form of forecast"
            raise LineError(fault_of("other-form", message, form, fix=f"Give {self.expected_form}"))
        self._judge_sum(line, number)
        first, _ = self.cells.setdefault((line.repeat, row), (number, line))
        if first != number:
            message = f"repeat {line.repeat} of this row was already forecast in line {first}"
            fix = "Number the repeats, or drop one of the lines"
            raise LineError(fault_of("repeated-forecast", message, "row_id", line.row_id, fix))

    def _judge_sum(self, line: ForecastLine, number: int) -> None:
        """Note a sum that is not 1, and drop the probabilities where it is out of bounds."""
        raw_sum = reduce(operator.add, line.probabilities or (np.nan,))
        low, high = self.raw_sum_bounds
        is_off, is_percent = round(abs(raw_sum - 1), 9) > _SUM_SLACK, 95 < raw_sum < 105
        if low <= raw_sum <= high and not np.isnan(line.raw_probability_sum):
            raw_sum = line.raw_probability_sum
        if raw_sum < low or raw_sum > high:
            line.probabilities = None
            self.off_sums["percent" if is_percent else "raw-sum"].append((number, raw_sum))
        elif is_off:
            self.off_sums["scaled"].append((number, raw_sum))
        line.raw_probability_sum = raw_sum

    def finish(
        self, name: str, source: str = "", digest: str = ""
    ) -> tuple[Forecasts | None, CheckReport]:
        """Return the forecasts when there is no fault, and the report."""
        self._check_whole()
        forecasts = self._forecasts(name, source, digest)
        report = CheckReport(
            file=self.file,
            ok=not self.n_errors,
            n_rows=len(self.split),
            n_lines=self.n_lines,
            **forecasts.counts(),
            n_errors=self.n_errors,
            n_warnings=self.counts.total() - self.n_errors,
            counts=dict(sorted(self.counts.items())),
            findings=forecasts.remarks,
        )
        return (forecasts if report.ok else None), report

    def _check_whole(self) -> None:
        """Add the faults of the file as a whole."""
        if len(self.forecasters) > 1:  # which would be why forecasts are repeated
            message = f"the file holds {len(self.forecasters)} forecasters: "
            message += ", ".join(printable(label, 60) for label in sorted(self.forecasters)[:10])
            fix = "Write the lines of each into a file of its own"
            self.fault("several-forecasters", message, field="surrogate_label", fix=fix)
            self._take_back("repeated-forecast")
        repeats = {repeat for repeat, _ in self.cells}
        for missing in sorted({*range(max(repeats, default=0))} - repeats):
            message = f"there is no forecast with repeat {missing}, but some with a higher one"
            fix = "Number the repeats 0, 1, 2, ... without a gap"
            self.fault("repeat-gap", message, field="repeat", fix=fix)
        if 4 * self.counts["unknown-row"] > self.n_lines:
            self._check_split()
        self._check_sums()
        if not self.n_lines and not self.n_errors:
            fix = "See: kernel-archive template"
            self.fault("no-forecasts", "the file holds no forecast", fix=fix)
        for field, count in self.unread_fields.items():
            message = f"nothing reads this field ({counted(count, 'line')})"
            self.fault("unknown-field", message, severity="warning", field=printable(field))
        if not self.n_errors:
            self._check_missing(max(repeats, default=0) + 1)

    def _check_missing(self, n_repeats: int) -> None:
        """Say in one warning how many rows have no forecast, or not one in every repeat."""
        counts = Counter(row for _, row in self.cells)
        lacking = [i for i in range(len(self.split)) if counts[i] < n_repeats]
        if lacking:
            lack = "have no forecast" if n_repeats == 1 else "lack a forecast in some repeat"
            message = f"{len(lacking):,} of {counted(len(self.split), 'row')} {lack}"
            first = ", ".join(self.split.row_ids[i] for i in lacking[:_NAMED_ROWS])
            fix = f"Each counts as even odds; template lists every row. The first: {first}"
            self.fault("missing-rows", message, severity="warning", fix=fix)

    def _check_sums(self) -> None:
        """Say in one warning of a kind that sums are not 1; refuse a file without forecasts.

        The refusal is one fault, which names the cause of most lines.
        """
        stored = [line for _, line in self.cells.values()]
        n_read = sum(line.probabilities is not None for line in stored)
        without = [line for line in stored if np.isnan(line.raw_probability_sum)]
        n_deferred = sum(line.defer for line in without)
        n_failed = len(without) - n_deferred
        causes = {code: len(lines) for code, lines in self.off_sums.items() if code != "scaled"}
        causes["no-forecasts"] = n_failed
        is_refused = n_read < _LEAST_READ * (len(stored) - n_deferred)
        cause = max(causes, key=causes.__getitem__) if is_refused else None
        lines_in = counted(self.n_lines, "line")
        refusal = f"{n_read or 'none'} of {lines_in} can be read as a forecast"
        for code, lines in self.off_sums.items():
            mean = sum(raw_sum for _, raw_sum in lines) / len(lines)
            shown = "about 100" if code == "percent" else f"{mean:.3g} on average"
            message = f"the probabilities of {len(lines):,} of {lines_in} sum to {shown}"
            severity = "error" if code == cause else "warning"
            message = f"{refusal}: {message}" if severity == "error" else message
            place = {"line": lines[0][0], "field": "probabilities", "severity": severity}
            self.fault(code, f"{message}, first in this one", fix=_SUMS[code], **place)
        if cause == "no-forecasts":
            they = "they" if n_failed == self.n_lines else f"{n_failed:,} of them"
            fix = "See what the forecaster answered, then forecast again"
            self.fault("no-forecasts", f"{refusal}: {they} say parse_failed", fix=fix)

    def _check_split(self) -> None:
        """Say in one fault that many lines are of another split or data version."""
        n, identity = self.counts["unknown-row"], self.split.identity
        version = f"{printable(identity.archive_name)} {printable(identity.archive_version)}"
        message = f"{n:,} of {self.n_lines:,} ids are not of the {identity.table} split ({version})"
        fix = "Name its split with --split, or its archive with --archive"
        others = self.split.others()
        fits = {name: len(ids & self.unknown_ids) for name, ids in others.items()}
        other = max(fits, key=fits.__getitem__, default=None)
        if other is not None and 2 * fits[other] > len(self.unknown_ids):
            message, fix = f"{message}: they are of {other}", f"Use --split {other}"
        elif self.cells:
            return
        value = printable(min(self.unknown_ids))
        self._take_back("unknown-row")
        self.fault("wrong-split", message, field="row_id", value=value, fix=fix)

    def _take_back(self, code: str) -> None:
        """Drop faults of single lines that one of the whole file says better."""
        self.n_errors -= self.counts.pop(code, 0)
        self.findings = [finding for finding in self.findings if finding.code != code]

    def _forecasts(self, name: str, source: str, digest: str) -> Forecasts:
        """Spread the collected lines over arrays."""
        shape = (max((repeat for repeat, _ in self.cells), default=0) + 1, len(self.split))
        repeats, rows = np.array(list(self.cells), dtype=np.intp).reshape(-1, 2).T
        lines = [line for _, line in self.cells.values()]

        def column(field: str, empty: Any, dtype: Any = np.float64) -> Any:
            out = np.full((*shape, *np.shape(empty)), empty, dtype=dtype)
            if lines:
                values = (getattr(line, field) for line in lines)
                out[repeats, rows] = [empty if value is None else value for value in values]
            return out

        raw, present = column("probabilities", np.full(N_BINS, np.nan)), np.zeros(shape, bool)
        parsed = ~np.isnan(raw).any(axis=-1)
        present[repeats, rows] = True
        texts = {cell: line.rationale for cell, (_, line) in self.cells.items()}
        return Forecasts(
            name=name,
            source=source,
            digest=digest,
            prompts=tuple(sorted({line.prompt or "" for line in lines})),
            remarks=tuple(sorted(self.findings, key=lambda finding: finding.line or 0)),
            rationales={cell: text for cell, text in texts.items() if text is not None},
            probabilities=normalise(raw=np.where(parsed[..., None], raw, self.split.uniform)),
            parsed=parsed,
            present=present,
            deferred=column("defer", False, bool),
            stated_bins=column("predicted_bin", 0, np.int8),
            raw_sums=column("raw_probability_sum", np.nan),
            expected_speedups=column("expected_speedup", np.nan),
            input_tokens=column("input_tokens", np.nan),
            output_tokens=column("output_tokens", np.nan),
            latency_s=column("latency_s", np.nan),
        )


def _read_lines(path: Path, collector: _Collector) -> str:
    """Read JSON lines; the digest is that of the content without compression."""
    source = Lines(path, max_bytes=collector.max_bytes, max_lines=collector.max_lines)
    for item in source:
        collector.take(item)
    return source.digest


def _read_parquet(path: Path, collector: _Collector) -> str:
    """Read a Parquet file; the digest is that of its bytes."""
    for item in parquet_rows(
        path,
        name=collector.file,
        wanted=formats.READ,
        max_rows=collector.max_lines,
        max_bytes=collector.max_bytes,
    ):
        line = item if isinstance(item, Finding) else (item[0], msgspec.json.encode(item[1]))
        collector.take(line)
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _read_objects(source: ForecastSource, collector: _Collector) -> None:
    """Read objects of this process."""
    if hasattr(source, "__arrow_c_stream__"):
        source = (row for batch in pa.table(source).to_batches(1024) for row in batch.to_pylist())
    elif not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping)):
        raise UsageError(
            f"no forecasts can be read from a {type(source).__name__}. "
            "Give a file, a data frame, a list of objects, or Forecasts"
        )
    for number, item in enumerate(source, 1):
        try:
            text = msgspec.json.encode(item, enc_hook=_plain)
        except UnicodeEncodeError:
            message = "a text has half a character, which JSON can't hold"
            collector.fault("bad-json", message, line=number)
            continue
        collector.take((number, text))


def _plain(value: Any) -> Any:
    """Turn a value of another library, an array or a number of numpy, into plain Python."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
