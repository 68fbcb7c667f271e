"""One line, or one object, in any of the accepted forms -> one typed entry, or every fault of it.

Forms, told apart by their fields (a field that is null counts as absent):

* canonical: ``row_id, repeat, probabilities`` (eight numbers);
* tool call: ``row_id, repeat`` and ``p_severe_slowdown`` ... ``p_extreme_speedup``, flat or under ``arguments``
  (an object, or the text of one);
* published: ``comparison_id`` or ``pair_id``, ``repeat``, ``bin_probabilities`` (list of ``{bin, p}``, or a map),
  ``parse_failed``.

The optional fields are the same in all of them; :data:`FIELDS` lists every one. The bytes of a line are decoded here, too.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from kernel_archive.bins import BIN_NAMES, N_BINS
from kernel_archive.errors import printable
from kernel_archive.scoring.faults import LineFaults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.errors import Finding

#: Repeats of one row are numbered 0 to 99.
MAX_REPEATS: Final = 100
#: The arguments of the tool call, in the order of the bins.
TOOL_FIELDS: Final = tuple(f"p_{name}" for name in BIN_NAMES)
ID_FIELDS: Final = ("row_id", "comparison_id", "pair_id")
#: Field -> what it holds. Also the source of the published JSON Schema and of the template's explanation.
FIELDS: Final[dict[str, str]] = {
    "row_id": "id of the row in the split (comparison_id and pair_id are read, too)",
    "repeat": "number of the repeat, from 0 without a gap; 0 when absent",
    "probabilities": "probabilities of the eight bins, from severe slowdown to extreme speedup; they are renormalised",
    "predicted_bin": "the bin that the forecaster names, 1 to 8; the most probable bin is scored unless told otherwise",
    "expected_speedup": "the speedup that the forecaster expects, positive, in x: it orders candidates that the bins tie, and is "
    "used only in figures that say so",
    "defer": "true: leave this candidate to a measurement; probabilities may then be absent",
    "parse_failed": "true: the forecaster answered, and its answer gave no distribution",
    "parse_error": "why there is no distribution, in a word",
    "rationale": "free text (reasoning is read, too)",
    "prompt": "name and digest of the prompt that was answered",
    "stop_reason": "why the model stopped, where that was not its own end: max_tokens, refused",
    "input_tokens": "tokens read for this forecast",
    "output_tokens": "tokens written",
    "latency_s": "seconds that it took (elapsed_s is read, too)",
}
#: Fields of the published tables that say nothing to the scorer.
IGNORED: Final = frozenset(
    {"pack", "pack_name", "surrogate_label", "model", "forecaster", "name", "type", "id", "canary"}
    | {"source_search", "internal_experiment", "source_id", "true_bin", "hardware", "problem_id", "benchmark_family"}
)
READ: Final = frozenset(
    {
        *FIELDS,
        *ID_FIELDS,
        *TOOL_FIELDS,
        "bin_probabilities",
        "raw_probability_sum",
        "arguments",
        "reasoning",
        "elapsed_s",
    }
)
_KNOWN: Final = READ | IGNORED
_NUMBERS: Final = frozenset({float, int})


_Eight = Annotated[list[float], msgspec.Meta(min_length=N_BINS, max_length=N_BINS)]
_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]


class WrittenForecast(msgspec.Struct, forbid_unknown_fields=True):
    """One forecast as it was written, with the types of a line in canonical form; ``None`` is what is not there.

    ``raw_probability_sum`` is the sum that the probabilities had before somebody renormalised them, as the published tables
    state it. It is only what a file says of itself: it can make a forecast a parse failure, but never save one.
    """

    row_id: Annotated[str, msgspec.Meta(min_length=1)]
    probabilities: _Eight | None
    repeat: Annotated[int, msgspec.Meta(ge=0, lt=MAX_REPEATS)] = 0
    predicted_bin: Annotated[int, msgspec.Meta(ge=1, le=N_BINS)] | None = None
    expected_speedup: Annotated[float, msgspec.Meta(gt=0, lt=1e300)] | None = None
    defer: bool | None = None
    rationale: str | None = None
    prompt: str | None = None
    stop_reason: str | None = None
    input_tokens: _Amount | None = None
    output_tokens: _Amount | None = None
    latency_s: _Amount | None = None
    raw_probability_sum: _Amount | None = None

    @property
    def raw_sum(self) -> float:
        """Sum of the probabilities, from the first to the last; NaN where there are none."""
        p = self.probabilities
        return math.nan if p is None else p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6] + p[7]


#: Every name that the reader looks up, at any depth, and those of the short form as they stand in a line.
_NAMES: Final = READ | {"surrogate_label", "bin", "p"} | {str(b) for b in range(1, N_BINS + 1)}
_QUICK_KEYS: Final = tuple(f'"{name}"'.encode() for name in WrittenForecast.__struct_fields__)
_KEYS: Final = tuple(f'"{name}"'.encode() for name in sorted(READ | {"surrogate_label"}))
#: Objects inside the line, whose keys may stand there several times.
_INNER: Final = (b'"arguments"', b'"bin_probabilities"')
#: An escape of a letter, digit or underscore, which no encoder writes; of other characters it can't hide a name.
_ESCAPED: Final = re.compile(rb"\\u00[3-7]").search
_LINES: Final = msgspec.json.Decoder(WrittenForecast)


def quick_entry(text: bytes) -> WrittenForecast | None:
    """The forecast of a line in canonical form without a fault; ``None`` for any other line.

    The answer is that of :func:`decode_line` and :func:`read_entry` (a test compares them), in two fifths of the time:
    150,000 lines are read in 1.3 s instead of 3.1 s.
    """
    if _may_repeat(text, _QUICK_KEYS):
        return None
    try:
        entry = _LINES.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    p = entry.probabilities
    fine = p is not None and min(p) >= 0 and 0 < entry.raw_sum < math.inf
    return entry if fine and entry.raw_probability_sum is None else None


def _may_repeat(text: bytes, keys: tuple[bytes, ...]) -> bool:
    """Whether one of the keys may stand in the line twice: literally, or with one of its letters escaped."""
    return _ESCAPED(text) is not None or any(text.count(key) > 1 for key in keys)


def decode_line(text: bytes, *, file: str, line: int) -> dict[str, Any] | list[Finding]:
    """The JSON object of a line, or what is wrong with it.

    NaN, infinities and numbers beyond a double are decoded, so that the fault can name their field.
    """
    faults = LineFaults(file, line)
    reason = shown = None
    try:
        # As text from here on: the json module would read bytes as UTF-16 or UTF-32, too, where no check finds a name.
        string = text.decode("utf-8")
        try:
            value = msgspec.json.decode(string)
        except msgspec.DecodeError as error:
            reason, shown = str(error), text[:80].decode(errors="replace")
            value = json.loads(string)
        if not isinstance(value, dict):
            faults.add("bad-json", "a line must hold one JSON object", value=value, fix="See: kernel-archive template")
        elif _may_repeat(text, _KEYS) or any(key in text for key in _INNER):
            for name in repeated_keys(string)[:1]:
                faults.add("repeated-field", "the field is there twice in one object", field=name)
    except UnicodeDecodeError as error:
        faults.add("bad-utf8", f"not UTF-8 at byte {error.start + 1} of the line", fix="Save the file as UTF-8")
    except RecursionError:
        faults.add("nested-too-deeply", "the line is nested too deeply to be a forecast")
    except ValueError as error:
        faults.add("bad-json", f"not a JSON line: {printable(reason or str(error), 200)}", value=shown)
    return faults.found or value


def repeated_keys(text: str) -> list[str]:
    """Names that the reader looks up and that an object of the text holds twice."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in items)
        found.extend(name for name, count in counts.items() if count > 1 and name in _NAMES)
        return dict(items)

    json.loads(text, object_pairs_hook=pairs)
    return found


