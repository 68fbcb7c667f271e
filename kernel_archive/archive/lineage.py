"""One kernel, traced: code, measurements, and its ancestors back to the root, each with the line of its log.

With the logs at hand, also by which figures of its own a search came to measure it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import UsageError, printable
from kernel_archive.readers import events as ev
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.untrusted import Lines

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.archive.open import Archive

MIN_PREFIX: Final = 6


def find_kernel(archive: Archive, wanted: str) -> dict[str, Any]:
    """The row of ``kernels`` or ``failures`` by kernel id, program id, evaluation id, split row id, or their beginning.

    Raises:
        UsageError: no row or several have that id.
    """
    text = wanted.strip().lower()
    if len(text) < MIN_PREFIX:
        raise UsageError(f"{printable(wanted)!r} is too short for an id; give at least {MIN_PREFIX} digits")
    tables = ["kernels", "failures"]
    matches: dict[str, tuple[str, str]] = {}
    pattern = "".join(c for c in text if c in "0123456789abcdef")
    # Ids are hexadecimal: anything else is in no table, and would be a wildcard of LIKE.
    pattern = pattern + "%" if len(pattern) == len(text) else ""
    for table in tables:
        query = f"SELECT kernel_id, problem, gpu, split FROM {table} WHERE kernel_id LIKE ? OR program_id LIKE ? ORDER BY kernel_id LIMIT 20"
        for row in archive.sql(query, [pattern, pattern]).to_pylist():
            matches[row["kernel_id"]] = (table, f"{row['kernel_id']} ({row['problem']} on {row['gpu']})")
    if not matches:
        query = "SELECT DISTINCT kernel_id, excluded FROM evaluations WHERE evaluation_id LIKE ? OR kernel_id LIKE ? OR program_id LIKE ?"
        for row in archive.sql(query, [pattern] * 3).to_pylist():
            matches[row["kernel_id"]] = ("", row["kernel_id"])
    if not matches:
        raise UsageError(f"no kernel, program or evaluation has the id {printable(wanted)!r} in {archive.path}")
    if len(matches) > 1:
        listed = "; ".join(m[1] for m in list(matches.values())[:8])
        raise UsageError(f"{printable(wanted)!r} fits {len(matches)} kernels: {listed}. Give more digits")
    ((kid, (table, _)),) = matches.items()
    for name in (table,) if table else tables:
        found = archive.sql(f"SELECT * FROM {name} WHERE kernel_id = ?", [kid]).to_pylist()
        if found:
            return {"table": name, **found[0]}
    return {"table": "evaluations", "kernel_id": kid}


def trace(archive: Archive, wanted: str) -> dict[str, Any]:
    """Everything the archive knows of one kernel.

    Returns:
        ``kernel`` (its row, code included), ``measurements`` (its evaluations), ``lineage`` (ancestors, nearest first, each
        with outcome, speedup, file and line) and ``splits`` (the derived tables it is in).
    """
    kernel = find_kernel(archive, wanted)
    kid = kernel["kernel_id"]
    measurements = archive.sql(
        """SELECT evaluation_id, search_id, node_id, outcome, error_type, speedup, runtime_us, reference_runtime_us, cases, step,
                  is_root, n_logged, gpu_seconds, excluded, source_file, source_line, source_digest
           FROM evaluations WHERE kernel_id = ? ORDER BY search_id, source_file, source_line, evaluation_id""",
        [kid],
    ).to_pylist()
    lineage: list[dict[str, Any]] = []
    search = kernel.get("search_id") or (measurements[0]["search_id"] if measurements else None)
    rows = archive.sql(
        """SELECT kernel_id, parent_kernel_id, parent_distance, node_id, outcome, speedup, step, is_root, source_file, source_line
           FROM evaluations WHERE search_id = ? ORDER BY source_line, evaluation_id""",
        [search],
    ).to_pylist()
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row["kernel_id"], row)
    seen = {kid}
    here = first.get(kid)
    while here is not None and here["parent_kernel_id"] is not None and here["parent_kernel_id"] not in seen:
        distance = here["parent_distance"]
        here = first.get(here["parent_kernel_id"])
        if here is not None:
            seen.add(here["kernel_id"])
            lineage.append({**here, "distance": distance})
    splits = [
        name
        for name, split in SPLIT_TABLES.items()
        if name in archive.tables
        and archive.sql(f"SELECT 1 FROM {name} WHERE {split.kernel} = ? LIMIT 1", [kid]).num_rows
    ]
    return {"kernel": kernel, "measurements": measurements, "lineage": lineage, "splits": splits}


#: A longer log is not read through for one node, bytes.
_MAX_LOG: Final = 1 << 30


def reasons(logs: Path, source_file: str, node: str) -> dict[str, Any] | None:
    """The search's own figures about a node of an event log; ``None`` where there is no such log, or it says nothing of them.

    The log's name is relative to ``logs``, the builder's folder.

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
