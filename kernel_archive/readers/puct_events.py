"""``puct-events``: the event log of max-reward PUCT, v2 and v3, with every kind of observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kernel_archive.readers import salvage as ev
from kernel_archive.readers.compound import CONFIRMED_FILES, confirm_forecasts
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.fold import SearchFold
from kernel_archive.readers.invocations import INVOCATION_FILES, apply_invocations
from kernel_archive.readers.lenient import BAD_JSON, positive
from kernel_archive.readers.report import Report
from kernel_archive.readers.run_facts import RUN_JSON, UPSTREAM_FILES, object_of, read_run_json, read_upstream
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.timing import TIMING_FILE, attach, read_timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation, Record, SearchFacts

__all__ = ["EVENTS_FILE", "SPEC", "read", "read_log", "read_search", "with_sidecars"]

EVENTS_FILE = "events.jsonl"
#: How long after its time limit a request may still be seen to end: polling and logging.
_TIMEOUT_SLACK_S: Final = 60.0


def read_log(run: RunFiles, path: Path, fold: SearchFold, report: Report) -> None:
    """Feed every event of a log to a fold; faults go to the report."""
    file = run.name(path)
    feed, decode = fold.feed, ev.decode_typed
    broken: tuple[int, str, str] | None = None
    unknown: set[str] = set()
    for item in run.lines(path):
        if not isinstance(item, tuple):
            report.add(item)
            continue
        number, line = item
        if broken is not None:
            report.error(broken[1], f"{broken[2]}; the line is skipped", file=file, line=broken[0])
            broken = None
        try:
            event = decode(line)
        except BAD_JSON:
            pass
        else:
            feed(number, event)
            continue
        try:
            decoded = ev.decode_event(line)
        except ev.BadLine as error:
            whole = ev.salvage(line) if error.code == "bad-json" else []
            if whole:
                fold.count("lines_salvaged")
                report.warning(
                    "glued-line",
                    f"pieces of several events on one line; {len(whole)} whole of them kept",
                    file=file,
                    line=number,
                )
                for event in whole:
                    feed(number, event)
            elif error.code == "bad-json":
                broken = (number, error.code, str(error))
            else:
                fold.count("lines_skipped")
                fold.n_events += error.known
                report.error(error.code, f"{error}; the line is skipped", file=file, line=number, field=error.field)
            if broken is not None:
                fold.count("lines_skipped")
            continue
        for field, value in decoded.odd:
            report.warning(
                "odd-field", "a value of the wrong type is left out", file=file, line=number, field=field, value=value
            )
        if decoded.event is not None:
            feed(number, decoded.event)
            continue
        fold.count("events_unknown")
        if decoded.kind not in unknown and len(unknown) < 20:
            unknown.add(decoded.kind)
            report.info(
                "unknown-event",
                "a kind of event that is not known; such events are skipped",
                file=file,
                line=number,
                value=decoded.kind,
            )
    if broken is not None:
        report.warning(
            "truncated-line",
            "the last line is broken off, as after a crash of the writer; it is skipped",
            file=file,
            line=broken[0],
        )


def with_sidecars(run: RunFiles, evaluations: list[Evaluation], facts: SearchFacts, report: Report) -> None:
    """Add what the files beside the log say."""
    read_run_json(run, facts, report)
    read_upstream(run, facts, report)
    _drop_downtime(evaluations, facts)
    apply_invocations(run, evaluations, facts, report)
    timing = run.find(TIMING_FILE)
    if timing is not None:
        left = attach(evaluations, read_timing(run, timing, report))
        if left:
            facts.counts["timing_lines_unmatched"] = left


def _drop_downtime(evaluations: list[Evaluation], facts: SearchFacts) -> None:
    """A span longer than the search's own time limit holds a crash and the time until the resume: no GPU time."""
    settings = facts.hyperparameters or {}
    limit = positive(
        object_of(settings.get("search")).get("per_request_timeout_s", settings.get("per_request_timeout_s"))
    )
    if limit is None:
        return
    for record in evaluations:
        if record.gpu_seconds is not None and record.gpu_seconds > limit + _TIMEOUT_SLACK_S:
            record.gpu_seconds = None
            facts.counts["durations_with_downtime"] = facts.counts.get("durations_with_downtime", 0) + 1


def read(run: RunFiles) -> Iterator[Record]:
    """One search: its evaluations (the root first), its facts, and what was wrong."""
    yield from read_search(run, SPEC)


def read_search(
    run: RunFiles, spec: ReaderSpec, more: Callable[[RunFiles, SearchFacts, Report], None] | None = None
) -> Iterator[Record]:
    """One search of a format that keeps its events like this one.

    Args:
        run: the run.
        spec: the format, for messages.
        more: adds facts from files that only that format has.
    """
    report = Report()
    path = run.path if run.path.is_file() else run.find(EVENTS_FILE)
    if path is None:
        yield wrong_format(run, spec)
        return
    fold = SearchFold(run.name(path), report)
    read_log(run, path, fold, report)
    if fold.n_events == 0:
        yield from nothing_read(run, spec, path, report)
        return
    confirm_forecasts(run, fold, report)
    evaluations = list(fold.evaluations())
    facts = fold.close()
    if more is not None:
        more(run, facts, report)
    with_sidecars(run, evaluations, facts, report)
    yield from evaluations
    yield from report
    yield facts


SPEC = ReaderSpec(
    name="puct-events",
    title="Event log of a max-reward PUCT search (v2, v3), GPU-mode, KernelBench, legacy or compound observations",
    expects="run directories with events.jsonl (other files of the run beside it), or the log files",
    files=(EVENTS_FILE, RUN_JSON, TIMING_FILE, *UPSTREAM_FILES, *INVOCATION_FILES, *CONFIRMED_FILES),
    version=1,
    read=read,
)
