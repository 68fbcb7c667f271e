"""Read the forecast in a model's answer, or why it has no forecast."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from kernel_archive.bins import N_BINS
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS
from kernel_archive.scoring.formats import FORMS, TOOL_FIELDS, ForecastLine, LineError, read_line

#: A completion does not say which row it is about; the caller knows.
_ROW: Final = "completion"
#: Characters of an answer that are read, from its end.
_MAX_TEXT: Final = 1 << 20
#: Objects inside objects that are opened: a message, its call, the arguments as text.
_MAX_DEPTH: Final = 8
#: What an answer may say; its row and what it cost are not for the model to say.
_FROM_MODEL: Final = frozenset(
    {*FORMS, *TOOL_FIELDS, "predicted_bin", "defer", "rationale", "reasoning"}
)
#: Where in a message the answer can stand, the likeliest first.
_INNER: Final = ("tool_calls", "function", "arguments", "content", "text")
#: Eight numbers that sum to this are percentages: nobody gives probabilities with such a sum.
_PERCENT: Final = (95.0, 105.0)
_PERCENT_TEXT: Final = re.compile(r"\s*(\d{1,3}(?:\.\d{1,12})?)\s*%\s*")
#: Around reasoning that is no part of the answer.
_REASONING: Final = re.compile(r"<(/?)(?:think|thinking|reasoning)>")


def read_completion(answer: Any) -> ForecastLine:
    """Read the forecast in a model's answer; ``parse_error`` says why it has none.

    It is the code of the fault, or ``empty``, ``no-json``, ``half-json``, ``in-reasoning``. Takes
    the text of an answer, the arguments of a tool call, a message, or a chat. Of a text the last
    JSON object with probabilities counts, whatever stands around it; reasoning before the answer
    does not. Percentages are read, too: with the sign, or numbers that sum to 95 to 105.

    >>> read_completion('So: {"probabilities": [0, 0, 0, 40, 60, 0, 0, 0]}').probabilities
    [0.0, 0.0, 0.0, 0.4, 0.6, 0.0, 0.0, 0.0]
    >>> read_completion("about 1.5x").parse_error
    'no-json'
    """
    parts = list(_parts(answer))
    lines = [_line(part) for part in parts if isinstance(part, dict)]
    if lines:
        scored = (line for line in lines if line.parse_error in (None, "raw-sum"))
        return next(scored, lines[0])
    text = "".join(part for part in parts if isinstance(part, str))
    if not text.strip():
        return _unparsed("empty")
    if not any(key in text for key in FORMS):
        return _unparsed("no-json")
    return _unparsed("in-reasoning" if _REASONING.search(text) else "half-json")


def _unparsed(why: str, **facts: Any) -> ForecastLine:
    """Make the line of an answer without a distribution."""
    return ForecastLine(row_id=_ROW, parse_failed=True, parse_error=why, **facts)


def _line(answer: dict[str, Any]) -> ForecastLine:
    """Read the forecast in an object that names probabilities."""
    fields = {name: value for name, value in answer.items() if name in _FROM_MODEL}
    try:
        line = read_line({"row_id": _ROW, **_fractions(fields)})
    except LineError as error:
        line = _unparsed(error.findings[0].code, defer=fields.get("defer") is True)
    low, high = RAW_SUM_BOUNDS
    if line.probabilities is not None and not low <= math.fsum(line.probabilities) <= high:
        line = _unparsed("raw-sum", defer=line.defer, predicted_bin=line.predicted_bin)
    speedup: Any = answer.get("expected_speedup")
    if type(speedup) in (int, float) and 0 < speedup < 1e300:
        line.expected_speedup = float(speedup)
    line.rationale = None
    if isinstance(rationale := answer.get("rationale"), str):
        # A lone surrogate, half of an emoji that was cut, is spelled out: no file could hold it.
        line.rationale = rationale.encode(errors="backslashreplace").decode()
    return line


def _fractions(fields: dict[str, Any]) -> dict[str, Any]:
    """Divide percentages by 100: all have the sign, or all are numbers that sum to about 100."""
    names = [name for name in TOOL_FIELDS if name in fields]
    stated = [fields[name] for name in names] or fields.get("probabilities")
    if not isinstance(stated, list) or len(stated) != N_BINS:
        return fields
    texts = [_PERCENT_TEXT.fullmatch(value) for value in stated if isinstance(value, str)]
    numbers = [value for value in stated if type(value) in (int, float) and -1e6 < value < 1e6]
    if len(texts) == N_BINS and all(texts):
        numbers = [float(text[1]) for text in texts if text]
    elif len(numbers) != N_BINS or not _PERCENT[0] <= sum(numbers) <= _PERCENT[1]:
        return fields
    shares = [number / 100.0 for number in numbers]
    return fields | (dict(zip(names, shares, strict=True)) if names else {"probabilities": shares})


def _parts(item: Any, depth: int = 0) -> Iterator[str | dict[str, Any]]:
    """Give the texts of an answer, and the objects that could be the forecast, likeliest first."""
    if depth >= _MAX_DEPTH:
        return
    inner: list[Any] = []
    if isinstance(item, str):
        yield item
        inner = _objects_of_text(item[-_MAX_TEXT:])
    elif isinstance(item, list):
        inner = item[-1:]
    elif isinstance(item, dict) and (
        item.get("defer") is True or not item.keys().isdisjoint(FORMS)
    ):
        yield item
    elif isinstance(item, dict):
        inner = [item.get(key) for key in _INNER]
    for part in inner:
        yield from _parts(part, depth + 1)


def _objects_of_text(text: str) -> list[dict[str, Any]]:
    """List the JSON objects around the last mention of probabilities, the innermost first."""
    mentions = [f'"{key}"' for key in FORMS]
    end = max(text.rfind(key) for key in mentions)
    for key in (TOOL_FIELDS[0], '"defer"'):  # arguments are often text inside JSON
        end = end if end >= 0 else text.rfind(key)
    decoder = json.JSONDecoder()
    objects: list[dict[str, Any]] = []
    start = end
    for _ in range(_MAX_DEPTH):
        start = text.rfind("{", 0, start) if start >= 0 else -1
        if start < 0:
            break
        try:
            value, stop = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and stop > end and not _is_reasoning(text, start, stop):
            objects.append(value)
    return objects


def _is_reasoning(text: str, start: int, stop: int) -> bool:
    """Tell whether a part stands after a tag that opens reasoning, or before one that closes."""
    before = [tag[1] for tag in _REASONING.finditer(text, 0, start)]
    after = _REASONING.search(text, stop)
    return before[-1:] == [""] or (after is not None and after[1] == "/")
