"""Read one line of a forecast file: its fields, the accepted forms, every fault of it.

Two further forms, told apart by their fields, are brought into the canonical one (:data:`FIELDS`):

* tool call: ``p_severe_slowdown`` ... ``p_extreme_speedup``;
* published tables: ``comparison_id`` or ``pair_id``, and ``bin_probabilities`` (a list of
  ``{bin, p}`` or a map).

msgspec converts that to a :class:`ForecastLine`. A field that is null counts as absent.
"""

from __future__ import annotations

import difflib
import json
import reprlib
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta

from kernel_archive.bins import BIN_NAMES, N_BINS
from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Repeats of one row are numbered 0 to 99; a higher number is refused.
MAX_REPEATS: Final = 100
#: The arguments of the tool call, in the order of the bins.
TOOL_FIELDS: Final = tuple(f"p_{name}" for name in BIN_NAMES)

#: Field -> what it holds, for the template and the JSON Schema.
FIELDS: Final[dict[str, str]] = {
    "row_id": "id of the row in the split (comparison_id and pair_id are read, too)",
    "repeat": "number of the repeat, from 0 without a gap; 0 when absent",
    "probabilities": "probabilities of the eight bins, from severe slowdown to extreme speedup; "
    "they are renormalised",
    "predicted_bin": "the bin that the forecaster names, 1 to 8; the most probable bin is scored "
    "unless told otherwise",
    "expected_speedup": "the speedup that the forecaster expects, positive, in x: it orders "
    "candidates that the bins tie, and is used only in figures that say so",
    "defer": "true: leave this candidate to a measurement; probabilities may then be absent",
    "parse_failed": "true: the forecaster answered, and its answer gave no distribution",
    "parse_error": "why there is no distribution, in a word",
    "rationale": "free text (reasoning is read, too)",
    "prompt": "name and digest of the prompt that was answered",
    "question": "digest of the very text that was answered",
    "stop_reason": "why the model stopped, where that was not its own end: max_tokens, refused",
    "input_tokens": "tokens read for this forecast",
    "output_tokens": "tokens written",
    "latency_s": "seconds that it took (elapsed_s is read, too)",
}
_Amount = Annotated[float, Meta(ge=0, lt=1e300)]
_Eight = Annotated[list[_Amount], Meta(min_length=N_BINS, max_length=N_BINS)]


class ForecastLine(msgspec.Struct, kw_only=True):
    """Hold one forecast in canonical form (:data:`FIELDS`); ``None`` is what is not there."""

    row_id: Annotated[str, Meta(min_length=1)]
    repeat: Annotated[int, Meta(ge=0, lt=MAX_REPEATS)] | None = 0
    probabilities: _Eight | None = None
    predicted_bin: Annotated[int, Meta(ge=1, le=N_BINS)] | None = None
    expected_speedup: Annotated[float, Meta(gt=0, lt=1e300)] | None = None
    defer: bool | None = None
    parse_failed: bool | None = None
    parse_error: str | None = None
    rationale: str | None = None
    prompt: str | None = None
    question: str | None = None
    stop_reason: str | None = None
    input_tokens: _Amount | None = None
    output_tokens: _Amount | None = None
    latency_s: _Amount | None = None
    #: The sum before somebody renormalised, in the published tables only: it can't save a forecast.
    raw_probability_sum: _Amount | None = None


_TYPES: Final = get_type_hints(ForecastLine, include_extras=True)
#: Another name of a field -> its name.
_SYNONYMS: Final = {
    "comparison_id": "row_id",
    "pair_id": "row_id",
    "elapsed_s": "latency_s",
    "reasoning": "rationale",
}
#: Every field that is read.
READ: Final = frozenset({*_TYPES, *_SYNONYMS, *TOOL_FIELDS, "bin_probabilities", "surrogate_label"})
#: Fields of the published tables that say nothing to the scorer.
_IGNORED: Final = (
    "pack pack_name model forecaster name type id canary source_search source_id hardware"
)
KNOWN: Final = READ | {
    *_IGNORED.split(),
    *("internal_experiment", "true_bin", "problem_id", "benchmark_family"),
}