def read_entry(
    row: Mapping[str, Any], *, file: str, line: int, default_id: str | None = None
) -> tuple[WrittenForecast | None, list[Finding], Sequence[str]]:
    """One forecast from its fields.

    Args:
        row: the fields; a field that is ``None`` counts as absent.
        file: for the findings.
        line: for the findings: line, or row of a table, from 1.
        default_id: row id where the fields name none (a completion, whose row its caller knows).

    Returns:
        the entry (``None`` when it has a fault), its faults, and the names of fields that nothing reads.
    """
    faults = LineFaults(file, line)
    strange = [key for key in row if key not in _KNOWN]
    if "arguments" in row and row["arguments"] is not None:
        row = _with_arguments(row, faults)
    row_id = _row_id(row, faults, default_id)
    repeat = _whole(row, "repeat", 0, MAX_REPEATS - 1, faults, "Number the repeats 0, 1, 2, ... without a gap")
    stated = _whole(row, "predicted_bin", 1, N_BINS, faults, "Give a bin from 1 to 8, or leave it out")
    defer = _flag(row, "defer", faults)
    failed = _flag(row, "parse_failed", faults)
    raw, field = _distribution(row, faults)
    before_sum = None
    if raw is not None and failed:
        faults.add(
            "contradiction", "parse_failed is true and there are probabilities", field=field, fix="Drop one of the two"
        )
    elif raw is not None:
        raw = _checked(raw, field, faults)
        if raw is not None and field == "bin_probabilities":
            before_sum = _number(row, "raw_probability_sum", faults)
    elif not faults.found and not failed and not defer:
        fix = "Give eight numbers, or parse_failed: true where the forecaster gave no distribution"
        for near in difflib.get_close_matches("probabilities", strange, n=1):
            fix = f"Did you mean {printable(near)!r}?"
        faults.add("missing-field", "there are no probabilities", "probabilities", fix=fix)
    for name in ("rationale", "reasoning", "parse_error", "prompt", "stop_reason"):
        text = row.get(name)
        if text is not None and not isinstance(text, str):
            faults.add("not-text", "must be text", field=name, value=text)
    seconds = [row[name] for name in ("latency_s", "elapsed_s") if row.get(name) is not None]
    if len(seconds) == 2 and seconds[0] != seconds[1]:
        faults.add("contradiction", "latency_s is another number", "elapsed_s", seconds[1], "Drop one of the two")
    entry = WrittenForecast(
        row_id=row_id,
        repeat=repeat or 0,
        probabilities=raw,
        predicted_bin=stated,
        defer=defer,
        rationale=row.get("rationale") or row.get("reasoning"),
        input_tokens=_number(row, "input_tokens", faults),
        output_tokens=_number(row, "output_tokens", faults),
        latency_s=_number(row, "elapsed_s" if row.get("latency_s") is None else "latency_s", faults),
        raw_probability_sum=before_sum,
        expected_speedup=_number(row, "expected_speedup", faults),
    )
    return (None if faults.found else entry), faults.found, strange


