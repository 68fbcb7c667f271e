"""The page: one HTML file with everything in it, complete without its script; and that of one entry, which has no script."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from kernel_archive._version import __version__
from kernel_archive.bins import BIN_NAMES, SCHEMES
from kernel_archive.board.payload import make_payload, packed
from kernel_archive.board.submissions import FORECASTS_FILE, fact_rows
from kernel_archive.board.texts import page_file, render
from kernel_archive.scoring import HEADLINE, METRICS, Metric
from kernel_archive.scoring.metrics import LEAD, RANKED_BY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.board.entries import Entry
    from kernel_archive.board.standings import Standings
    from kernel_archive.scoring.record import ControlFigures

#: Bundled libraries under ``page/vendor/``, in loading order. Versions and digests: its README.
LIBRARIES: Final = ("d3.min.js", "plot.umd.min.js", "highlight.min.js", "diff.min.js")
#: The page's own script, in loading order, as one closed function.
SCRIPTS: Final = ("core.js", "standings.js", "plots.js", "compare.js", "tasks.js", "code.js", "kernels.js", "start.js")

#: Kind of split -> shown beside the headline metrics; the page's script can put another one in its place.
_FURTHER: Final = {"eval": "pair_accuracy", "discovery": "lift_1.5"}
#: Controls that are shown without being asked for, beside the best one and the bounds.
_PLAIN: Final = ("frequencies", "uniform")
_DASH: Final = "\u2013"
#: Width of an interval drawn in a cell, and the room left at its ends.
_WIDTH, _ROOM = 56, 4


def licence_of(library: str) -> str:
    """The licence of a bundled library."""
    return page_file(f"vendor/LICENSE-{library.partition('.')[0]}.txt")


def number(metric: str, value: float | None) -> str:
    """A figure as it stands on the page."""
    return METRICS[metric].format(value).replace(" %", "\u2009%").replace(" nats", "")


def span(metric: str, figure: Metric) -> str:
    """The interval as text, without its unit."""
    if figure.low is None or figure.high is None:
        return ""
    d = METRICS[metric].decimals
    between = _DASH if figure.low >= 0 else " to "
    return f"{figure.low:.{d}f}{between}{figure.high:.{d}f}"


def _share(value: float) -> str:
    return f"{100 * value:.{0 if value in (0.0, 1.0) else 1}f}\u2009%"


class _Column:
    """A column of figures: the metric, the ends of its scale and the best control's figure."""

    def __init__(self, name: str, board: Standings) -> None:
        figures = [entry.record.metrics[name] for entry in board.entries[: board.whole] if entry.ranked]
        values = [v for m in figures for v in (m.mean, m.low, m.high)]
        known = [v for v in (*values, *(c.metrics.get(name) for c in board.controls)) if v is not None]
        low, high = min(known, default=0.0), max(known, default=1.0)
        room = (high - low) * 0.04 or 0.5
        self.name, self.low, self.high = name, low - room, high + room
        best = board.best_control(name)
        self.bar = None if best is None else best.metrics.get(name)

    def x(self, value: float | None) -> str | None:
        """The place of a figure on the scale."""
        if value is None:
            return None
        at = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return f"{_ROOM + at * (_WIDTH - 2 * _ROOM):.1f}"

    def cell(self, figure: Metric, *, beats: bool = True) -> dict[str, Any]:
        """A figure and its interval, as text and as places on the scale."""
        return {
            "name": self.name, "value": "" if figure.mean is None else repr(figure.mean), "shown": number(self.name, figure.mean),
            "span": span(self.name, figure), "control": self.x(self.bar), "low": self.x(figure.low), "high": self.x(figure.high),
            "mean": self.x(figure.mean), "weak": not beats,
        }  # fmt: skip