_FLAG: Final = ("not-a-flag", "must be true or false", None)
_TEXT: Final = ("not-text", "must be text", None)
_AMOUNT: Final = ("out-of-range", "must be a finite number of at least 0", None)
#: Field -> code, message and fix of a value that it can't have.
_FAULTS: Final[dict[str, tuple[str, str, str | None]]] = {
    "row_id": ("bad-row-id", "must be the id of a row, as text", None),
    "repeat": (
        "out-of-range",
        f"must be a whole number from 0 to {MAX_REPEATS - 1}",
        "Number the repeats 0, 1, 2, ... without a gap",
    ),
    "predicted_bin": (
        "out-of-range",
        f"must be a whole number from 1 to {N_BINS}",
        "Give a bin from 1 to 8, or leave it out",
    ),
    "expected_speedup": (
        "out-of-range",
        "must be a positive, finite number",
        "Give the speedup in x, for example 1.7, or leave the field out",
    ),
    **dict.fromkeys(("defer", "parse_failed"), _FLAG),
    **dict.fromkeys(("parse_error", "rationale", "prompt", "question", "stop_reason"), _TEXT),
    **dict.fromkeys(("input_tokens", "output_tokens", "latency_s"), _AMOUNT),
    "raw_probability_sum": _AMOUNT,
}


#: Python's texts can hold half of a surrogate pair; UTF-8 can't.
HALF_CHARACTER: Final = "a text has half a character, which JSON can't hold"


class LineFaults:
    """Collect the faults of one line."""

    def __init__(self, file: str, line: int) -> None:
        self.file = file
        self.line = line
        self.findings: list[Finding] = []

    def add(
        self,
        code: str,
        message: str,
        field: str | None = None,
        value: object = None,
        fix: str | None = None,
    ) -> None:
        """Add one fault."""
        place: dict[str, Any] = {"file": self.file, "line": self.line, "field": field}
        place["value"] = None if value is None else printable(_short(value))
        self.findings.append(Finding(code=code, message=message, fix=fix, **place))


def _short(value: object) -> str:
    """Show a value in bounded length and time; whole numbers can have millions of digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number of more than 60 digits"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_short, value[:12]))}{', ...' if len(value) > 12 else ''}]"
    return reprlib.repr(value)


class RepeatedFieldError(ValueError):
    """Raised when an object holds one field twice: neither value is taken."""


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in items:
        if name in fields:
            raise RepeatedFieldError(name)
        fields[name] = value
    return fields


def decode_line(text: bytes, faults: LineFaults) -> dict[str, Any] | None:
    """Decode the JSON object of a line; ``None`` where there is none, and ``faults`` say why."""
    try:
        # Takes NaN, infinities and numbers beyond a double, so that their fault names the field.
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
        if isinstance(value, dict):
            return value
        what, fix = "a line must hold one JSON object", "See: kernel-archive template"
        faults.add("bad-json", what, value=value, fix=fix)
    except RepeatedFieldError as error:
        faults.add("repeated-field", "the field is there twice in one object", str(error))
    except UnicodeDecodeError as error:
        what = f"not UTF-8 at byte {error.start + 1} of the line"
        faults.add("bad-utf8", what, fix="Save the file as UTF-8")
    except RecursionError:
        faults.add("nested-too-deeply", "the line is nested too deeply to be a forecast")
    except ValueError as error:
        shown = text[:80].decode(errors="replace")
        faults.add("bad-json", f"not a JSON line: {printable(str(error), 200)}", value=shown)
    return None


def read_line(row: Mapping[str, Any], faults: LineFaults) -> ForecastLine | None:
    """Read one forecast from the fields of a line; ``None`` where it has a fault."""
    fields, names = canonical(row, faults)
    try:
        line = msgspec.convert(fields, ForecastLine)
    except (msgspec.ValidationError, UnicodeEncodeError):
        _add_field_faults(fields, names, faults)
        if not faults.findings:
            faults.add("bad-json", HALF_CHARACTER)
        return None
    masses = line.probabilities
    if masses is not None and line.parse_failed:
        what = "parse_failed is true and there are probabilities"
        faults.add("contradiction", what, names["probabilities"], fix="Drop one of the two")
    elif masses is not None and not any(masses):
        fix = "Write parse_failed: true where the forecaster gave no distribution"
        what = "the probabilities must not all be 0"
        faults.add("zero-sum", what, names["probabilities"], masses, fix)
    elif masses is None and not (faults.findings or line.parse_failed or line.defer):
        _add_missing(row, faults)
    return None if faults.findings else line


def canonical(row: Mapping[str, Any], faults: LineFaults) -> tuple[dict[str, Any], dict[str, str]]:
    """Bring any form into the canonical one: the fields, and field -> its name in the line."""
    fields = {name: value for name, value in row.items() if value is not None}
    names = {name: name for name in _TYPES}
    for other in _SYNONYMS.keys() & fields.keys():
        name, value = _SYNONYMS[other], fields.pop(other)
        if name not in fields:
            fields[name], names[name] = value, other
        elif fields[name] != value and name != "rationale":
            _add_contradiction(names[name], other, value, faults)
    for name in ("repeat", "predicted_bin"):  # data frames write whole numbers as 5.0 beside gaps
        if isinstance(fields.get(name), float) and fields[name].is_integer():
            fields[name] = int(fields[name])
    _unite_masses(fields, names, faults)
    if names["probabilities"] != "bin_probabilities":
        fields.pop("raw_probability_sum", None)
    return fields, names


def _unite_masses(fields: dict[str, Any], names: dict[str, str], faults: LineFaults) -> None:
    """Set ``probabilities`` from the form that the line has; two forms must agree."""
    forms = {}
    if not fields.keys().isdisjoint(TOOL_FIELDS):
        forms["p_*"] = _tool_masses(fields, faults)
    if "bin_probabilities" in fields:
        forms["bin_probabilities"] = _published_masses(fields["bin_probabilities"], faults)
    for form, masses in forms.items():
        if masses is not None and "probabilities" not in fields:
            fields["probabilities"], names["probabilities"] = masses, form
        elif masses is not None and fields["probabilities"] != masses:
            _add_contradiction(names["probabilities"], form, masses, faults)


def _add_contradiction(name: str, other: str, value: object, faults: LineFaults) -> None:
    message = f"{name} states another value in the same line"
    faults.add("contradiction", message, other, value, "Drop one of the two")


def _tool_masses(fields: Mapping[str, Any], faults: LineFaults) -> list[Any] | None:
    """Eight values from the arguments of a tool call."""
    missing = [name for name in TOOL_FIELDS if name not in fields]
    for name in missing:
        faults.add("missing-field", "one of the eight probabilities is missing", name)
    return None if missing else [fields[name] for name in TOOL_FIELDS]


def _published_masses(given: Any, faults: LineFaults) -> list[Any] | None:
    """Eight values from a list of ``{bin, p}``, a map, or a map's pairs; none of an empty one."""
    field = "bin_probabilities"
    items = list(given.items()) if isinstance(given, dict) else given
    try:
        items = [(i["bin"], i["p"]) if isinstance(i, dict) else i for i in items[:99]]
    except (KeyError, TypeError):
        items = [None]
    if not all(isinstance(item, tuple) and len(item) == 2 for item in items):
        faults.add("wrong-shape", "must be a list of {bin, p} or a map from bin to p", field, given)
        return None
    masses = {str(name): mass for name, mass in items}
    wanted = [str(b) for b in range(1, N_BINS + 1)]
    if items and (len(items) != N_BINS or sorted(masses) != wanted):
        bins = [name for name, _ in items[:12]]
        faults.add("wrong-length", "must hold the bins 1 to 8, each once", field, bins)
        return None
    return [masses[name] for name in wanted] if items else None


