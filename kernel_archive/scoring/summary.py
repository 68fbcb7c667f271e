"""Score records and comparisons as tables for people: what the command line prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernel_archive.errors import printable
from kernel_archive.scoring.metrics import BUDGETS, FURTHER, HEADLINE, LEAD, METRICS, RANKED_BY, budget_name
from kernel_archive.scoring.samples import SHORTCUTS
from kernel_archive.splits import split_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.scoring.compare import Comparison
    from kernel_archive.scoring.faults import CheckReport
    from kernel_archive.scoring.record import ScoreRecord
    from kernel_archive.scoring.target import TargetFacts


class Sheet(NamedTuple):
    """One table: title, column names, rows of cells, remarks below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def heading(target: TargetFacts, scheme: str) -> str:
    """What was scored against, in one line."""
    name = "" if target.canonical else f", variant {target.split_name!r}"
    version = f" {target.archive_version}" if target.archive_version else ""
    gpus = f", {', '.join(target.gpus)}" if target.gpus else ""
    return f"{target.table}{name} of {target.archive_name}{version}{gpus}: {target.n_rows:,} rows, bins {scheme}"


def _span(low: float | None, high: float | None, places: int, sign: str = "") -> str:
    return "-" if low is None or high is None else f"{low:{sign}.{places}f} to {high:{sign}.{places}f}"


def _figure(record: ScoreRecord, name: str) -> list[str]:
    """A figure, marked where it does not beat the best control, and its interval."""
    info, metric = METRICS[name], record.metrics[name]
    mark = "" if record.beats_control.get(name, True) else " *"
    return [info.format(metric.mean) + mark, _span(metric.low, metric.high, info.decimals)]


def _share(value: float | None) -> str:
    """A share in percent that says 100 only when it is."""
    if value is None:
        return "-"
    shown = f"{100 * value:.1f}"
    return f"{'99.9' if shown == '100.0' and value < 1 else shown} %"


def score_sheets(record: ScoreRecord) -> list[Sheet]:
    """The tables of one score: all metrics, per budget, per task or family."""
    f = record.forecasts
    what = "repeat" if f.n_repeats == 1 else "repeats"
    first = [name for name in (LEAD, *HEADLINE[record.kind]) if name in record.metrics]
    budgets = {budget_name(c): f"{c} %" for c in BUDGETS if budget_name(c) in record.metrics}
    others = [name for name in record.metrics if name not in first and name not in budgets]
    intervals = f"Intervals: 95 %, {record.draws:,} bootstrap draws, seed {record.seed}"
    columns = ["metric", "value", "95 % interval", "sd of repeats", "uniform", "best control", "oracle", "better"]
    notes = [
        f"{f.n_repeats} {what}, coverage {_share(f.coverage)}, parse rate {_share(f.parse_rate)}",
        intervals if record.draws else "No intervals",
        "Uniform: the figure of a forecast that gives each of the eight bins 1/8 on the same rows, for scale",
        *_control_notes(record),
    ]
    rows = [_metric_row(record, name) for name in (*first, *others)]
    sheets = [Sheet(f"{f.name} on {heading(record.target, record.scheme)}", columns, rows, notes)]
    if budgets:
        columns = ["budget", "recovered", "95 % interval", "sd of repeats", "random order", "best control", "oracle"]
        rows = [[shown, *_metric_row(record, name)[1:7]] for name, shown in budgets.items()]
        sheets.append(Sheet("Speedup recovered by budget", columns, rows, []))
    if record.discovery:
        sheets.append(_discovery_sheet(record))
    sheets.append(_group_sheet(record))
    return sheets


def _discovery_sheet(record: ScoreRecord) -> Sheet:
    shortcuts = [name for name in SHORTCUTS if any(name in c.shortcuts for c in record.discovery)]
    rows = []
    for name, c in zip(HEADLINE["discovery"], record.discovery, strict=True):
        show = METRICS[name].format
        cells = [f"{c.cutoff:g}x", f"{c.n_positive:,}", _share(c.base_rate), show(record.metrics[name].mean)]
        cells += [_span(c.low, c.high, 3), *(show(c.shortcuts.get(shortcut)) for shortcut in shortcuts)]
        rows.append(cells)
    columns = ["cutoff", "positives", "base rate", "average precision", "min to max of repeats"]
    columns += [f"by {name.replace('_', ' ')}" for name in shortcuts]
    note = "Shortcuts: the average precision of ordering by the cue alone; the lift is over the better one"
    return Sheet("Discovery moments", columns, rows, [note] if shortcuts else [])


def _metric_row(record: ScoreRecord, name: str) -> list[str]:
    info, metric = METRICS[name], record.metrics[name]
    spread = "-" if metric.std is None or len(metric.repeats) == 1 else f"{metric.std:.{info.decimals}f}"
    scale = [info.format(record.uniform.get(name)), info.format(record.control(name))]
    if info.better == "neither":
        return [info.title, *_figure(record, name), spread, *scale, "-", ""]
    # What knowing every bin gives; and after a stroke, where that is more, what knowing every speedup gives.
    oracle = dict.fromkeys(info.format(c.metrics.get(name)) for c in record.controls if c.bound)
    return [info.title, *_figure(record, name), spread, *scale, " / ".join(oracle) or "-", info.better]


