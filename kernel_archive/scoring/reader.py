"""Read forecasts from a file, a table or objects: arrays, or every fault of them in one pass.

What one line may say is in :mod:`kernel_archive.scoring.formats`.
"""

from __future__ import annotations

import difflib
import hashlib
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts, normalise
from kernel_archive.scoring.formats import (
    HALF_CHARACTER,
    KNOWN,
    MAX_REPEATS,
    READ,
    LineFaults,
    decode_line,
    read_line,
)
from kernel_archive.untrusted import Lines, UntrustedFileError, is_parquet, regular_file
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from typing import Unpack

    from kernel_archive.scoring.formats import ForecastLine
    from kernel_archive.scoring.split import Split


#: Where rows can come from: a file, a data frame that gives an Arrow stream (Polars, Arrow, pandas,
#: DuckDB), or objects with the fields of a line.
RowSource: TypeAlias = Any
ForecastSource: TypeAlias = "Forecasts | RowSource"
#: Keep this many findings in full; further ones are only counted.
KEPT_FINDINGS: Final = 20_000
#: Suggest a row id for this many unknown ones, and hold them against other splits.
_MAX_SUGGESTIONS: Final = 20
#: Ids longer than this get no suggestion: comparing them with every row takes too long.
_MAX_ID: Final = 200
#: Similarity (0 to 1) from which an unknown id may be a misspelt one.
_SIMILAR: Final = 0.8
#: Remember this many labels and unknown fields; a file with more is hostile.
_MAX_NAMES: Final = 100
_AMOUNTS: Final = ("expected_speedup", "input_tokens", "output_tokens", "latency_s")


class ReadOptions(TypedDict, total=False):
    """State how forecasts are read; every option may be left out."""

    name: str | None  # name of the forecaster; the file's name without its endings when not given
    raw_sum_bounds: tuple[float, float]  # A raw sum outside counts as a parse failure
    keep_rationales: bool  # keep the rationales, too


def forecasts_of(source: ForecastSource, split: Split, **options: Unpack[ReadOptions]) -> Forecasts:
    """Return forecasts as they are, or read them as :func:`read_forecasts` does."""
    if not isinstance(source, Forecasts):
        return read_forecasts(source, split, **options)
    return replace(source, name=options.get("name") or source.name)


def read_forecasts(source: RowSource, split: Split, **options: Unpack[ReadOptions]) -> Forecasts:
    """Read forecasts of a split in any of the accepted forms; options: :class:`ReadOptions`.

    A source is a file (JSON lines, plain, gzip or zstd, or Parquet), a data frame that gives an
    Arrow stream, or objects with the fields of a line.

    Raises:
        ForecastError: the forecasts have a fault; it carries every one.
        UsageError: this is nothing that forecasts can be read from.
    """
    forecasts, report = check_forecasts(source, split, **options)
    if forecasts is None:
        errors = [f for f in report.findings if f.severity == "error"]
        more = f"{report.n_errors} faults in {report.file}" if report.n_errors > 1 else None
        raise ForecastError.from_findings(errors, more)
    return forecasts


def check_forecasts(
    source: RowSource, split: Split, **options: Unpack[ReadOptions]
) -> tuple[Forecasts | None, CheckReport]:
    """Report every fault of some forecasts, and return the forecasts when they have none.

    Raises:
        ForecastError: there is no file that could be read.
        UsageError: this is nothing that forecasts can be read from.
    """
    name = options.get("name")
    if not isinstance(source, (str, Path)):
        collector = _Collector("rows", split, options)
        return collector.finish(name or "forecasts", "", _read_objects(source, collector))
    collector = _Collector(printable(str(source), 300), split, options)
    try:
        path = regular_file(source)
    except UntrustedFileError as error:
        raise ForecastError.from_findings([error.finding(collector.file)]) from None
    digest = _read_parquet(path, collector) if is_parquet(path) else _read_lines(path, collector)
    return collector.finish(name or name_of(source), str(source), digest)