def _row_id(row: Mapping[str, Any], faults: LineFaults, default: str | None) -> str:
    given = [(name, row[name]) for name in ID_FIELDS if row.get(name) is not None]
    if not given:
        if default is None:
            faults.add("missing-field", "there is no row id", field="row_id", fix="Give the row_id of the split")
        return default or ""
    for name, value in given:
        if not (isinstance(value, str) and value):
            faults.add("bad-row-id", "must be the id of a row, as text", field=name, value=value)
            return ""
        if value != given[0][1]:
            faults.add("contradiction", f"{given[0][0]} names another row", name, value, "Drop one of the two")
            return ""
    return str(given[0][1])


def _with_arguments(row: Mapping[str, Any], faults: LineFaults) -> Mapping[str, Any]:
    """The fields with those of a tool call's ``arguments`` beside them."""
    given = row["arguments"]
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            given = json.loads(given, object_pairs_hook=lambda items: _once(items, faults))
    if not isinstance(given, dict):
        faults.add("bad-json", "must be a JSON object", field="arguments", value=given)
        return row
    outer = {k: v for k, v in row.items() if v is not None}
    for name in sorted(READ & outer.keys() & given.keys()):
        if given[name] is not None and given[name] != outer[name]:
            message = "arguments holds another value of this field"
            faults.add("contradiction", message, name, given[name], "Drop one of the two")
    return {**given, **outer}


def _once(items: list[tuple[str, Any]], faults: LineFaults) -> dict[str, Any]:
    """An object; a field that stands in it twice is a fault."""
    out = dict(items)
    if len(out) < len(items):
        counts = Counter(name for name, _ in items)
        twice = next(name for name, count in counts.items() if count > 1)
        faults.add("repeated-field", f"the field {printable(twice)!r} is there twice in one object", field="arguments")
    return out


