"""Decoding of text that nobody promised to be right: typed when it can be, field by field when it must be."""

from __future__ import annotations

import json
import types
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

__all__ = [
    "BAD_JSON",
    "build",
    "decode_loose",
    "finite",
    "from_text",
    "natural",
    "not_negative",
    "positive",
    "safe_text",
    "seconds_between",
    "step_number",
]

T = TypeVar("T")

#: What decoding of hostile bytes can raise.
BAD_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
#: Steps and counts that an int32 column can hold.
_MAX_STEP: Final = 2**31 - 1
_MAX_COUNT: Final = 2**63 - 1


def decode_loose(data: bytes | memoryview) -> Any:
    """Any JSON value, also with ``NaN`` and ``Infinity`` literals, numbers out of range and lone surrogates.

    Raises:
        ValueError: not JSON even so (or nested too deeply).
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    try:
        # Decoded here: given bytes, the standard library would also guess UTF-16 and UTF-32.
        return json.loads(bytes(data).decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@cache
def _fields(cls: type) -> tuple[tuple[str, Any, bool, type | None], ...]:
    """Name, type, required, and the nested struct type of each field of a struct."""
    out = []
    for field in msgspec.structs.fields(cls):
        options = get_args(field.type) if get_origin(field.type) in (Union, types.UnionType) else (field.type,)
        nested = next((t for t in options if isinstance(t, type) and issubclass(t, msgspec.Struct)), None)
        out.append((field.encode_name, field.type, field.required, nested))
    return tuple(out)


def build(cls: type[T], value: dict[str, Any], odd: list[tuple[str, Any]], path: str = "") -> T:
    """A struct from a dictionary, field by field: an optional field of the wrong type is left out.

    Args:
        cls: a ``msgspec.Struct`` type.
        value: the decoded object.
        odd: gets the path and value of every field left out.
        path: where the object stands.

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
        if kind is msgspec.Raw:
            continue  # a field that no reader looks into
        if nested is not None and isinstance(given, dict):
            out[name] = build(nested, given, odd, f"{path}{name}.")
        else:
            try:
                out[name] = msgspec.convert(given, kind)
            except (msgspec.ValidationError, OverflowError, RecursionError):
                if required:
                    raise ValueError(f"{path}{name}") from None
                odd.append((f"{path}{name}", given))
    return cls(**out)


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


def from_text(value: Any) -> Any:
    """The number that a text spells, as tables without types have them; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return int(text) if text.lstrip("+-").isdigit() and len(text) < 19 else float(text)
    except ValueError:
        return value


def step_number(value: object) -> int | None:
    """The value when a step column can hold it."""
    return natural(value, _MAX_STEP)


def safe_text(text: str) -> str:
    """The text with lone surrogates spelled out, so that it can be stored as UTF-8; ids stay distinct."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Seconds from one ISO 8601 time to another; ``None`` where one is missing or none, or the end comes first."""
    if start is None or end is None:
        return None
    try:
        seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if seconds >= 0 else None