def name_of(path: str | Path) -> str:
    """Name a forecaster after its file, without folder and endings."""
    name = Path(path).name
    for ending in (".zst", ".gz", ".jsonl", ".ndjson", ".json", ".parquet"):
        name = name.removesuffix(ending)
    return name or "forecasts"


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report what is in a forecast file and what is wrong with it."""

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


def near_id(unknown: str, row_ids: Iterable[str]) -> str | None:
    """Suggest the one known id that an unknown one resembles; nothing is repaired silently.

    >>> near_id("A1B2C3D ", ["a1b2c3d4", "ffffffff"])
    "Did you mean 'a1b2c3d4'?"
    """
    if len(unknown) > _MAX_ID:
        return None
    folded = {name.casefold(): name for name in row_ids}
    word = unknown.strip().casefold()
    near = [word] if word in folded else difflib.get_close_matches(word, folded, 2, _SIMILAR)
    return f"Did you mean {folded[near[0]]!r}?" if len(near) == 1 else None


class _Collector:
    """Collect forecasts and faults line by line, then make arrays and a report of them."""

    def __init__(self, file: str, split: Split, options: ReadOptions) -> None:
        self.file = file
        self.split = split
        self.raw_sum_bounds = options.get("raw_sum_bounds", RAW_SUM_BOUNDS)
        self.keep_rationales = options.get("keep_rationales", False)
        self.n_lines = 0
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.n_errors = 0
        self.labels: set[str] = set()
        self.unread: Counter[str] = Counter()
        #: Lines with an unknown id: number and id.
        self.unknown: list[tuple[int, str]] = []
        self.repeated: list[Finding] = []
        #: (repeat, row) -> number of the line, forecast, its raw sum.
        self.cells: dict[tuple[int, int], tuple[int, ForecastLine, float]] = {}

    def add(self, *findings: Finding) -> None:
        """Count findings, and keep them while there is room."""
        for finding in findings:
            self.counts[finding.code] += 1
            self.n_errors += finding.severity == "error"
        self.findings += findings[: max(KEPT_FINDINGS - len(self.findings), 0)]

    def fault(self, code: str, message: str, **more: Any) -> None:
        """Add a fault of the whole file, or of the place that is given."""
        self.add(Finding(code=code, message=message, file=self.file, **more))

    def take(self, row: Mapping[str, Any], number: int) -> None:
        """Take one forecast, as a JSON object or a row of a table."""
        self.n_lines += 1
        if len(self.labels) < _MAX_NAMES:
            self.labels.add(str(row.get("surrogate_label")))
        if len(self.unread) < _MAX_NAMES:
            self.unread.update(name for name in row if name not in KNOWN)
        faults = LineFaults(self.file, number)
        line = read_line(row, faults)
        self.add(*faults.findings)
        if line is None:
            return
        place_of_row = self.split.index.get(line.row_id)
        if place_of_row is None:
            self.unknown.append((number, line.row_id))
        else:
            self._store(line, (line.repeat or 0, place_of_row), number)

    def _store(self, line: ForecastLine, cell: tuple[int, int], number: int) -> None:
        """Keep a forecast without a fault of its own in its cell."""
        raw_sum = reduce(operator.add, line.probabilities or (np.nan,))
        low, high = self.raw_sum_bounds
        what = "the probabilities sum"
        if low <= raw_sum <= high and line.raw_probability_sum is not None:
            raw_sum, what = line.raw_probability_sum, "before renormalisation they summed"
        if raw_sum < low or raw_sum > high:
            what += f" to {raw_sum:.4g}, not {low:g} to {high:g}: it counts as no forecast"
            self.fault("raw-sum", what, severity="warning", line=number, field="probabilities")
            line.probabilities = None
        if not self.keep_rationales:
            line.rationale = None
        if cell not in self.cells:
            self.cells[cell] = (number, line, raw_sum)
            return
        first = self.cells[cell][0]
        faults = LineFaults(self.file, number)
        what = f"repeat {cell[0]} of this row was already forecast in line {first}"
        fix = "Number the repeats, or drop one of the lines"
        faults.add("repeated-forecast", what, "row_id", line.row_id, fix)
        self.repeated += faults.findings

    def finish(self, name: str, source: str, digest: str) -> tuple[Forecasts | None, CheckReport]:
        """Return the forecasts when there is no fault, and the report."""
        n_repeats = max((repeat for repeat, _ in self.cells), default=-1) + 1
        self._check_ids()
        if len(self.labels) > 1:  # which would be why forecasts are repeated
            what = f"the file holds {len(self.labels)} forecasters: "
            what += ", ".join(printable(label, 60) for label in sorted(self.labels)[:10])
            fix = "Write the lines of each into a file of its own"
            self.fault("several-forecasters", what, field="surrogate_label", fix=fix)
        else:
            self.add(*self.repeated)
        for missing in sorted({*range(n_repeats)} - {repeat for repeat, _ in self.cells}):
            last = f"there are some with repeat {n_repeats - 1}"
            what = f"there is no forecast with repeat {missing}, but {last}"
            fix = "Number the repeats 0, 1, 2, ... without a gap"
            self.fault("repeat-gap", what, field="repeat", fix=fix)
        if not self.n_lines and not self.n_errors:
            fix = "See: kernel-archive template"
            self.fault("no-forecasts", "the file holds no forecast", fix=fix)
        for field, count in self.unread.items():
            what = f"nothing reads this field ({count} lines)"
            self.fault("unknown-field", what, severity="warning", field=printable(field))
        report = self._report(n_repeats)
        return (self._forecasts(name, source, digest, report) if report.ok else None), report

    def _forecasts(self, name: str, source: str, digest: str, report: CheckReport) -> Forecasts:
        """Spread the collected lines over arrays."""
        shape = (report.n_repeats, report.n_rows)
        repeats, rows = np.array(list(self.cells)).T
        lines = [line for _, line, _ in self.cells.values()]

        def spread(values: Iterable[Any], empty: float | bool, dtype: Any = np.float64) -> Any:
            out = np.full(shape, empty, dtype=dtype)
            out[repeats, rows] = [empty if value is None else value for value in values]
            return out

        amounts = {
            field: spread((getattr(line, field) for line in lines), np.nan) for field in _AMOUNTS
        }
        probabilities = np.full((*shape, N_BINS), 1.0 / N_BINS)
        uniform = [1.0 / N_BINS] * N_BINS
        raw = np.array([line.probabilities or uniform for line in lines], dtype=np.float64)
        probabilities[repeats, rows] = normalise(raw=raw)
        rationales = {
            cell: line.rationale
            for cell, (_, line, _) in self.cells.items()
            if line.rationale is not None
        }
        return Forecasts(
            name=name,
            source=source,
            digest=digest,
            prompts=tuple(sorted({line.prompt or "" for line in lines})),
            remarks=report.findings,
            rationales=rationales if self.keep_rationales else None,
            probabilities=probabilities,
            parsed=spread((line.probabilities is not None for line in lines), False, bool),
            present=spread((True for _ in lines), False, bool),
            deferred=spread((line.defer for line in lines), False, bool),
            stated=spread((line.predicted_bin for line in lines), 0, np.int8),
            raw_sums=spread((raw_sum for _, _, raw_sum in self.cells.values()), np.nan),
            expected_speedups=amounts.pop("expected_speedup"),
            **amounts,
        )

    def _report(self, n_repeats: int) -> CheckReport:
        lines = [line for _, line, _ in self.cells.values()]
        n_parsed = sum(line.probabilities is not None for line in lines)
        n_asked = sum(line.probabilities is not None or not line.defer for line in lines)
        n_rows = len(self.split)
        return CheckReport(
            file=self.file,
            ok=not self.n_errors,
            n_rows=n_rows,
            n_repeats=n_repeats,
            n_lines=self.n_lines,
            n_present=len(lines),
            n_parsed=n_parsed,
            n_deferred=sum(line.defer is True for line in lines),
            coverage=len(lines) / (n_rows * max(n_repeats, 1)),
            parse_rate=n_parsed / n_asked if n_asked else None,
            n_errors=self.n_errors,
            n_warnings=self.counts.total() - self.n_errors,
            counts=dict(sorted(self.counts.items())),
            findings=tuple(sorted(self.findings, key=lambda finding: finding.line or 0)),
        )

    def _check_ids(self) -> None:
        """Add a fault for every unknown id, or one where most are of another split or version."""
        n, first = len(self.unknown), [row_id for _, row_id in self.unknown[:_MAX_SUGGESTIONS]]
        places = self.split.others() if self.split.others and n * 2 > self.n_lines else ()
        for name, fix, ids in places:
            if 2 * len(ids.intersection(first)) > len(first):
                what = f"{n:,} of {self.n_lines:,} lines have no row of {self.split.spec.name}"
                what += f": these are ids of {name}"
                self.fault("unknown-row", what, field="row_id", fix=fix)
                return
        for i, (number, row_id) in enumerate(self.unknown):
            near = near_id(row_id, self.split.row_ids) if i < len(first) else None
            place = {"line": number, "field": "row_id", "value": printable(row_id)}
            self.fault("unknown-row", "no row of this split has this id", fix=near, **place)
        if n and not self.cells:
            facts = self.split.facts
            version = f"{printable(facts.archive_name)} {printable(facts.archive_version)}"
            what = f"no id in this file is one of the {facts.table} split ({version})"
            fix = "Is it for another split, or another version of the archive?"
            self.fault("wrong-split", what, fix=fix)


def _limits(split: Split) -> tuple[int, int]:
    """Bound the bytes, uncompressed, and the lines that forecasts of a split can take."""
    max_bytes = min((16 << 20) + len(split) * (256 << 10), 4 << 30)
    return max_bytes, 10_000 + len(split) * MAX_REPEATS


def _read_lines(path: Path, collector: _Collector) -> str:
    """Read JSON lines; the digest is that of the content without compression."""
    max_bytes, max_lines = _limits(collector.split)
    source = Lines(path, max_bytes=max_bytes, max_lines=max_lines)
    for item in source:
        if isinstance(item, Finding):
            collector.add(item)
            continue
        number, text = item
        faults = LineFaults(collector.file, number)
        row = decode_line(text, faults)
        if row is not None:
            collector.take(row, number)
            continue
        if source.ended_mid_line and faults.findings[0].code == "bad-json":
            faults.findings.clear()
            what, fix = "the file ends in the middle of this line", "Was the writer stopped?"
            faults.add("cut-off", what, value=text[:80].decode(errors="replace"), fix=fix)
        collector.n_lines += 1
        collector.add(*faults.findings)
    return source.digest


def _read_parquet(path: Path, collector: _Collector) -> str:
    """Read a Parquet file; the digest is that of its bytes."""
    max_bytes, max_rows = _limits(collector.split)
    for item in parquet_rows(
        path,
        name=collector.file,
        wanted=READ - (set() if collector.keep_rationales else {"rationale", "reasoning"}),
        max_rows=max_rows,
        max_bytes=max_bytes,
    ):
        if isinstance(item, Finding):
            collector.add(item)
        else:
            number, row = item
            collector.take(row, number)
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _read_objects(source: RowSource, into: _Collector) -> str:
    """Read objects of this process; the digest is that of the same objects as JSON lines."""
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        source = (row for batch in pa.table(source).to_batches(1024) for row in batch.to_pylist())
    elif not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping)):
        raise UsageError(
            f"no forecasts can be read from a {type(source).__name__}. "
            "Give a file, a data frame, a list of objects, or Forecasts"
        )
    digest = hashlib.sha256()
    for number, item in enumerate(source, 1):
        row = msgspec.to_builtins(item, str_keys=True, enc_hook=_plain)
        what = "a forecast is an object with named fields"
        try:
            digest.update(msgspec.json.encode(row) + b"\n")
            if isinstance(row, dict):
                lists = {name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}
                into.take(lists, number)
                continue
        except UnicodeEncodeError:
            what = HALF_CHARACTER
        into.fault("bad-json", what, line=number, value=printable(row))
    return f"sha256:{digest.hexdigest()}"


def _plain(value: Any) -> Any:
    """Turn a value of another library, an array or a number of numpy, into plain Python."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
