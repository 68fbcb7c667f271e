"""State the one form of a forecast, :class:`ForecastLine`, and read a line of a file into it.

Two adapters bring other forms into it: the arguments of a tool call (``p_severe_slowdown`` to
``p_extreme_speedup``), and rows of the published predictions (``bin_probabilities``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta

from kernel_archive.bins import BIN_NAMES, N_BINS
from kernel_archive.errors import Finding, ForecastError, printable
from kernel_archive.splits import SplitSpec
from kernel_archive.toml_files import toml_beside

#: Repeats of one row are numbered 0 to 99; a higher number is refused.
MAX_REPEATS: Final = 100
#: The arguments of the tool call, in the order of the bins.
TOOL_FIELDS: Final = tuple(f"p_{name}" for name in BIN_NAMES)
#: Fields by which a forecast can be told, one for each form.
FORMS: Final = ("probabilities", "bin_probabilities", TOOL_FIELDS[0], "p_passes")

_STATED: Final = toml_beside(__file__, "forecast_fields.toml")
#: Field -> what it holds, for the template and the JSON Schema.
FIELDS: Final = {name: str(e["meaning"]) for name, e in _STATED.items() if "meaning" in e}
#: Fields that only forecasts of outcomes have, and those that they lack.
_OF_OUTCOMES: Final = frozenset({"p_passes"})
_OF_SPEEDS: Final = frozenset({"probabilities", "predicted_bin", "expected_speedup"})
_Amount = Annotated[float, Meta(ge=0, lt=1e300)]
_Eight = Annotated[list[_Amount], Meta(min_length=N_BINS, max_length=N_BINS)]


class ForecastLine(msgspec.Struct, kw_only=True):
    """One forecast (:data:`FIELDS`); ``None`` is what is not there."""

    row_id: Annotated[str, Meta(min_length=1)]
    repeat: Annotated[int, Meta(ge=0, lt=MAX_REPEATS)] = 0
    probabilities: _Eight | None = None
    p_passes: Annotated[float, Meta(ge=0, le=1)] | None = None
    predicted_bin: Annotated[int, Meta(ge=1, le=N_BINS)] | None = None
    expected_speedup: Annotated[float, Meta(gt=0, lt=1e300)] | None = None
    defer: bool = False
    parse_failed: bool = False
    parse_error: str | None = None
    rationale: str | None = None
    prompt: str | None = None
    question: str | None = None
    stop_reason: str | None = None
    input_tokens: _Amount | None = None
    output_tokens: _Amount | None = None
    latency_s: _Amount | None = None
    # Of the published predictions: the sum before somebody renormalised, and the forecaster.
    raw_probability_sum: _Amount = math.nan
    surrogate_label: Any = None


#: Names in the published predictions -> names here.
_PUBLISHED: Final = {
    "comparison_id": "row_id",
    "pair_id": "row_id",
    "elapsed_s": "latency_s",
    "reasoning": "rationale",
}
#: Every field that is read.
READ: Final = frozenset(
    {*ForecastLine.__struct_fields__, *_PUBLISHED, *TOOL_FIELDS, "bin_probabilities"}
)
#: Those, and fields of the published tables that say nothing to the scorer.
KNOWN: Final = READ | {"pack", "model", "hardware", "problem_id", "true_bin", "canary"}

_TYPES: Final = get_type_hints(ForecastLine, include_extras=True)


class LineError(ForecastError):
    """Raised where a line holds no forecast; the findings lack file and line."""

    def __init__(self, *faults: Finding) -> None:
        super().__init__(faults[0].message, findings=faults)


def fields_of(spec: SplitSpec) -> dict[str, str]:
    """List the fields of a forecast of a split, and what each holds."""
    others = _OF_SPEEDS if spec.asks_outcome else _OF_OUTCOMES
    return {name: meaning for name, meaning in FIELDS.items() if name not in others}


def fault_of(
    code: str,
    message: str,
    field: str | None = None,
    value: object = None,
    fix: str | None = None,
) -> Finding:
    """Make a finding without file and line."""
    shown = None if value is None else printable(value)
    return Finding(code=code, message=message, field=field, value=shown, fix=fix)


def decode_line(text: bytes) -> dict[str, Any]:
    """Decode the JSON object of a line.

    Raises:
        LineError: the line holds no JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = text[:80].decode(errors="replace")
        fault = fault_of("bad-json", f"not a JSON object in a line: {error}", value=shown)
    try:  # which takes NaN, Infinity and 1e400, so that their fault can name the field
        fields = json.loads(text)
        # And lone surrogates, which nothing can write: a question mark stands for each.
        fields = json.loads(json.dumps(fields, ensure_ascii=False).encode(errors="replace"))
    except UnicodeDecodeError as error:
        fix = "Save the file as UTF-8"
        fault = fault_of("bad-utf8", f"not UTF-8: {error.reason}", fix=fix)
    except (ValueError, RecursionError):
        pass
    else:
        if isinstance(fields, dict):
            return fields
        fix = "Write one object a line"
        fault = msgspec.structs.replace(fault, code="wrong-shape", fix=fix)
    raise LineError(fault)


