"""``theory-builder``: runs in which a model states hypotheses about a kernel and tries each in a search of its own.

The outer search is that of hypotheses; each step of it holds an inner search (PUCT) with a log of its own. Every trial stands up to
three times in such a run: in an inner log and twice in the outer one. Only the inner logs are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kernel_archive.readers.beside import UPSTREAM_FILES, read_upstream
from kernel_archive.readers.event_log import EventLog
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.reading import Reading
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.sniff import nothing_read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation, Record, SearchFacts

_INNER: Final = "inner_events.jsonl"
_STEP: Final = re.compile(r"step_(\d{1,9})$")


def _inner_logs(run: RunFiles) -> list[tuple[int | None, Path]]:
    """The inner logs with the number of their outer step, in its order."""
    out: list[tuple[int | None, Path]] = []
    for path in run.files:
        if path.name.removesuffix(".zst").removesuffix(".gz") == _INNER or path == run.path:
            match = _STEP.search(path.parent.name)
            out.append((int(match[1]) if match else None, path))
    return sorted(out, key=lambda item: (item[0] is None, item[0] or 0, item[1].as_posix()))


def _records(run: RunFiles) -> Iterator[Record]:
    """One outer search: the evaluations of all its inner logs, what was wrong, and the facts."""
    report = Report()
    logs = _inner_logs(run)
    outer = Reading(run, run.path, report)
    facts = outer.facts
    seen: dict[str, Evaluation] = {}
    any_seen = False
    for step, path in logs:
        inner = EventLog(run, path, report, outer_step=step)
        any_seen |= inner.read_lines(run.lines(path))
        inner.finish()
        for record in inner.evaluations():
            if record.node_id in seen:
                message = "a node of an earlier inner log stands here again; the earlier one counts"
                inner.warning("duplicate-node", message, line=record.source_line, value=record.node_id)
            else:
                seen[record.node_id] = record
        _add(facts, inner.facts)
    if not any_seen:
        yield from nothing_read(run, THEORY_BUILDER, logs[0][1] if logs else None, report)
        return
    facts.counts["inner_logs"] = len(logs)
    read_upstream(outer)
    yield from seen.values()
    yield from report
    yield facts


def _add(total: SearchFacts, inner: SearchFacts) -> None:
    """Add the facts of an inner log."""
    for name in ("problem", "gpu", "reference_code"):
        if getattr(total, name) is None:
            setattr(total, name, getattr(inner, name))
    total.n_pending += inner.n_pending
    for name in ("n_mutations_failed", "n_deferred", "n_forecasts", "input_tokens", "output_tokens"):
        value = getattr(inner, name)
        if value is not None:
            setattr(total, name, (getattr(total, name) or 0) + value)
    for name, n in inner.counts.items():
        total.counts[name] = total.counts.get(name, 0) + n


THEORY_BUILDER: Final = ReaderSpec(
    name="theory-builder",
    title="Inner logs of a theory-building run; its outer log repeats their trials and is not read",
    expects="run directories with step_*/inner_events.jsonl, or one such log",
    files=(f"step_*/{_INNER}", _INNER, *UPSTREAM_FILES),
    version=2,
    records=_records,
)