def _control_notes(record: ScoreRecord) -> list[str]:
    """What the columns of controls and bounds mean, and where a figure beats no control."""
    if not record.controls:
        return []
    titles = {c.name: c.title for c in record.controls}
    named = {
        name: record.best_controls[name] for name in (LEAD, *HEADLINE[record.kind]) if name in record.best_controls
    }
    who = "; ".join(f"{METRICS[name].title}: {titles[control]}" for name, control in named.items())
    notes = [
        "Best control: the best figure of the forecasts that read no program, another one for every figure",
        f"It goes by, for {who}" if who else "",
        "Oracle: the figure of a forecast that knows every bin; behind a stroke of one that knows every speedup",
    ]
    return [note for note in (*notes, _mark_note([record])) if note]


def _mark_note(records: Sequence[ScoreRecord]) -> str:
    marked = any(not beats for record in records for beats in record.beats_control.values())
    return "* does not beat the best control: its interval reaches that figure" if marked else ""


def _group_sheet(record: ScoreRecord) -> Sheet:
    names = [name for name in (LEAD, *HEADLINE[record.kind], *FURTHER) if name in record.metrics]
    rows = []
    for group, metrics in record.groups.items():
        first, *further = (METRICS[name].format(metrics[name].mean) for name in names)
        lead = metrics[names[0]]
        span = _span(lead.low, lead.high, METRICS[names[0]].decimals)
        rows.append([group, f"{record.group_rows[group]:,}", first, span, *further])
    titles = [METRICS[name].title for name in names]
    what = split_of(record.target.table).group
    return Sheet(f"By {what}", [what, "rows", titles[0], "95 % interval", *titles[1:]], rows, [])


def score_remarks(record: ScoreRecord) -> list[str]:
    """What a reader of the figures should know besides: one sentence each."""
    f, target = record.forecasts, record.target
    out: list[str] = []
    if not target.canonical:
        out.append(
            f"This is not the canonical split but the variant {printable(target.split_name)!r}: don't compare across."
        )
    if record.relabelled:
        out.append(
            f"Labels computed anew under {record.scheme}; the split was frozen under {record.other_scheme.scheme}."
        )
    if f.n_present < f.n_cells:
        out.append(f"{f.n_cells - f.n_present:,} of {f.n_cells:,} forecasts are missing and count as uniform.")
    if f.n_raw_sum_rejected:
        out.append(f"{f.n_raw_sum_rejected:,} forecasts sum to less than 0.5 or more than 1.5 and count as not parsed.")
    if f.n_stated_differs:
        out.append(
            f"{f.n_stated_differs:,} of {f.n_stated:,} stated bins are not the most probable one; "
            + ("the most probable one" if record.predicted_bin == "argmax" else "the stated one")
            + " is scored."
        )
    if record.deferral is not None:
        d = record.deferral
        known = ""
        if d.deferred_accuracy is not None:
            known = f"; accuracy on the {d.n_deferred_parsed:,} deferred that have a distribution: {d.deferred_accuracy:.3f}"
        kept = {name: METRICS[name].format(d.accepted[name].mean) for name in ("accuracy", "forecast_error", "ece")}
        out.append(
            f"Deferred: {_share(d.rate)} of the forecasts; the tables hold all of them. On those not deferred alone: "
            f"accuracy {kept['accuracy']}, forecast error {kept['forecast_error']}, ECE {kept['ece']}{known}."
        )
        if d.error_by_confidence is not None and d.error_by_chance is not None:
            error = METRICS["forecast_error"].format
            out.append(
                f"As many rows kept by its own confidence: forecast error {error(d.error_by_confidence)}; by chance: "
                f"{error(d.error_by_chance)}."
            )
        if d.measured is not None:
            out.append(
                f"A search that measures what is deferred and the best of the rest measures {_share(d.measured)} of the "
                f"candidates and finds {d.found:.1f} % of the best speedup; as many chosen by expected speedup alone "
                f"{d.found_by_expected:.1f} %, by chance {d.found_by_chance:.1f} %."
            )
    return out + _scheme_remarks(record)


def _scheme_remarks(record: ScoreRecord) -> list[str]:
    other = record.other_scheme
    if not other.n_differ:
        return [f"Under {other.scheme} bins no label differs."]
    figures = ", ".join(
        f"{METRICS[name].title} {METRICS[name].format(other.metrics[name])}" for name in HEADLINE[record.kind]
    )
    out = [f"Under {other.scheme} bins {other.n_differ:,} of {record.target.n_rows:,} labels differ: {figures}."]
    if other.turned:
        names = ", ".join(METRICS[name].title for name in other.turned)
        out.append(f"Depends on the scheme: whether it beats the uniform forecast by {names}.")
    if other.outside:
        names = ", ".join(METRICS[name].title for name in other.outside)
        out.append(f"Depends on the scheme, by more than the interval: {names}.")
    return out


