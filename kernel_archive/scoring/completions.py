"""What a model answered -> a forecast, or why there is none in it. The one parser of answers: rewards use it, too."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

from kernel_archive.bins import N_BINS
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS
from kernel_archive.scoring.formats import FIELDS, ID_FIELDS, TOOL_FIELDS, read_entry

#: Why an answer gives no distribution, in a word that files keep -> in words.
UNPARSED: Final[dict[str, str]] = {
    "empty": "the answer is empty",
    "no-json": "there is no JSON object with probabilities in it",
    "in-reasoning": "the last distribution stands in the reasoning, not in the answer",
    "half-json": "the JSON object with the probabilities does not end, or is none",
    "missing-field": "one of the eight probabilities is missing",
    "wrong-length": "there are not eight probabilities",
    "wrong-shape": "there are not eight probabilities",
    "not-a-number": "a probability is not a number",
    "not-finite": "a probability is not finite",
    "negative": "a probability is negative",
    "zero-sum": "all probabilities are 0",
    "raw-sum": "the probabilities sum to something that is neither near 1 nor near 100 %",
    "contradiction": "the answer gives two different distributions",
    "bad-field": "another field of the answer has a value that it can't have",
    "refused": "the model declined to answer",
    "cut": "the answer was cut off at the limit of tokens",
}
_MAX_TEXT: Final = 1 << 20
#: What a model says in its answer; everything else (which row it is, what it cost) is not for it to say.
_THE_MODELS: Final = (frozenset(FIELDS) | {"reasoning", "bin_probabilities", *TOOL_FIELDS}) - {
    *ID_FIELDS, "repeat", "parse_failed", "parse_error", "input_tokens", "output_tokens", "latency_s", "prompt", "stop_reason",
}  # fmt: skip
_KEYS: Final = (f'"{TOOL_FIELDS[0]}"', '"probabilities"', '"bin_probabilities"')
#: Where in a message the answer can stand, the likeliest first.
_INNER: Final = ("tool_calls", "function", "arguments", "content", "text")
#: Eight numbers that sum to this are percentages: nobody gives probabilities with such a sum.
_PERCENT: Final = (95.0, 105.0)
#: Around reasoning that is no part of the answer.
_REASONING: Final = re.compile(r"<(/?)(?:think|thinking|reasoning)>")
_PERCENT_TEXT: Final = re.compile(r"\s*(\d{1,3}(?:\.\d{1,12})?)\s*%\s*")


class Completion(msgspec.Struct, frozen=True):
    """What an answer says.

    Attributes:
        probabilities: eight numbers as they were given (percentages divided by 100), ``None`` where there is no forecast.
        raw_sum: their sum; NaN where there are none.
        stated: the bin that the answer names, 0 for none.
        defer: whether it leaves the candidate to a measurement.
        expected_speedup: the speedup that it names, in x; ``None`` for none.
        rationale: why, in its words; empty for none.
        unparsed: a key of :data:`UNPARSED`, empty where there is a forecast.
    """

    probabilities: tuple[float, ...] | None
    raw_sum: float = math.nan
    stated: int = 0
    defer: bool = False
    expected_speedup: float | None = None
    rationale: str = ""
    unparsed: str = ""


def read_completion(answer: Any) -> Completion:
    r"""The forecast in a model's answer, or why there is none that could be scored.

    Takes the text of an answer (the last JSON object with the probabilities in it, whatever stands around it: prose,
    a code fence, a tool-call tag; not in the reasoning before it), the arguments of a tool call as an object, a message, or a chat. The probabilities
    must be eight numbers of at least 0 whose sum is within the bounds of a forecast file; percentages are read, too:
    written with the sign, or eight numbers that sum to 95 to 105. What the answer says about its row, its sum
    (``raw_probability_sum``) or its cost is not read.

    >>> read_completion('So: ```json\n{"probabilities": [0, 0, 0, 40, 60, 0, 0, 0]}\n```').probabilities
    (0.0, 0.0, 0.0, 0.4, 0.6, 0.0, 0.0, 0.0)
    >>> read_completion("about 1.5x").unparsed
    'no-json'
    """
    made = [_completion(given) for given in _objects(answer, 0)]
    if made:
        return next((one for one in made if one.unparsed in ("", "raw-sum")), made[0])
    text = _text_of(answer, 0)
    if not text.strip():
        return Completion(None, unparsed="empty")
    if not any(key.strip('"') in text for key in _KEYS):
        return Completion(None, unparsed="no-json")
    return Completion(None, unparsed="in-reasoning" if _REASONING.search(text) else "half-json")


def _completion(given: dict[str, Any]) -> Completion:
    """The forecast in an object that names probabilities."""
    fields = _without_percent({key: value for key, value in given.items() if key in _THE_MODELS})
    speedup = fields.pop("expected_speedup", None)  # one that is none is left out; the distribution counts all the same
    named = type(speedup) in (int, float) and 0 < speedup < 1e300
    entry, faults, _ = read_entry(fields, file="", line=0, default_id="completion")
    text = fields.get("rationale") or fields.get("reasoning")
    facts: dict[str, Any] = {
        "rationale": text if isinstance(text, str) else "",
        "defer": fields.get("defer") is True,
        "expected_speedup": float(speedup) if named else None,
    }
    if entry is None:
        code = next((fault.code for fault in faults if fault.code in UNPARSED), "bad-field")
        return Completion(None, unparsed=code, **facts)
    if entry.probabilities is None:  # a deferred candidate may go without
        return Completion(
            None, stated=entry.predicted_bin or 0, unparsed="" if entry.defer else "missing-field", **facts
        )
    if not RAW_SUM_BOUNDS[0] <= entry.raw_sum <= RAW_SUM_BOUNDS[1]:
        return Completion(None, raw_sum=entry.raw_sum, stated=entry.predicted_bin or 0, unparsed="raw-sum", **facts)
    return Completion(tuple(entry.probabilities), entry.raw_sum, entry.predicted_bin or 0, **facts)


def _without_percent(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields with percentages as fractions, where the answer is in percent; anything else stays as it is."""
    fields = {**fields, **_fractions({name: fields[name] for name in TOOL_FIELDS if name in fields})}
    for name in ("probabilities", "bin_probabilities"):
        given = fields.get(name)
        if isinstance(given, list):
            fields[name] = list(_fractions(dict(enumerate(given))).values())
        elif isinstance(given, dict):
            fields[name] = _fractions(given)
    return fields


