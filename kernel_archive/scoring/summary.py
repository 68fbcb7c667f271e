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
    from kernel_archive.scoring.record import Metric, ScoreRecord
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


def _span(metric: Metric, name: str) -> str:
    if metric.low is None or metric.high is None:
        return "-"
    places = METRICS[name].decimals
    return f"{metric.low:.{places}f} to {metric.high:.{places}f}"


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
    budgets = [budget_name(c) for c in BUDGETS if budget_name(c) in record.metrics]
    others = [name for name in record.metrics if name not in first and name not in budgets]
    sheets = [
        Sheet(
            f"{f.name} on {heading(record.target, record.scheme)}",
            ["metric", "value", "95 % interval", "sd of repeats", "uniform", "best control", "oracle", "better"],
            [_metric_row(record, name) for name in (*first, *others)],
            [
                f"{f.n_repeats} {what}, coverage {_share(f.coverage)}, parse rate {_share(f.parse_rate)}",
                f"Intervals: 95 %, {record.draws:,} bootstrap draws, seed {record.seed}"
                if record.draws
                else "No intervals",
                "Uniform: the figure of a forecast that gives each of the eight bins 1/8 on the same rows, for scale",
                *_control_notes(record),
            ],
        )
    ]
    if budgets:
        sheets.append(
            Sheet(
                "Speedup recovered by budget",
                ["budget", "recovered", "95 % interval", "sd of repeats", "random order", "best control", "oracle"],
                [
                    [f"{c} %", *_metric_row(record, budget_name(c))[1:7]]
                    for c in BUDGETS
                    if budget_name(c) in record.metrics
                ],
                [],
            )
        )
    shortcuts = {
        f"by {name.replace('_', ' ')}": name for name in SHORTCUTS if any(name in c.shortcuts for c in record.discovery)
    }
    if record.discovery:
        sheets.append(
            Sheet(
                "Discovery moments",
                ["cutoff", "positives", "base rate", "average precision", "min to max of repeats", *shortcuts],
                [
                    [
                        f"{c.cutoff:g}x",
                        f"{c.n_positive:,}",
                        _share(c.base_rate),
                        METRICS[name].format(record.metrics[name].mean),
                        "-" if c.low is None or c.high is None else f"{c.low:.3f} to {c.high:.3f}",
                        *(METRICS[name].format(c.shortcuts.get(s)) for s in shortcuts.values()),
                    ]
                    for name, c in zip(HEADLINE["discovery"], record.discovery, strict=True)
                ],
                ["Shortcuts: the average precision of ordering by the cue alone; the lift is over the better one"]
                if shortcuts
                else [],
            )
        )
    sheets.append(_group_sheet(record))
    return sheets


def _metric_row(record: ScoreRecord, name: str) -> list[str]:
    info, metric = METRICS[name], record.metrics[name]
    spread = "-" if metric.std is None or len(metric.repeats) == 1 else f"{metric.std:.{info.decimals}f}"
    return [
        info.title,
        info.format(metric.mean) + ("" if record.beats_control.get(name, True) else " *"),
        _span(metric, name),
        spread,
        info.format(record.uniform.get(name)),
        info.format(record.control(name)),
        _oracle(record, name),
        info.better if info.better != "neither" else "",
    ]


def _oracle(record: ScoreRecord, name: str) -> str:
    """What knowing every bin gives; and after a stroke, where that is more, what knowing every speedup gives."""
    info = METRICS[name]
    if info.better == "neither":
        return "-"
    shown = dict.fromkeys(info.format(c.metrics.get(name)) for c in record.controls if c.bound)
    return " / ".join(shown) or "-"


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
    if any(not beats for beats in record.beats_control.values()):
        notes.append("* does not beat the best control: its interval reaches that figure")
    return [note for note in notes if note]


def _group_sheet(record: ScoreRecord) -> Sheet:
    names = [name for name in (LEAD, *HEADLINE[record.kind], *FURTHER) if name in record.metrics]
    rows = []
    for group, metrics in record.groups.items():
        cells = [group, f"{record.group_rows[group]:,}"]
        for i, name in enumerate(names):
            cells.append(METRICS[name].format(metrics[name].mean))
            if i == 0:
                cells.append(_span(metrics[name], name))
        rows.append(cells)
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
        known = (
            ""
            if d.deferred_accuracy is None
            else f"; accuracy on the {d.n_deferred_parsed:,} deferred that have a distribution: {d.deferred_accuracy:.3f}"
        )
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
            shares = [
                f"{value:.1f} %" for value in (d.found, d.found_by_expected, d.found_by_chance) if value is not None
            ]
            out.append(
                f"A search that measures what is deferred and the best of the rest measures {_share(d.measured)} of the "
                f"candidates and finds {shares[0]} of the best speedup; as many chosen by expected speedup alone {shares[1]}, "
                f"by chance {shares[2]}."
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
            cells.append(
                METRICS[name].format(record.metrics[name].mean) + ("" if record.beats_control.get(name, True) else " *")
            )
            if i < spans:
                cells.append(_span(record.metrics[name], name))
        cells += [_share(record.forecasts.coverage), _share(record.forecasts.parse_rate)]
        rows.append(cells)
    columns = ["forecaster"]
    for i, name in enumerate(names):
        columns += [METRICS[name].title, *(["95 % interval"] if i < spans else [])]
    notes = [_order_remark(records, lead)]
    if any(not beats for r in records for beats in r.beats_control.values()):
        notes.append("* does not beat the best control: its interval reaches that figure")
    return Sheet(
        heading(records[0].target, records[0].scheme),
        [*columns, "coverage", "parsed"],
        rows,
        [note for note in notes if note]
        + ["Intervals are of each score alone; to tell two apart: kernel-archive compare"],
    )


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
        places = info.decimals
        # A difference of two figures in percent is one in percentage points, not in percent of either.
        unit = " pp" if info.unit == " %" else info.unit
        difference = "-" if d.difference is None else f"{d.difference:+.{places}f}{unit}"
        span = "-" if d.low is None or d.high is None else f"{d.low:+.{places}f} to {d.high:+.{places}f}"
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
    return Sheet(
        f"{a} against {b} on {heading(comparison.target, comparison.scheme)}",
        ["metric", a, b, "difference", "95 % interval", "p", "p (Holm)", "better"],
        rows,
        notes,
    )


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
