"""Values from JSON that nobody vouches for: each is sound, or ``None``."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec

from kernel_archive.untrusted import MAX_VALUES, has_few_values

#: What decoding hostile bytes can raise.
BAD_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_MAX_DEPTH: Final = 100  # JSON nested deeper is refused
_MAX_COUNT: Final = 2**63 - 1  # largest value of an int64 column; greater ones count as missing


def any_json(data: bytes) -> Any:
    """Decode JSON of unknown types to data that can be stored; a ValueError says why it can't.

    Reads what Python's own writer leaves, too: ``NaN``, huge integers, and lone surrogates.
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
    """Make decoded JSON storable: texts as UTF-8, numbers of 64 bits; ValueError if too deep."""
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


def object_of(value: object) -> dict[str, Any]:
    """Return a dictionary as it is; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, Any]] | None:
    """Return a list of dictionaries as it is, else ``None``."""
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return value
    return None


def inner_value(value: object, path: str) -> Any:
    """Return the value at a path of keys; ``None`` where it is missing.

    >>> inner_value({"a": {"b": 1}}, "a.b"), inner_value({"a": 2}, "a.b")
    (1, None)
    """
    for key in path.split("."):
        value = object_of(value).get(key)
    return value


def text_of(value: object) -> str | None:
    """Return a text that is not empty, else ``None``."""
    return value if isinstance(value, str) and value else None


def safe_text(text: str) -> str:
    """Spell out lone surrogates, so that the text can be stored as UTF-8; texts stay distinct."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def finite(value: object) -> float | None:
    """Return the number as a finite float; ``None`` for anything else, ``True`` included."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def positive(value: object) -> float | None:
    """Return the number when it is finite and above 0, else ``None``."""
    if type(value) is float:  # nearly always: halves the time of reading a timed case
        return value if 0.0 < value < math.inf else None
    number = finite(value)
    return number if number is not None and number > 0.0 else None


def not_negative(value: object) -> float | None:
    """Return the number when it is finite and not below 0, else ``None``."""
    number = finite(value)
    return number if number is not None and number >= 0.0 else None


def whole_number(value: object, limit: int = _MAX_COUNT) -> int | None:
    """Return an integer from 0 to ``limit``, also one written as a float; else ``None``."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= limit else None


def step_number(value: object) -> int | None:
    """Return a number that a step column can hold, else ``None``."""
    return whole_number(value, 2**31 - 1)


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds between ISO 8601 times; ``None`` for other texts."""
    with suppress(ValueError, TypeError, OverflowError):
        first, last = datetime.fromisoformat(start or ""), datetime.fromisoformat(end or "")
        return not_negative((last - first).total_seconds())
    return None
