"""Which format a file looks like, for the message about a log of another format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.events import EVENT_TYPES
from kernel_archive.readers.values import BAD_JSON, any_json, object_of
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.files import ReaderSpec, RunFiles
    from kernel_archive.readers.salvage import Report

_OUTER: Final = ("theory_building_initialized", "hypothesis_requested", "hypothesis_completed", "experiment_requested")
#: Kind of event -> the log that it is of.
_KINDS: Final = {
    **dict.fromkeys(EVENT_TYPES, "puct-events"),
    **dict.fromkeys(_OUTER, "the outer log of theory-builder"),
}
_EVENT_LOGS: Final = ("puct-events", "bin-filler", "theory-builder")
_BEGUN: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"([a-z_]{1,60})"')
_HEAD: Final = 4 << 20
#: Faults of a whole file, which say more than what it looks like.
_FILE_FAULTS: Final = ("unreadable", "line-too-long", "file-too-large", "bad-quotes", "repeated-field")
#: Keys of a JSON line, most telling first -> what it is.
_LINES: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"event_kind", "payload"}), "hub-events"),
    (frozenset({"comparison_id", "bin_probabilities"}), "a published table of forecasts (no measurements)"),
    (frozenset({"comparison_id", "candidate_code"}), "hub-eval-set"),
    (frozenset({"pair_id", "child_code"}), "hub-discovery-pairs"),
    (frozenset({"pair_type", "anchor_code"}), "hub-training-pool"),
    (frozenset({"reference_code", "candidate_code", "source_id"}), "eval-set-jsonl"),
    (frozenset({"candidate_id", "outcome", "rollout_index"}), "ttt-rollouts"),
    (frozenset({"kernel_source", "feedback"}), "agentic-run"),
    (frozenset({"attempt", "evaluation"}), "attempts"),
    (frozenset({"phases", "wall_s"}), "the timing.jsonl that stands beside a log"),
    (frozenset({"best_ulid", "archive_size", "step"}), "the trajectory.jsonl of a puct-checkpoint"),
    (frozenset({"archive", "visit_counts"}), "puct-checkpoint"),
    (frozenset({"archive", "visited"}), "hill-climbing-checkpoint"),
    (frozenset({"candidates", "cursor"}), "greedy-checkpoint"),
    (frozenset({"candidates", "total_visits"}), "a puct_archive snapshot of ttt-rollouts"),
    (frozenset({"reference_source", "task"}), "the run.json that stands beside a log"),
)


def looks_like(run: RunFiles, path: Path) -> str:
    """What a file looks like, in words; the name of a format where it is one."""
    head = run.head(path, _HEAD)
    if not head.strip():
        return "an empty file, or one that can't be read"
    if head.startswith(b"PAR1"):
        return _parquet(path)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "hill-climbing-checkpoint (a Python pickle)"
    for text in (*head.split(b"\n", 40)[:40], head if len(head) < _HEAD else b""):
        found = _of_object(text.strip())
        if found is not None:
            return found
    begun = _BEGUN.match(head)
    if begun is not None and begun[1].decode() in _KINDS:
        return _KINDS[begun[1].decode()]
    if b"\0" in head:
        return "binary data"
    return "JSON of a kind that no reader knows" if head.lstrip()[:1] in b"{[" else "text that is no JSON"


def _parquet(path: Path) -> str:
    """What a Parquet file looks like, from its columns."""
    first = next(parquet_rows(path, name="", wanted=(), max_rows=1 << 30, max_bytes=1 << 40), None)
    if isinstance(first, Finding):
        return "a damaged Parquet file"
    names = first[1] if first is not None else {}
    return _of_keys(names) or f"a Parquet table of {', '.join(printable(n, 40) for n in [*names][:8]) or 'no rows'}"


def _of_object(text: bytes) -> str | None:
    """What a JSON object is; ``None`` for one that is not known, and for what is none."""
    if text[:1] != b"{":
        return None
    value: Any
    try:
        value = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(value["kind"]) if "kind" in value else None
    except BAD_JSON:
        try:
            value = object_of(any_json(text))
        except BAD_JSON:
            return None
        kind = value.get("kind")
    return _KINDS[kind] if isinstance(kind, str) and kind in _KINDS else _of_keys(value)


def _of_keys(row: dict[str, Any]) -> str | None:
    return next((name for keys, name in _LINES if keys <= row.keys()), None)


def wrong_format(run: RunFiles, spec: ReaderSpec, path: Path | None = None) -> Finding:
    """The one finding of a run in which nothing is recognisable."""
    fix = f"{spec.name} expects {spec.expects}"
    if path is not None:
        message = f"nothing in it is of the format {spec.name!r}; it looks like {looks_like(run, path)}"
        return Finding(code="wrong-format", message=message, file=run.name(path), fix=fix)
    others = [printable(p.name, 60) for p in sorted(run.root.iterdir()) if p.is_file()] if run.root.is_dir() else []
    wanted = "this is a directory"
    if spec.files and not spec.files[0].startswith(".."):
        wanted = f"there is no {spec.files[0]} here"
        inner = next((d.name for d in sorted(run.root.glob("*/")) if any(d.glob(spec.files[0] + "*"))), None)
        if inner is not None:
            fix = f"match the run directories inside it, such as {printable(inner, 60)}"
    message = f"{wanted}; its files: {', '.join(others[:5]) or 'none'}"
    return Finding(code="wrong-format", message=message, file=run.name(run.path), fix=fix)


def nothing_read(run: RunFiles, spec: ReaderSpec, path: Path | None, report: Report) -> Iterator[Finding]:
    """The findings of a run of which no record came out: its file is damaged, or it is of another format."""
    own = _EVENT_LOGS if spec.name in _EVENT_LOGS else (spec.name,)
    damaged = any(report.of(*_FILE_FAULTS))
    if not damaged and not (path is not None and looks_like(run, path).startswith(own)):
        yield from (f for f in report.of("bad-utf8", "bad-json") if f.code == "bad-utf8" or f.line is None)
        yield wrong_format(run, spec, path)
        return
    yield from report
    message = f"no whole record of the format {spec.name!r} can be read of it"
    yield Finding(code="no-records", message=message, file=run.name(path if path is not None else run.path))
