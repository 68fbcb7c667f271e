"""Why a search measured a program: what its event log says of the selection of the parent and of the program itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.readers import events as ev
from kernel_archive.untrusted import Lines

if TYPE_CHECKING:
    from pathlib import Path

#: A longer log is not read through for one node, bytes.
_MAX_LOG: Final = 1 << 30


def reasons(logs: Path, source_file: str, node: str) -> dict[str, Any] | None:
    """The search's own figures about a node of an event log; ``None`` where there is no such log, or it says nothing of them.

    Args:
        logs: folder that the log's name is relative to: the builder's.
        source_file: the log.
        node: id of the evaluation in it.

    Returns:
        ``step``; ``parent_score`` and ``parent_visits``, by which the parent was selected; ``forecast`` and
        ``selection_score`` where a forecaster chose the program. What is missing or no number is left out.
    """
    path = logs / source_file
    if not path.resolve().is_relative_to(logs.resolve()) or not path.is_file():
        return None
    step = ev.StepStarted()
    forecasts: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    decode = msgspec.json.Decoder(ev.Event).decode
    for item in Lines(path, max_bytes=_MAX_LOG, max_lines=100_000_000, hashed=False):
        if not isinstance(item, tuple):
            continue  # a damaged line is the build's to report
        try:
            event = decode(item[1])
        except msgspec.DecodeError:
            continue
        match event:
            case ev.StepStarted():
                step = event
            case ev.ForecastCompleted(request_id=key, forecast=forecast):
                forecasts[key] = forecast
            case ev.CandidateSelected(request_id=key, selection_score=score):
                scores[key] = score
            case ev.EvaluationRequested(request_id=key, child_ulid=child, parent_ulid=parent) if node in (child, key):
                proposal = event.from_mutation_request_id or key
                found: dict[str, Any] = {
                    "parent_score": _beside(step.parent_ulids, parent, step.selected_parent_scores),
                    "parent_visits": _beside(step.parent_ulids, parent, step.selected_parent_visits),
                    "selection_score": _number(scores.get(proposal)),
                    "forecast": forecasts.get(proposal),
                }
                found = {name: value for name, value in found.items() if value is not None}
                return {"step": step.step, **found} if found else None
    return None


def _number(value: object) -> int | float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _beside(parents: list[str] | None, parent: str | None, values: object) -> int | float | None:
    """The value that stands beside a parent in a list of the same length."""
    if parents is None or parent not in parents or not isinstance(values, list) or len(values) != len(parents):
        return None
    return _number(values[parents.index(parent)])
