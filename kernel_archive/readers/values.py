"""Values out of text that nobody promised to be right: JSON, numbers, times, texts and cells of tables, each sound or ``None``."""

from __future__ import annotations

import json
import math
import re
import types
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

from kernel_archive.untrusted import MAX_VALUES, has_few_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

#: What decoding of hostile bytes can raise.
BAD_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_MAX_DEPTH: Final = 100
#: Steps and counts that an int32 column can hold.
_MAX_STEP: Final = 2**31 - 1
_MAX_COUNT: Final = 2**63 - 1
#: What :func:`lookup` gives where there is nothing at all, not even a null.
ABSENT: Final = object()
_MISSING: Final = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>"})
TRUE: Final = frozenset({"true", "correct", "passed", "pass", "ok", "yes", "y", "1", "1.0"})
_FALSE: Final = frozenset({"false", "incorrect", "failed", "fail", "no", "n", "0", "0.0"})
#: A number with its unit, as people print them.
_QUANTITY: Final = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(ns|us|\u00b5s|\u03bcs|ms|s|sec|x|\u00d7)")
_SPELLED_UNITS: Final = {"\u00b5s": "us", "\u03bcs": "us", "sec": "s", "\u00d7": "x"}
_MOST_DIGITS: Final = 40
#: What a word of an outcome says of how a program failed, the plainest first.
_FAILURES: Final = (
    (None, r"(?<![a-z])(ok|pass(ed)?|success(ful)?|succeeded|correct|valid|good|not?|no_?error)(?![a-z])"),
    ("compile_failed", r"compil|build|syntax|nvcc"),
    ("infrastructure_failure", r"infra|cancel|preempt"),
    ("incorrect", r"wrong|incorrect|mismatch|assert|numeric|verif|accura|toleran|correctness"),
    (
        "runtime_error",
        r"crash|\btle\b|time_?out|timed_?out|oom|memory|exception|runtime|launch|seg|hang|abort|illegal|error",
    ),
    ("incorrect", r"fail|invalid"),
)


def any_json(data: bytes) -> Any:
    """Any JSON value as plain data that can be stored: the one way in for JSON of which the types are not known.

    Taken, too, are ``NaN`` and ``Infinity``, numbers out of range and lone surrogates, which Python's own writer leaves.

    Raises:
        ValueError: not JSON even so, nested too deeply, or too many values.
    """
    if not has_few_values(data):
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Decoded here: given bytes, the standard library would also guess UTF-16 and UTF-32.
            value = json.loads(data.decode())
        return storable(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def storable(value: Any, depth: int = 0) -> Any:
    """Decoded JSON with texts that can be written as UTF-8, numbers that fit into 64 bits, and bounded depth.

    Raises:
        ValueError: nested too deeply.
    """
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, int):
        return value if -_MAX_COUNT <= value <= _MAX_COUNT else finite(value)
    if not isinstance(value, list | dict):
        return value
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [storable(v, depth + 1) for v in value]
    return {safe_text(k): storable(v, depth + 1) for k, v in value.items()}


@cache
def _fields(cls: type) -> tuple[tuple[str, Any, bool, type | None], ...]:
    """Name, type, required, and the nested struct type of each field of a struct that readers look into."""
    out = []
    for field in msgspec.structs.fields(cls):
        if field.type is msgspec.Raw:
            continue
        options = get_args(field.type) if get_origin(field.type) in (Union, types.UnionType) else (field.type,)
        nested = next((t for t in options if isinstance(t, type) and issubclass(t, msgspec.Struct)), None)
        out.append((field.encode_name, field.type, field.required, nested))
    return tuple(out)


def build(cls: type[T], value: dict[str, Any], odd: list[tuple[str, Any]], path: str = "") -> T:
    """A struct from a dictionary, field by field: an optional field of the wrong type is left out, and ``odd`` gets its path and value.

    Raises:
        ValueError: a required field is missing or of the wrong type; the argument is its path.
    """
    out: dict[str, Any] = {}
    for name, kind, required, nested in _fields(cls):  # type: ignore[arg-type]  # a class is hashable
        if name not in value:
            if required:
                raise ValueError(f"{path}{name}")
            continue
        given = value[name]
        if nested is not None and isinstance(given, dict):
            out[name] = build(nested, given, odd, f"{path}{name}.")
            continue
        try:
            out[name] = msgspec.convert(given, kind)
        except (msgspec.ValidationError, OverflowError, RecursionError):
            if required:
                raise ValueError(f"{path}{name}") from None
            odd.append((f"{path}{name}", given))
    return cls(**out)


