"""Show scores and comparisons as tables for people: what the command line prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernel_archive.errors import counted, printable
from kernel_archive.scoring.compare import Comparison
from kernel_archive.scoring.forecasts import MIN_COVERAGE
from kernel_archive.scoring.metrics import HEADLINE, METRICS, shown_first
from kernel_archive.scoring.reader import CheckReport
from kernel_archive.scoring.record import ForecastFacts, Score
from kernel_archive.scoring.split import SplitIdentity
from kernel_archive.splits import Kind, split_of

_SCORE_COLUMNS = ["metric", "value", "95 % interval", "best control", "oracle"]
#: Kind of split -> shown for several scores beside the first figure and its interval.
_BESIDE: dict[Kind, tuple[str, ...]] = {
    "eval": ("close_pairs", "pair_accuracy", "speedup_recovered"),
    "validity": (*HEADLINE["validity"], "accuracy"),
    "close": HEADLINE["close"],
    "discovery": ("average_precision_1.5", "accuracy"),
}
#: Below this many rows a score says that it can't be trusted.
FEW_ROWS = 50
_MARK_NOTE = "* does not beat the best control by its interval; ECE has none where a control has 0"


class Sheet(NamedTuple):
    """One table: title, column names, rows of cells, remarks below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def heading(split: SplitIdentity, scheme: str) -> str:
    """Name what was scored against, in one line."""
    name = "" if split.canonical else f", variant {split.split_name!r}"
    version = f" {split.archive_version}" if split.archive_version else ""
    gpus = f", {', '.join(split.gpus)}" if split.gpus else ""
    source = f"{split.table}{name} of {split.archive_name}{version}{gpus}"
    bins = "" if split_of(split.table).asks_outcome else f", bins {scheme}"
    return f"{source}: {counted(split.n_rows, 'row')}{bins}"


def score_sheets(record: Score) -> list[Sheet]:
    """Make the tables of one score: headline metrics, pairs by distance, tasks or families.

    They fit a terminal's 80 columns.
    """
    first = dict.fromkeys((*shown_first(record.spec), "pair_accuracy"))
    names = [name for name in first if name in record.metrics]
    facts = record.forecasts
    of = f" of {record.drawn.text}" if record.drawn else ""
    intervals = f"Intervals: 95 %, {record.draws:,} bootstrap draws{of}; seed {record.seed}"
    oracle = "knows every bin; behind a stroke, every speedup"
    if record.spec.asks_outcome:
        oracle = "knows which programs pass"
    notes = [
        f"{counted(facts.n_repeats, 'repeat')}, {_shares(facts)}",
        *([record.spec.note] if record.spec.note else []),
        intervals if record.draws else "No intervals",
        "Best control: the best figure of the forecasts without a language model, metric by metric",
        f"Oracle: the figure of a forecast that {oracle}",
    ]
    if record.spec.asks_outcome:
        notes.append("Of two outcomes, passing and failing, CRPS is the Brier score")
    if any(map(record.is_weak, names)):
        notes.append(_MARK_NOTE)
    lower = [METRICS[name].title for name in names if METRICS[name].better == "lower"]
    notes += [f"Lower is better: {', '.join(lower)}"] if lower else []
    notes.append(f"All {len(record.metrics)} metrics and more of each: --json")
    rows = [_metric_row(record, name) for name in names]
    title = f"{facts.name} on {heading(record.split, record.scheme)}"
    sheets = [Sheet(title, _SCORE_COLUMNS, rows, notes)]
    if record.pairs:
        columns = ["distance", "pairs", "in the right order", "by one more measurement"]
        rows = [
            [b.title, f"{b.n_pairs:,}", _share(b.accuracy), _share(b.ceiling)] for b in record.pairs
        ]
        sheets.append(Sheet("Pairs by distance", columns, rows, []))
    if record.discovery:
        columns = ["cutoff", "positives", "base rate", "least and largest average precision"]
        rows = [
            [f"{c.cutoff:g}x", f"{c.n_positive:,}", _share(c.base_rate), _repeats(record, c.cutoff)]
            for c in record.discovery
        ]
        sheets.append(Sheet("Discovery moments", columns, rows, []))
    return [*sheets, _group_sheet(record)]