def _fractions(given: dict[Any, Any]) -> dict[Any, Any]:
    """Percentages as fractions of 1: all have the sign, or all are numbers and they sum to about 100."""
    if not 0 < len(given) <= N_BINS:
        return given
    texts = [_PERCENT_TEXT.fullmatch(value) for value in given.values() if isinstance(value, str)]
    numbers = [value for value in given.values() if type(value) in (int, float) and -1e6 < value < 1e6]
    if len(texts) == len(given) and all(texts):
        return {key: float(text[1]) / 100.0 for key, text in zip(given, texts, strict=True) if text}
    if len(numbers) == len(given) and _PERCENT[0] <= sum(numbers) <= _PERCENT[1]:
        return {key: value / 100.0 for key, value in given.items()}
    return given


def _text_of(item: Any, depth: int) -> str:
    """All texts of an answer, to say what it lacks."""
    if isinstance(item, str):
        return item[-_MAX_TEXT:]
    if depth < 8 and isinstance(item, list):
        return "".join(_text_of(part, depth + 1) for part in item[-8:])
    if depth < 8 and isinstance(item, dict):
        return "".join(_text_of(item[key], depth + 1) for key in _INNER if item.get(key) is not None)
    return ""


def _objects(item: Any, depth: int) -> list[dict[str, Any]]:
    """Objects that could be the forecast, the likeliest first."""
    if depth > 8:
        return []
    if isinstance(item, str):
        return [found for text in _texts(item[-_MAX_TEXT:]) for found in _objects(text, depth + 1)]
    if isinstance(item, list):
        return _objects(item[-1], depth + 1) if item else []
    if not isinstance(item, dict):
        return []
    if any(key.strip('"') in item for key in _KEYS) or item.get("defer") is True:
        return [item]
    return [found for key in _INNER if item.get(key) is not None for found in _objects(item[key], depth + 1)]


def _texts(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a text that hold the last mention of the probabilities, the innermost first."""
    at = max(text.rfind(key) for key in _KEYS)
    for key in (TOOL_FIELDS[0], '"defer"'):  # the arguments of a tool call are often text inside JSON
        at = at if at >= 0 else text.rfind(key)
    if at < 0:
        return []
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    start = at
    for _ in range(8):
        start = text.rfind("{", 0, start)
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and end > at and not _reasoned(text, start, end):
            found.append(value)
    return found


def _reasoned(text: str, start: int, end: int) -> bool:
    """Whether this part of an answer is reasoning: after a tag that opens it, or before one that closes it."""
    before = [mark[1] for mark in _REASONING.finditer(text, 0, start)]
    after = _REASONING.search(text, end)
    return before[-1:] == [""] or (after is not None and after[1] == "/")