def object_of(value: object) -> dict[str, Any]:
    """A dictionary; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str | None:
    """A text that is not empty, else ``None``."""
    return value if isinstance(value, str) and value else None


def safe_text(text: str) -> str:
    """The text with lone surrogates spelled out, so that it can be stored as UTF-8; different texts stay different."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def finite(value: object) -> float | None:
    """The number as a finite float; ``None`` for anything else, ``True`` and ``False`` included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number - number == 0.0 else None


def positive(value: object) -> float | None:
    """The number when it is finite and above 0, else ``None``."""
    if type(value) is float:  # nearly always: half the time of reading a timed case
        return value if 0.0 < value < math.inf else None
    number = finite(value)
    return number if number is not None and number > 0.0 else None


def not_negative(value: object) -> float | None:
    """The number when it is finite and not below 0, else ``None``."""
    number = finite(value)
    return number if number is not None and number >= 0.0 else None


def natural(value: object, limit: int = _MAX_COUNT) -> int | None:
    """The value when it is an integer from 0 to ``limit`` (also as a float: tables with gaps), else ``None``."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= limit else None


def step_number(value: object) -> int | None:
    """The value when a step column can hold it."""
    return natural(value, _MAX_STEP)


def from_text(value: Any) -> Any:
    """The number that a text spells, as tables without types have them; anything else as it is."""
    if not isinstance(value, str) or len(value) > 100:
        return value
    text = value.strip()
    try:
        return int(text) if text.lstrip("+-").isdigit() and len(text) < 19 else float(text)
    except ValueError:
        return value


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Seconds from one ISO 8601 time to another; ``None`` where one is missing or none, or the end comes first."""
    if start is None or end is None:
        return None
    try:
        seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if seconds >= 0 else None


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value of a column or at a dotted path, also into lists by number and into texts that are JSON objects.

    >>> lookup({"a": {"b": [1, 2]}, "c": '{"d": 3}'}, "a.b.1"), lookup({"a.b": 5}, "a.b"), lookup({"c": '{"d": 3}'}, "c.d")
    (2, 5, 3)
    """
    if path in row:
        return row[path]
    if "." not in path:
        return ABSENT
    value: Any = row
    for step in path.split("."):
        if isinstance(value, str) and value.lstrip()[:1] == "{":
            try:
                value = any_json(value.encode())
            except BAD_JSON:
                return ABSENT
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def is_missing(value: Any) -> bool:
    """Whether a cell is missing, in any spelling."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or value is ABSENT or (isinstance(value, str) and value.strip().casefold() in _MISSING)


def truth(value: Any) -> bool | None:
    """A boolean in any spelling; ``None`` for what is none.

    >>> truth("True"), truth(0), truth("maybe")
    (True, False, None)
    """
    word = str(value).strip().casefold()
    return True if word in TRUE else False if word in _FALSE else None


def failure_of(word: str) -> str | None:
    """The failure that a word says; ``None`` where it says none, or that all went well.

    >>> failure_of("FAIL_NUMERIC"), failure_of("FAIL_BUILD"), failure_of("build ok"), failure_of("slower")
    ('incorrect', 'compile_failed', None, None)
    """
    return next((outcome for outcome, said in _FAILURES if re.search(said, word.casefold())), None)


def quantity(value: Any) -> tuple[Any, str | None]:
    """A number that may be spelled as text, and the unit that the text states: s, ms, us, ns, or x.

    >>> quantity("12.3 us"), quantity("0.5"), quantity("1.8x"), quantity("fast")
    ((12.3, 'us'), (0.5, None), (1.8, 'x'), ('fast', None))
    """
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) and len(value) < _MOST_DIGITS else None
    return (from_text(value), None) if match is None else (from_text(match[1]), _SPELLED_UNITS.get(match[2], match[2]))


def spelled(value: Any) -> str | None:
    """A value that is a text, a number or a time, as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None


def key_of(row: dict[str, Any], names: Iterable[str]) -> tuple[str, ...] | None:
    """The values that rows are joined by; 1, 1.0 and "1" are one. ``None`` where one is missing."""
    values = [lookup(row, name) for name in names]
    if any(map(is_missing, values)):
        return None
    return tuple(str(int(n) if isinstance(n, float) and n.is_integer() else n).strip() for n in map(from_text, values))
