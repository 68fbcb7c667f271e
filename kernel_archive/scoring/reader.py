"""Forecasts from a file, a table or objects: in normal form, or every fault of them in one pass and bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.scoring.collector import CheckReport, Collector
from kernel_archive.scoring.decoding import decode_line, quick_entry
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts
from kernel_archive.scoring.formats import MAX_REPEATS, READ
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
    is_file = isinstance(source, (str, Path))
    shown = printable(str(source), 300) if is_file else "rows"
    collector = Collector(shown, target, surrogate, raw_sum_bounds, keep_rationales=keep_rationales)
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


def _max_bytes(into: Collector) -> int:
    """Forecasts of a split take no more, uncompressed."""
    return min((16 << 20) + len(into.target) * (256 << 10), 4 << 30)


def _max_lines(into: Collector) -> int:
    return 10_000 + len(into.target) * MAX_REPEATS


def _read_lines(path: Path, into: Collector) -> str:
    source = Lines(path, max_bytes=_max_bytes(into), max_lines=_max_lines(into))
    last = 0
    for item in source:
        if isinstance(item, Finding):
            into.add(item)
            continue
        last, text = item
        quick = quick_entry(text)
        if quick is not None:
            into.take_entry(*quick, last)
            continue
        row = decode_line(text, file=into.name, line=last)
        if isinstance(row, list):
            into.n_lines += 1
            for finding in row:
                if source.ended_mid_line and finding.code == "bad-json":
                    finding = msgspec.structs.replace(  # noqa: PLW2901 - the same fault, said better
                        finding,
                        code="cut-off",
                        message="the file ends in the middle of this line",
                        fix="Was the writer stopped?",
                    )
                into.add(finding)
        else:
            into.take(row, last)
    return source.digest


def _read_parquet(path: Path, into: Collector) -> str:
    wanted = (READ | {"surrogate_label"}) - (set() if into.rationales is not None else {"rationale", "reasoning"})
    for item in parquet_rows(
        path, name=into.name, wanted=wanted, max_rows=_max_lines(into), max_bytes=_max_bytes(into)
    ):
        if isinstance(item, Finding):
            into.add(item)
        else:
            line, row = item
            into.take(row, line)
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _read_objects(source: _ArrowStream | Iterable[Mapping[str, Any]], into: Collector) -> str:
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
        digest.update(msgspec.json.encode(row) + b"\n")
        if isinstance(row, dict):
            into.take({name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}, line)
        else:
            into.fault("bad-json", "a forecast is an object with named fields", line=line, value=printable(row))
    return f"sha256:{digest.hexdigest()}"


def _plain(value: Any) -> Any:
    """A value of another library, an array or a number of numpy for example, as plain Python."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