def _minor(entry: Entry) -> list[dict[str, Any]]:
    """Accuracy, replay, coverage and cost, each with a note in small."""
    accuracy, facts, played = entry.record.metrics["accuracy"].mean, entry.record.forecasts, entry.replay
    tokens, latency, parsed = facts.tokens_per_forecast, facts.latency_s, facts.parse_rate
    replay, reach = (None, "") if played is None else (played.mean, f"{played.low:.0f} to {played.high:.0f}")
    seconds = "" if latency is None else f"{latency:.1f} s"
    cost = seconds or _DASH if tokens is None else f"{tokens:,.0f} tok"
    answered = [f"parsed {_share(parsed)}"] if parsed is not None and parsed < 1 else []
    answered += [f"deferred {_share(facts.deferral_rate)}"] if facts.deferral_rate > 0 else []
    answered += [f"{facts.n_repeats} repeats"] if facts.n_repeats > 1 else []
    cells = (
        ("accuracy", accuracy, number("accuracy", accuracy), ""),
        ("replay", replay, _DASH if replay is None else f"{replay:.0f}", reach),
        ("coverage", facts.coverage, _share(facts.coverage), ", ".join(answered)),
        ("cost", tokens if tokens is not None else latency, cost, "" if tokens is None else seconds),
    )
    return [
        {"name": name, "value": "" if value is None else repr(value), "shown": shown, "note": note}
        for name, value, shown, note in cells
    ]


def _placed(entry: Entry) -> dict[str, Any]:
    """An entry and its place by what ranks: the range is what the data allow, where that is more than one place."""
    rank = entry.ranks.get(RANKED_BY)
    if rank is None:
        return {"entry": entry, "rank": _DASH, "range": "", "best": False}
    reach = "" if rank.best == rank.worst else f"{rank.best}{_DASH}{rank.worst}"
    return {"entry": entry, "rank": rank.rank, "range": reach, "best": rank.best == 1}


def _row(entry: Entry, columns: Sequence[_Column]) -> dict[str, Any]:
    metrics, beats = entry.record.metrics, entry.record.beats_control
    placed = _placed(entry)
    return {
        **placed,
        "classes": " ".join([*(["best"] if placed["best"] else []), *([] if entry.ranked else ["apart"])]),
        "major": [column.cell(metrics[column.name], beats=beats.get(column.name, True)) for column in columns],
        "minor": _minor(entry),
        "place": metrics[RANKED_BY].mean,
    }


def _control(place: int, control: ControlFigures, columns: Sequence[_Column], board: Standings) -> dict[str, Any]:
    """The row of a control or bound: figures without intervals, and no rank."""
    shown = control.bound or control.name in (*_PLAIN, board.best_controls.get(LEAD))
    figures = [Metric(mean=control.metrics.get(column.name), std=None, repeats=()) for column in columns]
    return {
        "control": control,
        "number": place,
        "classes": " ".join(("control", *(["bound"] if control.bound else []), *([] if shown else ["further"]))),
        "major": [column.cell(figure) for column, figure in zip(columns, figures, strict=True)],
        "accuracy": number("accuracy", control.metrics.get("accuracy")),
        "place": control.metrics.get(RANKED_BY),
    }


def _rows(columns: Sequence[_Column], board: Standings) -> list[dict[str, Any]]:
    """Entries in order, controls and bounds among them where their CRPS puts them; what is not ranked comes last."""
    entries = [_row(entry, columns) for entry in board.entries[: board.whole]]
    ranked, apart = entries[: board.n_ranked], entries[board.n_ranked :]
    controls = [_control(place, control, columns, board) for place, control in enumerate(board.controls)]
    both = sorted([*ranked, *controls], key=lambda row: (row["place"] is None, row["place"] or 0.0, "control" in row))
    return [*both, *apart]


def _brief(entry: Entry) -> dict[str, Any]:
    """An entry below those that are shown in whole: its place and the figure that ranks."""
    figure = entry.record.metrics[LEAD]
    return {**_placed(entry), "shown": number(LEAD, figure.mean), "span": span(LEAD, figure)}


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def verdict(board: Standings) -> dict[str, str]:
    """Who is best (``leaders``, empty when nobody is ranked), and by how much and whether it is real (``says``)."""
    ranked = [entry for entry in board.entries if entry.ranked and RANKED_BY in entry.ranks]
    if not ranked:
        return {"leaders": "", "says": ""}
    figure = ranked[0].record.metrics[LEAD]
    leaders = [entry.submission.name for entry in ranked if entry.ranks[RANKED_BY].rank == 1]
    leads, them = ("leads", "it") if len(leaders) == 1 else ("share the lead", "them")
    says = f"{leads}. {in_short(figure, several=len(leaders) > 1)} {_rest(board, ranked, leaders, them)}"
    return {"leaders": _and(leaders), "says": says.strip()}