def _distribution(row: Mapping[str, Any], faults: LineFaults) -> tuple[Any, str]:
    """The raw probabilities, unchecked, and the field that they stand in; ``None`` where there are none."""
    forms: list[tuple[Any, str]] = []
    if row.get("probabilities") is not None:
        forms.append((row["probabilities"], "probabilities"))
    if row.get("bin_probabilities") is not None:
        forms.append((_published(row["bin_probabilities"], faults), "bin_probabilities"))
    if any(name in row and row[name] is not None for name in TOOL_FIELDS):
        missing = [name for name in TOOL_FIELDS if row.get(name) is None]
        for name in missing:
            faults.add("missing-field", "one of the eight probabilities is missing", field=name)
        forms.append((None if missing else [row[name] for name in TOOL_FIELDS], "p_*"))
    there = [form for form in forms if form[0] is not None]
    for given, field in there[1:]:
        if given != there[0][0]:
            message = f"{there[0][1]} and {field} differ"
            faults.add("contradiction", message, field=field, value=given, fix="Drop one of the two")
    return there[0] if there else forms[0] if forms else (None, "probabilities")


def _published(given: Any, faults: LineFaults) -> list[Any] | None:
    """Eight numbers from a list of ``{bin, p}`` or a map from bin to probability; an empty one is none."""
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list) and all(isinstance(item, dict) and {"bin", "p"} <= item.keys() for item in given[:99]):
        pairs = [(item["bin"], item["p"]) for item in given[:99]]
    elif isinstance(given, list) and all(isinstance(item, tuple) and len(item) == 2 for item in given[:99]):
        pairs = given
    else:
        faults.add(
            "wrong-shape", "must be a list of {bin, p} or a map from bin to p", field="bin_probabilities", value=given
        )
        return None
    if not pairs:
        return None
    by_bin = {str(name): p for name, p in pairs[:99]}
    wanted = [str(b) for b in range(1, N_BINS + 1)]
    if len(given) != N_BINS or sorted(by_bin) != wanted:
        faults.add(
            "wrong-length",
            "must hold the bins 1 to 8, each once",
            field="bin_probabilities",
            value=[name for name, _ in pairs[:12]],
        )
        return None
    return [by_bin[name] for name in wanted]


def _checked(given: Any, field: str, faults: LineFaults) -> list[float] | None:
    """The eight probabilities, when they are finite, not negative and not all 0."""
    if type(given) is not list or len(given) != N_BINS:
        what = f"{len(given)} numbers" if isinstance(given, list) else "something else"
        faults.add("wrong-length", f"must be eight numbers and holds {what}", field=field, value=given)
        return None
    if _NUMBERS.issuperset(map(type, given)):
        with suppress(OverflowError, ValueError):
            if min(given) >= 0 and 0 < math.fsum(given) < math.inf:
                return [float(v) for v in given]
    before = len(faults.found)
    for i, value in enumerate(given):
        where = TOOL_FIELDS[i] if field == "p_*" else f"{field}[{i}]"
        if type(value) not in _NUMBERS:
            faults.add("not-a-number", "a probability must be a number", where, value, "Write 0.25, not a text")
        elif not -1e300 < value < 1e300:
            faults.add("not-finite", "a probability must be finite", where, value)
        elif value < 0:
            faults.add("negative", "a probability must not be negative", where, value)
    if len(faults.found) == before:
        faults.add("zero-sum", "the probabilities must not all be 0", field=field, value=given,
                   fix="Write parse_failed: true where the forecaster gave no distribution")  # fmt: skip
    return None


def _whole(row: Mapping[str, Any], field: str, low: int, high: int, faults: LineFaults, fix: str) -> int | None:
    """A whole number in a range; ``None`` where it is absent. 5.0 counts: data frames write columns with gaps so."""
    value: Any = row.get(field)
    if type(value) in _NUMBERS and low <= value <= high and value == int(value):
        return int(value)
    if value is not None:
        faults.add("out-of-range", f"must be a whole number from {low} to {high}", field=field, value=value, fix=fix)
    return None


def _flag(row: Mapping[str, Any], field: str, faults: LineFaults) -> bool:
    value: Any = row.get(field)
    if value is not None and not isinstance(value, bool):
        faults.add("not-a-flag", "must be true or false", field=field, value=value)
    return value is True


def _number(row: Mapping[str, Any], field: str, faults: LineFaults) -> float | None:
    """A finite number of at least 0, and a speedup above 0; ``None`` where it is absent."""
    value: Any = row.get(field)
    speedup = field == "expected_speedup"
    if type(value) in _NUMBERS and 0 <= value < 1e300 and not (speedup and value == 0):
        return float(value)
    if value is not None and speedup:
        fix = "Give the speedup in x, for example 1.7, or leave the field out"
        faults.add("out-of-range", "must be a positive, finite number", field, value, fix)
    elif value is not None:
        faults.add("out-of-range", "must be a finite number of at least 0", field, value)
    return None