def _add_field_faults(
    fields: Mapping[str, Any], names: Mapping[str, str], faults: LineFaults
) -> None:
    """Add a fault for every field whose value it can't have."""
    if "row_id" not in fields:
        faults.add(
            "missing-field", "there is no row id", "row_id", fix="Give the row_id of the split"
        )
    for name in [name for name in _TYPES if name in fields]:
        try:
            msgspec.convert(fields[name], _TYPES[name])
        except (msgspec.ValidationError, UnicodeEncodeError):
            if name == "probabilities":
                _add_mass_faults(fields[name], names[name], faults)
            else:
                code, message, fix = _FAULTS[name]
                faults.add(code, message, names[name], fields[name], fix)


def _add_mass_faults(masses: Any, field: str, faults: LineFaults) -> None:
    """Add a fault for every probability that is none."""
    if not isinstance(masses, list) or len(masses) != N_BINS:
        count = f"{len(masses)} numbers" if isinstance(masses, list) else "something else"
        faults.add("wrong-length", f"must be eight numbers and holds {count}", field, masses)
        return
    for i, mass in enumerate(masses):
        where = TOOL_FIELDS[i] if field == "p_*" else f"{field}[{i}]"
        if type(mass) not in (int, float):
            what, fix = "a probability must be a number", "Write 0.25, not a text"
            faults.add("not-a-number", what, where, mass, fix)
        elif not -1e300 < mass < 1e300:
            faults.add("not-finite", "a probability must be finite", where, mass)
        elif mass < 0:
            faults.add("negative", "a probability must not be negative", where, mass)


def _add_missing(row: Mapping[str, Any], faults: LineFaults) -> None:
    fix = "Give eight numbers, or parse_failed: true where the forecaster gave no distribution"
    unknown = [name for name in list(row)[:100] if name not in KNOWN]
    for near in difflib.get_close_matches("probabilities", unknown, n=1):
        fix = f"Did you mean {printable(near)!r}?"
    if "arguments" in row:
        fix = "Put the arguments of the tool call beside row_id, not into one field"
    faults.add("missing-field", "there are no probabilities", "probabilities", fix=fix)