def read_line(fields: Mapping[str, Any], form: str = "probabilities") -> ForecastLine:
    """Read the forecast in the fields of a line; fields that are null count as absent.

    ``form`` is the field that a line without any form of forecast lacks.

    Raises:
        LineError: it has faults.

    >>> fields = {"row_id": "a", "probabilities": [0, 0, 0, 1, 0, 0, 0, 0], "defer": "no"}
    >>> read_line(fields)
    Traceback (most recent call last):
    kernel_archive.scoring.formats.LineError: must be true or false
    """
    present = {name: value for name, value in fields.items() if value is not None}
    if sum(name in present for name in FORMS) > 1:
        message, fix = "there are two distributions", f"Keep one of {', '.join(FORMS)}"
        raise LineError(fault_of("contradiction", message, "probabilities", fix=fix))
    present = _one_form(present)
    for name in ("repeat", "predicted_bin"):  # data frames write whole numbers as 5.0 beside gaps
        if isinstance(present.get(name), float) and present[name].is_integer():
            present[name] = int(present[name])
    try:
        line = msgspec.convert(present, ForecastLine)
    except msgspec.ValidationError:
        raise LineError(*_faults(present)) from None
    if line.p_passes is not None:  # of two outcomes, at the ends of the scale
        line.probabilities = [1.0 - line.p_passes, *[0.0] * (N_BINS - 2), line.p_passes]
    probabilities, field = line.probabilities, "probabilities"
    if probabilities is not None and line.parse_failed:
        message = "parse_failed is true and there are probabilities"
        raise LineError(fault_of("contradiction", message, field, fix="Drop one of the two"))
    fix = "Write parse_failed: true where the forecaster gave no distribution"
    if probabilities is not None and not any(probabilities):
        message = "the probabilities must not all be 0"
        raise LineError(fault_of("zero-sum", message, field, probabilities, fix))
    if probabilities is None and not (line.parse_failed or line.defer):
        message = "there are no probabilities" if form == field else f"there is no {form}"
        raise LineError(fault_of("missing-field", message, form, fix=fix))
    return line


def _one_form(fields: dict[str, Any]) -> dict[str, Any]:
    """Bring a tool call and a row of the published predictions into the form of a line."""
    renamed = dict(fields)
    for name, ours in _PUBLISHED.items():  # in this order: of two row ids the first counts
        if name in fields:
            renamed.setdefault(ours, renamed.pop(name))
    if not fields.keys().isdisjoint(TOOL_FIELDS):
        for name in TOOL_FIELDS:
            if name not in fields:
                message = "one of the eight probabilities is missing"
                raise LineError(fault_of("missing-field", message, name))
        renamed["probabilities"] = [fields[name] for name in TOOL_FIELDS]
    if "bin_probabilities" in fields:
        renamed["probabilities"] = _probabilities_by_bin(fields["bin_probabilities"])
    return renamed


def _probabilities_by_bin(stated: Any) -> list[Any] | None:
    """Order the probabilities of a list of {bin, p}, or of a map; ``None`` where it is empty."""
    field = "bin_probabilities"
    try:
        pairs = stated.items() if isinstance(stated, dict) else [(s["bin"], s["p"]) for s in stated]
    except (KeyError, TypeError):
        fault = fault_of("wrong-shape", "must be a list of {bin, p} or a map", field, stated)
        raise LineError(fault) from None
    by_bin = {str(label): probability for label, probability in pairs}
    labels = [str(label) for label in range(1, N_BINS + 1)]
    if by_bin and (len(pairs) != N_BINS or sorted(by_bin) != labels):
        fault = fault_of("wrong-length", "must hold the bins 1 to 8, each once", field, stated)
        raise LineError(fault)
    return [by_bin[label] for label in labels] if by_bin else None


def _faults(fields: Mapping[str, Any]) -> Iterator[Finding]:
    """Give a fault for every value that a field can't have."""
    if "row_id" not in fields:
        fix = "Give the row_id of the split"
        yield fault_of("missing-field", "there is no row id", "row_id", fix=fix)
    for name in [name for name in _TYPES if name in fields]:
        value = fields[name]
        try:
            msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError:
            if name == "probabilities" and isinstance(value, list) and len(value) == N_BINS:
                yield from _probability_faults(value)
            else:
                code, message = _STATED[name]["fault"]
                yield fault_of(code, message, name, value)


def _probability_faults(probabilities: list[Any]) -> Iterator[Finding]:
    field = "probabilities"
    for number, value in enumerate(probabilities, 1):
        if type(value) not in (int, float):
            yield fault_of("not-a-number", f"bin {number} must be a number", field, repr(value))
        elif value < 0:
            yield fault_of("negative", f"bin {number} must not be negative", field, value)
        elif not value < 1e300:
            yield fault_of("not-finite", f"bin {number} must be finite", field, value)
