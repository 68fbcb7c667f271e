"""Forecasts from a file, a table or objects: in normal form, or every fault of them in one pass and bounded memory.

What one line may say is in :mod:`kernel_archive.scoring.formats`, what is wrong with it in :mod:`kernel_archive.scoring.faults`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.scoring.faults import CheckReport, FileFaults
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts, normalise
from kernel_archive.scoring.formats import MAX_REPEATS, READ, WrittenForecast, decode_line, quick_entry, read_entry
from kernel_archive.untrusted import Lines, UntrustedFileError, is_parquet, regular_file
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from kernel_archive.scoring.target import Target


class _ArrowStream(Protocol):
    """A data frame of any library that gives its columns as an Arrow stream: Polars, Arrow, pandas, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


#: Where forecasts can come from: a file, a data frame, or objects with the fields of a line.
RowSource: TypeAlias = "str | Path | _ArrowStream | Iterable[Mapping[str, Any]]"
ForecastSource: TypeAlias = "RowSource | Forecasts"
#: Numbers of a forecast, NaN where it has none.
_AMOUNTS: Final = ("raw_sums", "input_tokens", "output_tokens", "latency_s", "expected_speedups")
#: One stored forecast; its flags are 1 for parsed and 2 for deferred.
_CELL: Final = np.dtype(
    [("row", "<i8"), ("repeat", "<i8"), ("line", "<i8"), ("flags", "i1"), ("stated", "i1")]
    + [(name, "<f8") for name in _AMOUNTS] + [("p", "<f8", (N_BINS,))]
)  # fmt: skip
_PACK: Final = struct.Struct("<qqqbb5d8d").pack
#: What is said of a line of which the end is missing.
_CUT_OFF: Final = {
    "code": "cut-off",
    "message": "the file ends in the middle of this line",
    "fix": "Was the writer stopped?",
}
_UNIFORM: Final = (1.0 / N_BINS,) * N_BINS


class _Collector:
    """Takes forecasts one by one, then makes arrays of them."""

    def __init__(self, faults: FileFaults, bounds: tuple[float, float], *, keep_rationales: bool) -> None:
        self.faults, self.target, self.bounds = faults, faults.target, bounds
        self.rationales: dict[tuple[int, int], str] | None = {} if keep_rationales else None
        self._cells = bytearray()

    def take(self, row: Mapping[str, Any], line: int) -> None:
        """One forecast, as a JSON object or a row of a table."""
        if not self.faults.belongs(row.get("surrogate_label"), line):
            return
        entry, faults, strange = read_entry(row, file=self.faults.name, line=line)
        self.faults.strange(strange)
        for finding in faults:
            self.faults.add(finding)
        if entry is not None:
            self.store(entry, line)

    def store(self, entry: WrittenForecast, line: int) -> None:
        """One forecast that has no fault of its own and is the forecaster's that was asked for."""
        at = self.target.index.get(entry.row_id)
        if at is None:
            self.faults.unknown_row(entry.row_id, line)
            return
        p = entry.probabilities
        low, high = self.bounds
        # The sum of the numbers that are there is always bounded; a stated one (of published tables) in addition.
        own = raw_sum = entry.raw_sum
        if low <= own <= high and entry.raw_probability_sum is not None:
            raw_sum = entry.raw_probability_sum
        if p is not None and not low <= raw_sum <= high:
            what = "the probabilities sum" if raw_sum == own else "before renormalisation they summed"
            self.faults.fault(
                "raw-sum", f"{what} to {raw_sum:.4g}, not {low:g} to {high:g}: it counts as no forecast",
                severity="warning", line=line, field="probabilities",
            )  # fmt: skip
            p = None
        amounts = (entry.input_tokens, entry.output_tokens, entry.latency_s, entry.expected_speedup)
        self._cells += _PACK(
            at, entry.repeat, line, (p is not None) + 2 * (entry.defer is True), entry.predicted_bin or 0, raw_sum,
            *(math.nan if amount is None else amount for amount in amounts), *(_UNIFORM if p is None else p),
        )  # fmt: skip
        if self.rationales is not None and entry.rationale is not None:
            self.rationales[entry.repeat, at] = entry.rationale

    def finish(self, name: str, source: str, digest: str) -> tuple[Forecasts | None, CheckReport]:
        """The forecasts when there is no fault, and what there is to say about them."""
        cell = np.frombuffer(self._cells, dtype=_CELL)
        n_repeats = int(cell["repeat"].max()) + 1 if len(cell) else 0
        report = self.faults.report(cell, n_repeats)
        if not report.ok:
            return None, report
        r, i, shape = cell["repeat"], cell["row"], (n_repeats, len(self.target))

        def spread(values: Any, default: float | bool, dtype: Any = np.float64) -> Any:
            out = np.full(shape, default, dtype=dtype)
            out[r, i] = values
            return out

        p = np.full((*shape, N_BINS), 1.0 / N_BINS)
        p[r, i] = normalise(raw=cell["p"])
        made = Forecasts(
            name=name, source=source, digest=digest, remarks=report.findings, rationales=self.rationales,
            probabilities=p, parsed=spread((cell["flags"] & 1) > 0, False, bool), present=spread(True, False, bool),
            deferred=spread((cell["flags"] & 2) > 0, False, bool), stated=spread(cell["stated"], 0, np.int8),
            **{amount: spread(cell[amount], math.nan) for amount in _AMOUNTS},
        )  # fmt: skip
        return made, report


