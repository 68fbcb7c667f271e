"""A forecast file -> forecasts in normal form, or every fault of the file in one pass and bounded memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernel_archive.errors import Finding, ForecastError, printable
from kernel_archive.scoring.collector import CheckReport, Collector
from kernel_archive.scoring.decoding import decode_line, quick_entry
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts
from kernel_archive.scoring.formats import MAX_REPEATS, READ
from kernel_archive.untrusted import Lines, UntrustedFileError, is_parquet, parquet_rows, regular_file

if TYPE_CHECKING:
    from kernel_archive.scoring.target import Target

__all__ = ["check_forecasts", "name_of", "read_forecasts"]


def read_forecasts(
    path: str | Path,
    target: Target,
    *,
    name: str | None = None,
    surrogate: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
    keep_rationales: bool = False,
) -> Forecasts:
    """Read a forecast file: JSON lines (plain, gzip, zstd) or Parquet, in any of the accepted forms.

    Args:
        path: the file.
        target: the split that it is for.
        name: name of the forecaster; the file's name without its endings when not given.
        surrogate: take only the lines with this ``surrogate_label`` (a published file can hold several forecasters).
        raw_sum_bounds: a raw sum outside counts as a parse failure.
        keep_rationales: keep the rationales, too.

    Raises:
        ForecastError: the file has a fault; it carries every one.
    """
    forecasts, report = check_forecasts(
        path, target, name=name, surrogate=surrogate, raw_sum_bounds=raw_sum_bounds, keep_rationales=keep_rationales
    )
    if forecasts is None:
        errors = [f for f in report.findings if f.severity == "error"]
        more = f"{report.n_errors} faults in {report.file}" if report.n_errors > 1 else None
        raise ForecastError(more or errors[0].render(), findings=errors)
    return forecasts


def check_forecasts(
    path: str | Path,
    target: Target,
    *,
    name: str | None = None,
    surrogate: str | None = None,
    raw_sum_bounds: tuple[float, float] = RAW_SUM_BOUNDS,
    keep_rationales: bool = False,
) -> tuple[Forecasts | None, CheckReport]:
    """Everything that there is to say about a forecast file, and its forecasts when it has no fault.

    Arguments as in :func:`read_forecasts`.

    Raises:
        ForecastError: there is no file that could be read.
    """
    try:
        file = regular_file(path)
    except UntrustedFileError as error:
        raise ForecastError.from_findings([error.finding(printable(str(path), 300))]) from None
    collector = Collector(file, target, surrogate, raw_sum_bounds, keep_rationales)
    digest = _read_parquet(file, collector) if is_parquet(file) else _read_lines(file, collector)
    return collector.finish(name or name_of(path), digest)


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
