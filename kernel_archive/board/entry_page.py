"""The page of one entry: every figure with its interval, the best control and the oracle, and downloads. No script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from kernel_archive._version import __version__
from kernel_archive.board.model_facts import fact_rows
from kernel_archive.board.page import headline_says, in_short, number, span
from kernel_archive.board.submissions import FORECASTS_FILE
from kernel_archive.board.texts import page_file, render
from kernel_archive.scoring import HEADLINE, METRICS
from kernel_archive.scoring.metrics import LEAD, RANKED_BY

if TYPE_CHECKING:
    from kernel_archive.board.entries import Entry
    from kernel_archive.board.standings import Line, Standings

__all__ = ["render_entry"]


def render_entry(board: Standings, line: Line, entry: Entry, *, submissions: str | None) -> str:
    """The page of an entry as HTML.

    Args:
        board: its board.
        line: its line there.
        entry: its score.
        submissions: where the folders of submissions are, seen from the page; ``None`` where they can't be reached.
    """
    target = board.target
    names = [name for name in (LEAD, *HEADLINE[target.kind], "pair_accuracy", "crps") if name in METRICS]
    names = [name for name in names if all(name in values for values in line.record.groups.values())]
    groups = [
        (f"{group} ({entry.record.group_rows[group]:,} rows)", [number(n, values[n].mean) for n in names])
        for group, values in line.record.groups.items()
    ]
    facts = target.facts
    return render(
        "entry.html",
        package=__version__,
        preview=_preview(board, line),
        style=Markup(page_file("style.css")),  # noqa: S704 - our own file
        line=line,
        model_facts=fact_rows(line.submission.model_facts),
        split=target.split,
        back="" if target.split.name == "eval" else f"#split={quote(target.split.name)}",
        facts=f"{len(target):,} {target.split.rows} on {', '.join(facts.gpus)} · archive {facts.archive_version} · bins {target.scheme}",
        explained=headline_says(board),
        rows=[_figure(board, line, name) for name in sorted(line.record.metrics, key=lambda name: name != LEAD)],
        group_metrics=[METRICS[name] for name in names],
        groups=groups,
        forecasts=None if submissions is None else f"{submissions}/{line.slug}/{FORECASTS_FILE}",
        footer=f"{facts.archive_name} {facts.archive_version}, {facts.archive_digest}. Scored by kernel-archive {__version__}.",
    )


def _preview(board: Standings, line: Line) -> str:
    """Its place and what its skill means, in one or two sentences."""
    rank = line.ranks.get(RANKED_BY)
    figure = line.record.metrics[LEAD]
    place = "Not ranked." if rank is None else f"Rank {rank.rank} of {board.n_ranked}."
    if rank is not None and rank.best != rank.worst:
        place = f"Rank {rank.rank} of {board.n_ranked} (the data allow {rank.best} to {rank.worst})."
    return f"{place} {in_short(figure)}"


def _figure(board: Standings, line: Line, name: str) -> dict[str, Any]:
    info, figure = METRICS[name], line.record.metrics[name]
    rank = line.ranks.get(name)
    best = board.best_controls.get(name)
    control = next((c.metrics.get(name) for c in board.controls if c.name == best), None)
    bounds = sorted((c for c in board.controls if c.bound), key=lambda c: c.name)
    oracle = dict.fromkeys(number(name, c.metrics.get(name)) for c in bounds) if info.better != "neither" else {}
    return {
        "title": info.title, "meaning": info.meaning, "value": number(name, figure.mean), "span": span(name, figure),
        "weak": not line.record.beats_control.get(name, True), "rank": "" if rank is None else rank.rank,
        "control": "" if best is None else number(name, control), "oracle": " / ".join(oracle),
    }  # fmt: skip
