"""Lines of event logs, read the fast way, the forgiving way, or searched for the whole events in them.

A line is decoded once, by a typed decoder that skips every field which nobody reads. Lines that fail go a slow,
forgiving way; what that can't read either is searched for a whole event at its end (a writer that went on after a crash
glues its first event to the broken line).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from kernel_archive.readers.events import EVENT_TYPES, Event
from kernel_archive.readers.lenient import BAD_JSON, build, decode_loose

__all__ = ["BadLine", "Decoded", "decode_event", "decode_typed", "salvage"]

decode_typed: Final = msgspec.json.Decoder(Event).decode
_START: Final = re.compile(rb'\{\s?"kind"\s?:\s?"')
#: How many places in a broken line are tried as the start of a whole event.
_SALVAGE_TRIES: Final = 200
#: How many glued events are looked for before the last one.
_SALVAGE_DEPTH: Final = 4


class Decoded(msgspec.Struct):
    """A line read the slow way.

    Attributes:
        event: the event; ``None`` when its kind is unknown.
        kind: its kind.
        odd: fields left out because of their type, with their values.
    """

    event: Any
    kind: str
    odd: list[tuple[str, Any]] = []


class BadLine(Exception):  # noqa: N818 - not an error of a user: caught where it is raised
    """Raised inside this package when a line can't be read.

    Attributes:
        code: ``bad-json``, ``not-an-event`` or ``bad-event``.
        field: the missing or wrong field.
        known: the line names a kind of event that these logs have.
    """

    def __init__(self, message: str, code: str, *, field: str | None = None, known: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.known = known


def decode_event(line: bytes) -> Decoded:
    """One line, the slow and forgiving way.

    Raises:
        BadLine: it is no JSON object with a ``kind``, or lacks what its kind needs.
    """
    try:
        value = decode_loose(line)
    except BAD_JSON as error:
        raise BadLine(f"not valid JSON: {error}", "bad-json") from None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise BadLine("not an event: no JSON object with a kind", "not-an-event")
    return event_of(value)


def event_of(value: dict[str, Any]) -> Decoded:
    """An event from a decoded object that has a ``kind``.

    Raises:
        BadLine: it lacks what its kind needs.
    """
    kind: str = value["kind"]
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        return Decoded(None, kind)
    odd: list[tuple[str, Any]] = []
    try:
        return Decoded(build(cls, value, odd), kind, odd)
    except RecursionError:
        raise BadLine("nested too deeply", "bad-event", known=True) from None
    except ValueError as error:
        field = str(error)
        raise BadLine(
            f"{kind} lacks {field}, or has it in a wrong form", "bad-event", field=field, known=True
        ) from None


def salvage(line: bytes, depth: int = 0) -> list[Any]:
    """The whole events in a line that is none: the last one (a ``{"kind":`` from which the rest decodes), and those before.

    A writer that broke off and went on without a new line leaves a piece, or all, of one event before the next.
    """
    starts = [m.start() for m in _START.finditer(line)]
    for start in reversed(starts[-_SALVAGE_TRIES:]):
        event = _whole(line[start:])
        if event is not None:
            before = line[:start]
            if start == 0 or depth >= _SALVAGE_DEPTH:
                return [event]
            first = _whole(before)
            return [*([first] if first is not None else salvage(before, depth + 1)), event]
    return []


def _whole(part: bytes) -> Any:
    """The event that a part of a line is, or ``None``."""
    try:
        return decode_typed(part)
    except BAD_JSON:
        pass
    try:
        return decode_event(part).event
    except BadLine:
        return None