def forecasts_of(
    source: ForecastSource, target: Target, *, name: str | None = None, surrogate: str | None = None
) -> Forecasts:
    """Forecasts as they are, or read from a file, a data frame or objects; arguments as in :func:`read_forecasts`.

    Raises:
        ForecastError: they have a fault; it carries every one.
        UsageError: this is nothing that forecasts can be read from.
    """
    if isinstance(source, Forecasts):
        return source if name is None else replace(source, name=name)
    return read_forecasts(source, target, name=name, surrogate=surrogate)


def read_forecasts(
    source: RowSource,
    target: Target,
    *,
    name: str | None = None,
    surrogate: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
    keep_rationales: bool = False,
) -> Forecasts:
    """Read forecasts in any of the accepted forms.

    Args:
        source: a file (JSON lines, plain, gzip or zstd, or Parquet), a data frame that gives an Arrow stream, or
            objects with the fields of a line.
        target: the split that they are for.
        name: name of the forecaster; the file's name without its endings when not given.
        surrogate: take only the lines with this ``surrogate_label`` (a published file can hold several forecasters).
        raw_sum_bounds: a raw sum outside counts as a parse failure.
        keep_rationales: keep the rationales, too.

    Raises:
        ForecastError: the forecasts have a fault; it carries every one.
        UsageError: this is nothing that forecasts can be read from.
    """
    forecasts, report = check_forecasts(
        source, target, name=name, surrogate=surrogate, raw_sum_bounds=raw_sum_bounds, keep_rationales=keep_rationales
    )
    if forecasts is None:
        errors = [f for f in report.findings if f.severity == "error"]
        more = f"{report.n_errors} faults in {report.file}" if report.n_errors > 1 else None
        raise ForecastError.from_findings(errors, more)
    return forecasts


def check_forecasts(
    source: RowSource,
    target: Target,
    *,
    name: str | None = None,
    surrogate: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
    keep_rationales: bool = False,
) -> tuple[Forecasts | None, CheckReport]:
    """Everything that there is to say about some forecasts, and the forecasts when they have no fault.

    Arguments as in :func:`read_forecasts`.

    Raises:
        ForecastError: there is no file that could be read.
        UsageError: this is nothing that forecasts can be read from.
    """
    shown = printable(str(source), 300) if isinstance(source, (str, Path)) else "rows"
    collector = _Collector(FileFaults(shown, target, surrogate), raw_sum_bounds, keep_rationales=keep_rationales)
    if not isinstance(source, (str, Path)):
        return collector.finish(name or "forecasts", "", _read_objects(source, collector))
    try:
        file = regular_file(source)
    except UntrustedFileError as error:
        raise ForecastError.from_findings([error.finding(shown)]) from None
    digest = _read_parquet(file, collector) if is_parquet(file) else _read_lines(file, collector)
    return collector.finish(name or name_of(source), str(source), digest)


def name_of(path: str | Path) -> str:
    """The name of a forecaster whose file has this path: without its folder and its endings."""
    name = Path(path).name
    for ending in (".zst", ".gz", ".jsonl", ".ndjson", ".json", ".parquet"):
        name = name.removesuffix(ending)
    return name or "forecasts"


def _limits(target: Target) -> tuple[int, int]:
    """Bytes, uncompressed, and lines: forecasts of a split take no more."""
    return min((16 << 20) + len(target) * (256 << 10), 4 << 30), 10_000 + len(target) * MAX_REPEATS


def _read_lines(path: Path, into: _Collector) -> str:
    max_bytes, max_lines = _limits(into.target)
    source = Lines(path, max_bytes=max_bytes, max_lines=max_lines)
    for item in source:
        if isinstance(item, Finding):
            into.faults.add(item)
            continue
        line, text = item
        quick = quick_entry(text)
        if quick is not None:
            if into.faults.belongs(None, line):
                into.store(quick, line)
            continue
        row = decode_line(text, file=into.faults.name, line=line)
        if isinstance(row, list):
            into.faults.n_lines += 1
            for finding in row:
                cut = source.ended_mid_line and finding.code == "bad-json"
                into.faults.add(msgspec.structs.replace(finding, **_CUT_OFF) if cut else finding)
        else:
            into.take(row, line)
    return source.digest


def _read_parquet(path: Path, into: _Collector) -> str:
    wanted = (READ | {"surrogate_label"}) - (set() if into.rationales is not None else {"rationale", "reasoning"})
    max_bytes, max_rows = _limits(into.target)
    for item in parquet_rows(path, name=into.faults.name, wanted=wanted, max_rows=max_rows, max_bytes=max_bytes):
        if isinstance(item, Finding):
            into.faults.add(item)
        else:
            line, row = item
            into.take(row, line)
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _read_objects(source: _ArrowStream | Iterable[Mapping[str, Any]], into: _Collector) -> str:
    """Objects of this process, one after the other; the digest is that of the same objects as JSON lines."""
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        source = (row for batch in pa.table(source).to_batches(1024) for row in batch.to_pylist())
    elif not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping)):
        raise UsageError(
            f"no forecasts can be read from a {type(source).__name__}. Give a file, a data frame, a list of objects, or Forecasts"
        )
    digest = hashlib.sha256()
    for line, item in enumerate(source, 1):
        row = msgspec.to_builtins(item, str_keys=True, enc_hook=_plain)
        what = "a forecast is an object with named fields"
        try:
            digest.update(msgspec.json.encode(row) + b"\n")
            if isinstance(row, dict):
                into.take({name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}, line)
                continue
        except UnicodeEncodeError:
            what = "a text has half a character, which JSON can't hold"
        into.faults.fault("bad-json", what, line=line, value=printable(row))
    return f"sha256:{digest.hexdigest()}"


def _plain(value: Any) -> Any:
    """A value of another library, an array or a number of numpy for example, as plain Python."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