def in_short(figure: Metric, *, several: bool = False) -> str:
    """What the skill of an entry, or of several that share it, means: a sentence."""
    if figure.mean is None:
        return ""
    reach = ""
    if figure.low is not None and figure.high is not None:
        reach = f" (95 % interval {100 * figure.low:.0f} to {100 * figure.high:.0f}\u2009%)"
    if figure.mean <= 0:
        return f"{'They know' if several else 'It knows'} no more than the best control{reach}."
    so = "" if figure.low is None or figure.low > 0 else ", which may be chance"
    who = "They take" if several else "It takes"
    return f"{who} away {100 * figure.mean:.0f}\u2009%{reach} of the error that is left to the best control{so}."


def headline_says(board: Standings) -> str:
    """The figure that ranks, in one sentence."""
    best = board.best_control(LEAD)
    of = "" if best is None else f" ({best.title})"
    return (
        f"CRPS skill is how much of the error (CRPS) of the best forecast that reads no program{of} an entry takes away: 0 is no "
        "better than that control, 1 is knowing every bin."
    )


def _rest(board: Standings, ranked: list[Entry], leaders: list[str], them: str) -> str:
    """Whom the leaders can't be told apart from, and who is the first that they can."""
    first = ranked[0].ranks[RANKED_BY]
    places = first.tied_with
    tied = [name for j in places if (name := board.entries[j].submission.name) not in leaders]
    if len(ranked) == 1:
        return "It is the only ranked entry."
    further = first.worst - first.best - len(places)  # beyond the entries that are shown in whole
    if not tied and not further:
        return "The lead over every other entry is real." if len(leaders) < len(ranked) else ""
    who = f"{_and(tied)} can't be told apart from {them}."
    if len(tied) + further > 3:
        who = f"{len(tied) + further} others can't be told apart from {them}: the green rows."
    j = next((j for j in range(1, min(len(ranked), board.whole)) if j not in places), None)
    if j is None:
        return who
    lead, behind = (entry.record.metrics[LEAD].mean for entry in (ranked[0], ranked[j]))
    low, high = sorted(abs(float(ends[0, j])) for ends in (board.pairs[LEAD].low, board.pairs[LEAD].high))
    if lead is None or behind is None or not np.isfinite([low, high]).all():
        return who
    d = METRICS[LEAD].decimals
    return f"{who} {ranked[j].submission.name} is the first that is really behind, by {abs(lead - behind):.{d}f} ({low:.{d}f} to {high:.{d}f})."


def _board(board: Standings) -> dict[str, Any]:
    """What the template needs of the standings of one split."""
    headline = HEADLINE[board.target.kind]
    names = (LEAD, *headline, _FURTHER[board.target.kind])
    foreign = [
        {
            "name": item.submission.name,
            "version": item.submission.archive.version,
            "digest": item.submission.archive.digest[7:19],
            "scheme": item.record.scheme,
            "figures": [
                number(name, item.record.metrics[name].mean) if name in item.record.metrics else _DASH
                for name in (LEAD, *headline)
            ],
        }
        for item in board.foreign
    ]
    return {
        "split": board.target.split,
        "metrics": [METRICS[name] for name in names],
        "verdict": verdict(board),
        "explained": headline_says(board),
        "rows": _rows([_Column(name, board) for name in names], board),
        "whole": board.whole,
        "brief": [_brief(entry) for entry in board.entries[board.whole :]],
        "foreign": foreign,
    }