def several_sheet(records: Sequence[ScoreRecord]) -> Sheet:
    """Several scores side by side, best first by CRPS; remarks where the scheme turns an order."""
    kind = records[0].kind
    lead = RANKED_BY
    names = [LEAD, *HEADLINE[kind], *FURTHER]
    spans = 1 + len(HEADLINE[kind])

    def sort_key(record: ScoreRecord) -> tuple[bool, float, str]:
        value = record.metrics[lead].mean
        return value is None, METRICS[lead].sign * (value or 0.0), record.forecasts.name

    rows = []
    for record in sorted(records, key=sort_key):
        cells = [record.forecasts.name]
        for i, name in enumerate(names):
            cells += _figure(record, name)[: 2 if i < spans else 1]
        cells += [_share(record.forecasts.coverage), _share(record.forecasts.parse_rate)]
        rows.append(cells)
    columns = ["forecaster"]
    for i, name in enumerate(names):
        columns += [METRICS[name].title, *(["95 % interval"] if i < spans else [])]
    alone = "Intervals are of each score alone; to tell two apart: kernel-archive compare"
    notes = [note for note in (_order_remark(records, lead), _mark_note(records), alone) if note]
    return Sheet(heading(records[0].target, records[0].scheme), [*columns, "coverage", "parsed"], rows, notes)


def _order_remark(records: Sequence[ScoreRecord], name: str) -> str:
    """A sentence when the other bin scheme puts the forecasters in another order."""
    pairs = [(r.metrics[name].mean, r.other_scheme.metrics[name], printable(r.forecasts.name, 40)) for r in records]
    known = [(a, b, who) for a, b, who in pairs if a is not None and b is not None]
    sign = METRICS[name].sign
    here = [who for _, _, who in sorted(known, key=lambda item: (sign * item[0], item[2]))]
    there = [who for _, _, who in sorted(known, key=lambda item: (sign * item[1], item[2]))]
    if here == there:
        return ""
    scheme = records[0].other_scheme.scheme
    return f"Depends on the scheme: by {METRICS[name].title} the order under {scheme} bins is {', '.join(there)}."


def comparison_sheet(comparison: Comparison) -> Sheet:
    """A comparison as a table."""
    a, b = printable(comparison.a.name, 40), printable(comparison.b.name, 40)
    who = {"a": a, "b": b, "neither": "can't tell"}
    rows = []
    for name, d in comparison.differences.items():
        info = METRICS[name]
        # A difference of two figures in percent is one in percentage points, not in percent of either.
        unit = " pp" if info.unit == " %" else info.unit
        difference = "-" if d.difference is None else f"{d.difference:+.{info.decimals}f}{unit}"
        span = _span(d.low, d.high, info.decimals, "+")
        p, p_holm = (("-" if value is None else f"{value:.4f}") for value in (d.p, d.p_holm))
        rows.append([info.title, info.format(d.a), info.format(d.b), difference, span, p, p_holm, who[d.better]])
    notes = [
        f"MetricDifference: {a} - {b}; {comparison.draws:,} bootstrap draws and as many row-wise swaps, seed {comparison.seed}",
        "Better: p below 0.05 after Holm's correction, over the paper's metrics and over the further ones of this project",
    ]
    apart = [
        METRICS[name].title
        for name, d in comparison.differences.items()
        if d.low is not None
        and d.high is not None
        and METRICS[name].better != "neither"
        and (d.low > 0 or d.high < 0) != (d.better != "neither")
    ]
    if apart:
        notes.append(
            f"Interval and test disagree on whether there is a difference: {', '.join(apart)}. The test decides: its p is "
            "corrected for the number of metrics, the intervals are of each metric alone"
        )
    turned = [METRICS[name].title for name, d in comparison.differences.items() if d.depends_on_scheme]
    if turned:
        notes.append(f"Depends on the bin scheme, which is better by: {', '.join(turned)}.")
    columns = ["metric", a, b, "difference", "95 % interval", "p", "p (Holm)", "better"]
    return Sheet(f"{a} against {b} on {heading(comparison.target, comparison.scheme)}", columns, rows, notes)


def check_lines(report: CheckReport) -> list[str]:
    """A checked file in figures, as lines of text."""
    what = "repeat" if report.n_repeats == 1 else "repeats"
    lines = [
        f"{report.file}: {'can be scored' if report.ok else 'can not be scored'}",
        f"  forecasts   {report.n_lines:,} in {report.n_repeats} {what} of {report.n_rows:,} rows",
        f"  coverage    {_share(report.coverage)}",
        f"  parse rate  {_share(report.parse_rate)}",
    ]
    missing = report.n_rows * report.n_repeats - report.n_present
    if report.ok and missing:
        lines.append(f"  missing     {missing:,} row and repeat cells without a forecast; they count as uniform")
    if report.n_deferred:
        lines.append(f"  deferred    {report.n_deferred:,}")
    lines.append(f"  faults      {report.n_errors:,}")
    lines.append(f"  warnings    {report.n_warnings:,}")
    if report.counts:
        lines.append("  by kind     " + ", ".join(f"{code} {count:,}" for code, count in report.counts.items()))
    return lines