def score_remarks(record: Score) -> list[str]:
    """State what a reader of the figures should know besides: one sentence each."""
    f, deferral, remarks = record.forecasts, record.deferral, []
    if not record.split.canonical:
        variant = printable(record.split.split_name)
        remarks.append(f"This is the variant {variant!r} of the split: don't compare across.")
    if record.split.n_rows < FEW_ROWS:
        few = f"{counted(record.split.n_rows, 'row')}: too few to tell forecasters apart"
        remarks.append(f"{few}, and an interval of so few says less than 95 %.")
    if record.relabelled:
        remarks.append(f"Labels computed anew under {record.scheme}; the split has another scheme.")
    crps = record.metrics["crps"].mean if "crps" in record.metrics else None
    even_odds = record.uniform.get("crps")
    if crps is not None and even_odds is not None and crps > even_odds:
        worse = f"CRPS {crps:.3f} is worse than that of even odds, {even_odds:.3f}"
        remarks.append(f"{worse}. Training programs are not spread over the bins as the split is.")
    if f.n_raw_sum_rejected:
        rejected = f"sum below 0.5 or above 1.5: {counted(f.n_raw_sum_rejected, 'forecast')}"
        remarks.append(f"{rejected}, which count as not parsed.")
    if f.n_stated_differs:
        differing = f"{f.n_stated_differs:,} of {f.n_stated:,} stated bins are not"
        remarks.append(f"{differing} the most probable one; scored: {record.predicted_bin}.")
    if deferral is not None:
        figures = ", ".join(
            f"{word} {METRICS[name].format(deferral.accepted[name].mean)}"
            for word, name in (("accuracy", "accuracy"), ("error", "forecast_error"))
            if name in deferral.accepted
        )
        rate = f"Deferred: {_share(f.deferral_rate)} of the forecasts; the tables hold all of them"
        remarks.append(f"{rate}. On those not deferred alone: {figures}.")
        if deferral.deferred_accuracy is not None:
            n, accuracy = deferral.n_deferred_parsed, f"{deferral.deferred_accuracy:.3f}"
            remarks.append(f"Accuracy on the {n:,} deferred that have a distribution: {accuracy}.")
    return remarks