def _script_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def render_page(archive: Archive, boards: Sequence[Standings], *, left_out: Sequence[str] = ()) -> str:
    """The page as one HTML text. It fetches nothing, and its policy lets nothing but its own scripts run.

    Programs and lineage come from the archive; ``left_out`` are names of submissions that are at fault.
    """
    first = boards[0]
    target = first.target
    own = "(() => {\n'use strict';\n" + "\n".join(page_file(name) for name in SCRIPTS) + "\n})();\n"
    scripts = [page_file(f"vendor/{library}") for library in LIBRARIES] + [own]
    rule = SCHEMES[target.scheme]
    leading = verdict(first)
    preview = f"{leading['leaders']} {leading['says']}" if leading["leaders"] else headline_says(first)
    rows = ", ".join(f"{len(b.target):,} {b.target.split.rows} ({b.target.split.name})" for b in boards)
    problems = len({task for b in boards for task in b.target.tasks})
    version, digest = archive.manifest.version, archive.manifest.logical_digest
    return render(
        "page.html",
        title=f"Kernel forecast board: {archive.manifest.name} {version}",
        package=__version__,
        preview=preview,
        script_hashes=Markup(" ".join(map(_script_hash, scripts))),  # noqa: S704 - digests of our own scripts
        style=Markup(page_file("style.css")),  # noqa: S704 - our own file
        facts=f"{rows}, {problems} problems in all, measured on {', '.join(target.facts.gpus)} · archive {version} · {digest[7:19]}",
        boards=[_board(board) for board in boards],
        left_out=left_out,
        scheme=target.scheme,
        bins="; ".join(f"{name.replace('_', ' ')} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)),
        draws=f"{first.draws:,}",
        seed=first.seed,
        licences=[(library, licence_of(library)) for library in LIBRARIES],
        footer=f"{archive.manifest.name} {version}, {digest}. Scored by kernel-archive {__version__}.",
        payload=packed(make_payload(archive, boards)),
        scripts=[Markup(text) for text in scripts],  # noqa: S704 - our own files
    )


def render_entry(board: Standings, entry: Entry, *, submissions: str | None) -> str:
    """The page of an entry of a board as HTML.

    ``submissions`` is where their folders are, seen from the page; ``None`` where they can't be reached.
    """
    target, record = board.target, entry.record
    names = [name for name in (LEAD, *HEADLINE[target.kind], "pair_accuracy", "crps") if name in METRICS]
    names = [name for name in names if all(name in values for values in record.groups.values())]
    groups = [
        (f"{group} ({record.group_rows[group]:,} rows)", [number(name, values[name].mean) for name in names])
        for group, values in record.groups.items()
    ]
    facts = target.facts
    return render(
        "entry.html",
        package=__version__,
        preview=_preview(board, entry),
        style=Markup(page_file("style.css")),  # noqa: S704 - our own file
        entry=entry,
        model_facts=fact_rows(entry.submission.model_facts),
        split=target.split,
        back="" if target.split.name == "eval" else f"#split={quote(target.split.name)}",
        facts=f"{len(target):,} {target.split.rows} on {', '.join(facts.gpus)} · archive {facts.archive_version} · bins {target.scheme}",
        explained=headline_says(board),
        rows=[_figure(board, entry, name) for name in sorted(record.metrics, key=lambda name: name != LEAD)],
        group_metrics=[METRICS[name] for name in names],
        groups=groups,
        forecasts=None if submissions is None else f"{submissions}/{entry.slug}/{FORECASTS_FILE}",
        footer=f"{facts.archive_name} {facts.archive_version}, {facts.archive_digest}. Scored by kernel-archive {__version__}.",
    )


def _preview(board: Standings, entry: Entry) -> str:
    """Its place and what its skill means, in one or two sentences."""
    rank = entry.ranks.get(RANKED_BY)
    place = "Not ranked."
    if rank is not None:
        allowed = "" if rank.best == rank.worst else f" (the data allow {rank.best} to {rank.worst})"
        place = f"Rank {rank.rank} of {board.n_ranked}{allowed}."
    return f"{place} {in_short(entry.record.metrics[LEAD])}"


def _figure(board: Standings, entry: Entry, name: str) -> dict[str, Any]:
    info, figure, rank = METRICS[name], entry.record.metrics[name], entry.ranks.get(name)
    best = board.best_control(name)
    bounds = sorted((c for c in board.controls if c.bound), key=lambda c: c.name)
    oracle = dict.fromkeys(number(name, c.metrics.get(name)) for c in bounds) if info.better != "neither" else {}
    return {
        "title": info.title, "meaning": info.meaning, "value": number(name, figure.mean), "span": span(name, figure),
        "weak": not entry.record.beats_control.get(name, True), "rank": "" if rank is None else rank.rank,
        "control": "" if best is None else number(name, best.metrics.get(name)), "oracle": " / ".join(oracle),
    }  # fmt: skip
