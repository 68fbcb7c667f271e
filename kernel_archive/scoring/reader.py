"""Forecasts from a file, a table or objects: in normal form, or every fault of them in one pass and bounded memory.

The bytes of one line become its fields here; what fields may say is in :mod:`kernel_archive.scoring.formats`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from kernel_archive.bins import N_BINS
from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.scoring.collector import CheckReport, Collector
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, Forecasts
from kernel_archive.scoring.formats import MAX_REPEATS, READ, Faults, WrittenForecast
from kernel_archive.untrusted import Lines, UntrustedFileError, is_parquet, regular_file
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from kernel_archive.scoring.target import Target

_Eight = tuple[float, float, float, float, float, float, float, float]
_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
_Speedup = Annotated[float, msgspec.Meta(gt=0, lt=1e300)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """The canonical form without a fault, as its types say; everything else goes the long way."""

    row_id: Annotated[str, msgspec.Meta(min_length=1)]
    probabilities: _Eight
    repeat: Annotated[int, msgspec.Meta(ge=0, lt=MAX_REPEATS)] = 0
    predicted_bin: Annotated[int, msgspec.Meta(ge=1, le=N_BINS)] | None = None
    expected_speedup: _Speedup | None = None
    defer: bool | None = None
    rationale: str | None = None
    prompt: str | None = None
    stop_reason: str | None = None
    input_tokens: _Amount | None = None
    output_tokens: _Amount | None = None
    latency_s: _Amount | None = None


#: Every name that the reader looks up, at any depth, and those of the short form as they stand in a line.
_NAMES: Final = READ | {"surrogate_label", "bin", "p"} | {str(b) for b in range(1, N_BINS + 1)}
_QUICK_KEYS: Final = tuple(f'"{name}"'.encode() for name in _Line.__struct_fields__)
_KEYS: Final = tuple(f'"{name}"'.encode() for name in sorted(READ | {"surrogate_label"}))
#: Objects inside the line, whose keys may stand there several times.
_INNER: Final = (b'"arguments"', b'"bin_probabilities"')
#: An escape of a letter, digit or underscore, which no encoder writes; of other characters it can't hide a name.
_ESCAPED: Final = re.compile(rb"\\u00[3-7]").search
_LINES: Final = msgspec.json.Decoder(_Line)


def quick_entry(text: bytes) -> tuple[WrittenForecast, str | None] | None:
    """The forecast and the rationale of a line in canonical form without a fault; ``None`` for any other line.

    The answer is that of :func:`decode_line` and :func:`read_entry` (a test compares them), in two fifths of the time:
    150,000 lines are read in 1.3 s instead of 3.1 s.
    """
    if _may_repeat(text, _QUICK_KEYS):
        return None
    try:
        line = _LINES.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    p = line.probabilities
    total = p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6] + p[7]
    if not (0 < total < math.inf and min(p) >= 0):
        return None
    entry = WrittenForecast(
        line.row_id, line.repeat, p, total, line.predicted_bin or 0, line.defer is True,
        math.nan if line.input_tokens is None else line.input_tokens,
        math.nan if line.output_tokens is None else line.output_tokens,
        math.nan if line.latency_s is None else line.latency_s,
        expected_speedup=math.nan if line.expected_speedup is None else line.expected_speedup,
    )  # fmt: skip
    return entry, line.rationale


def _may_repeat(text: bytes, keys: tuple[bytes, ...]) -> bool:
    """Whether one of the keys may stand in the line twice: literally, or with one of its letters escaped."""
    return _ESCAPED(text) is not None or any(text.count(key) > 1 for key in keys)


def decode_line(text: bytes, *, file: str, line: int) -> dict[str, Any] | list[Finding]:
    """The JSON object of a line, or what is wrong with it.

    NaN, infinities and numbers beyond a double are decoded, so that the fault can name their field.
    """
    faults = Faults(file, line)
    try:
        # As text from here on: the json module would read bytes as UTF-16 or UTF-32, too, where no check finds a name.
        string = text.decode("utf-8")
        value = msgspec.json.decode(string)
    except UnicodeDecodeError as error:
        faults.add("bad-utf8", f"not UTF-8 at byte {error.start + 1} of the line", fix="Save the file as UTF-8")
        return faults.found
    except RecursionError:
        faults.add("nested-too-deeply", "the line is nested too deeply to be a forecast")
        return faults.found
    except msgspec.DecodeError as error:
        try:
            value = json.loads(string)
        except RecursionError:
            faults.add("nested-too-deeply", "the line is nested too deeply to be a forecast")
            return faults.found
        except ValueError:
            faults.add(
                "bad-json", f"not a JSON line: {printable(str(error), 200)}", value=text[:80].decode(errors="replace")
            )
            return faults.found
    if not isinstance(value, dict):
        faults.add("bad-json", "a line must hold one JSON object", value=value, fix="See: kernel-archive template")
        return faults.found
    if _may_repeat(text, _KEYS) or any(key in text for key in _INNER):
        try:
            twice = repeated_keys(text)
        except RecursionError:
            faults.add("nested-too-deeply", "the line is nested too deeply to be a forecast")
            return faults.found
        except ValueError as error:
            faults.add("bad-json", f"not a JSON line: {printable(str(error), 200)}")
            return faults.found
        if twice:
            faults.add("repeated-field", "the field is there twice in one object", field=twice[0])
            return faults.found
    return value


def repeated_keys(text: bytes) -> list[str]:
    """Names that the reader looks up and that an object of the text holds twice."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in items)
        found.extend(name for name, count in counts.items() if count > 1 and name in _NAMES)
        return dict(items)

    json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    return found


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