def several_sheet(records: Sequence[Score]) -> Sheet:
    """Put several scores side by side, best first by the headline figure of their split."""
    lead = records[0].spec.lead
    info = METRICS[lead]
    ordered = sorted(records, key=lambda r: (info.sort_key(r.metrics[lead].mean), r.forecasts.name))
    further = [n for n in ("crps_skill", *_BESIDE[records[0].kind]) if n != lead]
    rows = []
    for record in ordered:
        cells = [*_figure(record, lead), *(_figure(record, name)[0] for name in further)]
        rows.append([record.forecasts.name, *cells, _share(record.forecasts.coverage)])
    titles = [METRICS[name].title for name in further]
    columns = ["forecaster", info.title, "95 % interval", *titles, "coverage"]
    notes = [
        "Intervals are of each score alone; to tell two apart: kernel-archive compare",
        "All metrics: --json",
    ]
    if any(cell.endswith(" *") for row in rows for cell in row):
        notes.insert(0, _MARK_NOTE)
    return Sheet(heading(records[0].split, records[0].scheme), columns, rows, notes)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Show a comparison as a table."""
    a, b = printable(comparison.a.name, 40), printable(comparison.b.name, 40)
    side = {"a": "A", "b": "B", "neither": "-"}
    rows = []
    for name, d in comparison.differences.items():
        info = METRICS[name]
        span = f"({_span(d.low, d.high, info.decimals, '+')})"
        difference = "-" if d.difference is None else f"{d.difference:+z.{info.decimals}f} {span}"
        p = "-" if d.p_holm is None else "<.001" if d.p_holm < 0.001 else f"{d.p_holm:.3f}"
        sides = [info.format(value).removesuffix(info.unit) for value in (d.a, d.b)]
        title = info.title.replace("Average precision", "AP")  # the table fits 80 columns
        title = f"{title}, {info.unit.strip()}" if info.unit else title
        rows.append([title, *sides, difference, p, side[d.better]])
    of = f" of {comparison.drawn.text}" if comparison.drawn else ""
    draws = f"{comparison.draws:,} bootstrap draws and as many swaps{of}"
    families = "over the paper's metrics and over the further ones of this project"
    notes = [
        f"A: {a}",
        f"B: {b}",
        f"A - B: with its 95 % interval; {draws}, seed {comparison.seed}",
        f"p: after Holm's correction, {families}; won: p below 0.05, else -",
        "Where interval and test disagree, the test decides: it is corrected for their number",
        "A board corrects for its pairs of entries, not for metrics, and may tell these two apart",
    ]
    columns = ["metric", "A", "B", "A - B", "p", "won"]
    title = f"{a} against {b} on {heading(comparison.split, comparison.scheme)}"
    return Sheet(title, columns, rows, notes)


def check_lines(report: CheckReport) -> list[str]:
    """Show a checked file in figures, as lines of text."""
    shares = _shares(report)
    kinds = ", ".join(f"{code} {count:,}" for code, count in report.counts.items())
    faults = f"{counted(report.n_errors, 'fault')}, {counted(report.n_warnings, 'warning')}"
    rows = f"{counted(report.n_repeats, 'repeat')} of {counted(report.n_rows, 'row')}"
    lines_in = f"{counted(report.n_lines, 'forecast')} in {rows}"
    state = "can be scored" if report.ok else "can not be scored"
    if report.ok and (n_missing := report.n_rows * report.n_repeats - report.n_present):
        state += f", without {n_missing:,} of the forecasts"
    lines = [
        f"{report.file}: {state}",
        f"  {lines_in}: {shares}, {report.n_deferred:,} deferred",
        f"  {faults}{kinds and ': '}{kinds}",
    ]
    if report.ok and report.coverage < MIN_COVERAGE:
        lines.append(f"  a board does not rank a file that covers under {100 * MIN_COVERAGE:.0f} %")
    return lines


def _shares(facts: CheckReport | ForecastFacts) -> str:
    return f"coverage {_share(facts.coverage)}, parse rate {_share(facts.parse_rate)}"


def _span(low: float | None, high: float | None, decimals: int, sign: str = "") -> str:
    if low is None or high is None:
        return "-"
    return f"{low:{sign}z.{decimals}f} to {high:{sign}z.{decimals}f}"


def _repeats(record: Score, cutoff: float) -> str:
    """Show the least and the largest average precision of the repeats."""
    figures = [v for v in record.metrics[f"average_precision_{cutoff:g}"].repeats if v is not None]
    return _span(min(figures, default=None), max(figures, default=None), 3)


def _share(value: float | None) -> str:
    """Show a share in percent that says 100 only when it is."""
    if value is None:
        return "-"
    percent = f"{100 * value:.1f}"
    return f"{'99.9' if percent == '100.0' and value < 1 else percent} %"


def _figure(record: Score, name: str) -> tuple[str, str]:
    """Show a figure, marked where it does not beat the best control, and its interval."""
    info, metric = METRICS[name], record.metrics[name]
    mark = " *" if record.is_weak(name) else ""
    return info.format(metric.mean) + mark, _span(metric.low, metric.high, info.decimals)


def _metric_row(record: Score, name: str) -> list[str]:
    """Show a metric in all columns of the main table."""
    info = METRICS[name]
    # What knowing every bin gives, and, where that is more, what knowing every speedup gives.
    oracles = [c for c in record.controls if c.name.startswith("oracle_")]
    oracle = dict.fromkeys(info.format(c.metrics.get(name)) for c in oracles)
    best = info.format(record.control(name))
    return [info.title, *_figure(record, name), best, " / ".join(oracle) or "-"]


def _group_sheet(record: Score) -> Sheet:
    """Show the headline figure of every task or family."""
    group, info = record.spec.group, METRICS[record.spec.lead]
    rows = []
    for name, metrics in record.groups.items():
        metric = metrics[info.name]
        span = _span(metric.low, metric.high, info.decimals)
        rows.append([name, f"{record.group_rows[name]:,}", info.format(metric.mean), span])
    return Sheet(f"By {group}", [group, "rows", info.title, "95 % interval"], rows, [])
