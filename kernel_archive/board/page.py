"""The page: one HTML file with everything in it. The standings are complete without its script."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from kernel_archive._version import __version__
from kernel_archive.bins import BIN_NAMES, SCHEMES
from kernel_archive.board.payload import make_payload, packed
from kernel_archive.board.texts import page_file, render
from kernel_archive.scoring import HEADLINE, METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.board.entries import Entry
    from kernel_archive.board.standings import Line, Standings
    from kernel_archive.scoring import Metric

__all__ = ["LIBRARIES", "SCRIPTS", "render_page", "verdict"]

#: Bundled libraries: file and licence under ``page/vendor/``, in loading order. Versions and digests: its README.
LIBRARIES: Final = (
    ("d3.min.js", "LICENSE-d3.txt"),
    ("plot.umd.min.js", "LICENSE-plot.txt"),
    ("highlight.min.js", "LICENSE-highlight.txt"),
    ("diff.min.js", "LICENSE-diff.txt"),
)
#: The page's own script, in loading order, as one closed function.
SCRIPTS: Final = ("core.js", "standings.js", "plots.js", "compare.js", "tasks.js", "code.js", "kernels.js", "start.js")

#: Shown beside the headline metrics; the page's script can put another one in its place.
_FURTHER: Final = "crps"
_DASH: Final = "\u2013"
#: Width of an interval drawn in a cell, and the room left at its ends.
_WIDTH, _ROOM = 76, 4


def _number(metric: str, value: float | None) -> str:
    return METRICS[metric].format(value).replace(" %", "\u2009%").replace(" nats", "")


def _span(metric: str, figure: Metric) -> str:
    """The interval as text, without its unit."""
    if figure.low is None or figure.high is None:
        return ""
    d = METRICS[metric].decimals
    return f"{figure.low:.{d}f}{_DASH}{figure.high:.{d}f}"


def _share(value: float) -> str:
    return f"{100 * value:.{0 if value in (0.0, 1.0) else 1}f}\u2009%"


def _places(metric: str, board: Standings) -> tuple[float, float]:
    """Ends of a column's scale: all figures and intervals of ranked lines, and the uniform forecast."""
    figures = [line.metrics[metric] for line in board.lines if line.ranked]
    values = [v for m in figures for v in (m.mean, m.low, m.high)]
    known = [v for v in (*values, board.uniform.get(metric)) if v is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = (high - low) * 0.04 or 0.5
    return low - room, high + room


def _major(name: str, line: Line, board: Standings) -> dict[str, Any]:
    """A figure and its interval, as text and as places on the column's scale."""
    figure = line.metrics[name]
    low, high = _places(name, board)

    def x(value: float | None) -> str | None:
        if value is None:
            return None
        at = min(max((value - low) / (high - low), 0.0), 1.0)
        return f"{_ROOM + at * (_WIDTH - 2 * _ROOM):.1f}"

    return {
        "name": name, "value": "" if figure.mean is None else repr(figure.mean), "shown": _number(name, figure.mean),
        "span": _span(name, figure), "uniform": x(board.uniform.get(name)), "low": x(figure.low), "high": x(figure.high),
        "mean": x(figure.mean),
    }  # fmt: skip


def _minor(line: Line) -> list[dict[str, Any]]:
    """Accuracy, coverage, repeats and cost, each with a note in small."""
    accuracy = line.metrics["accuracy"].mean
    tokens, latency = line.tokens_per_forecast, line.latency_s
    seconds = "" if latency is None else f"{latency:.1f} s"
    cost = seconds or _DASH if tokens is None else f"{tokens:,.0f} tok"
    answered = [f"parsed {_share(line.parse_rate)}"] if line.parse_rate is not None and line.parse_rate < 1 else []
    answered += [f"deferred {_share(line.deferral_rate)}"] if line.deferral_rate > 0 else []
    cells = (
        ("accuracy", accuracy, _number("accuracy", accuracy), ""),
        ("coverage", line.coverage, _share(line.coverage), ", ".join(answered)),
        ("repeats", float(line.repeats), str(line.repeats), ""),
        ("cost", tokens if tokens is not None else latency, cost, "" if tokens is None else seconds),
    )
    return [
        {"name": name, "value": "" if value is None else repr(value), "shown": shown, "note": note}
        for name, value, shown, note in cells
    ]


def _row(line: Line, names: Sequence[str], board: Standings) -> dict[str, Any]:
    rank = line.ranks.get(names[0])
    best = rank is not None and rank.best == 1
    return {
        "line": line,
        "classes": " ".join(c for c in ("best" if best else "", "" if line.ranked else "apart") if c),
        "rank": _DASH if rank is None else rank.rank,
        "range": "" if rank is None or rank.best == rank.worst else f"{rank.best}{_DASH}{rank.worst}",
        "major": [_major(name, line, board) for name in names],
        "minor": _minor(line),
    }


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def verdict(board: Standings) -> dict[str, str]:
    """Who is best (``leaders``, empty when nobody is ranked), and by how much and whether it is real (``says``)."""
    kind = board.target.kind
    first = HEADLINE[kind][0]
    ranked = [line for line in board.lines if line.ranked and first in line.ranks]
    if not ranked:
        return {"leaders": "", "says": ""}
    lead = ranked[0]
    figure, uniform = lead.metrics[first], board.uniform.get(first)
    what = (
        f"measuring only the candidates put first finds {_number(first, figure.mean)} of each task's best speedup"
        if kind == "eval"
        else f"average precision {_number(first, figure.mean)} in finding children at least {first.rsplit('_', 1)[-1]}x as fast"
    )
    span = f" (95 % interval {_span(first, figure)})" if _span(first, figure) else ""
    chance = "" if uniform is None else f"; by chance it would be {_number(first, uniform)}"
    leaders = [line.name for line in ranked if line.ranks[first].rank == 1]
    leads, them = ("leads", "it") if len(leaders) == 1 else ("share the lead", "them")
    says = f"{leads}: {what}{span}{chance}. {_rest(board, ranked, leaders, them)}"
    return {"leaders": _and(leaders), "says": says.strip()}


def _rest(board: Standings, ranked: list[Line], leaders: list[str], them: str) -> str:
    """Whom the leaders can't be told apart from, and who is the first that they can."""
    first = HEADLINE[board.target.kind][0]
    places = ranked[0].ranks[first].tied_with
    tied = [board.lines[j].name for j in places if board.lines[j].name not in leaders]
    if len(ranked) == 1:
        return "It is the only ranked entry."
    if not tied:
        return "The lead over every other entry is real." if len(leaders) < len(ranked) else ""
    who = f"{_and(tied)} can't be told apart from {them}." if len(tied) <= 3 else ""
    who = who or f"{len(tied)} others can't be told apart from {them}: the green rows."
    behind = next(((j, line) for j, line in enumerate(ranked) if j and j not in places), None)
    if behind is None:
        return who
    j, other = behind
    pairs, info = board.pairs[first], METRICS[first]
    gap = abs(float(pairs.difference[0, j]))
    ends = sorted(abs(float(v)) for v in (pairs.low[0, j], pairs.high[0, j]))
    unit, d = " points" if info.unit == " %" else info.unit, info.decimals
    return f"{who} {other.name} is the first that is really behind, by {gap:.{d}f}{unit} ({ends[0]:.{d}f} to {ends[1]:.{d}f})."


def _board(board: Standings) -> dict[str, Any]:
    """What the template needs of the standings of one split."""
    headline = HEADLINE[board.target.kind]
    names = (*headline, _FURTHER)
    foreign = [
        {
            "name": item.submission.name,
            "version": item.submission.archive.version,
            "digest": item.submission.archive.digest[7:19],
            "scheme": item.record.scheme,
            "figures": [
                _number(name, item.record.metrics[name].mean) if name in item.record.metrics else _DASH
                for name in headline
            ],
        }
        for item in board.foreign
    ]
    return {
        "split": board.target.split,
        "metrics": [METRICS[name] for name in names],
        "verdict": verdict(board),
        "rows": [_row(line, names, board) for line in board.lines],
        "foreign": foreign,
    }


def _script_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def render_page(
    archive: Archive, ranked: Sequence[tuple[Standings, list[Entry]]], *, left_out: Sequence[str] = ()
) -> str:
    """The page as one HTML text. It fetches nothing, and its policy lets nothing but its own scripts run.

    Args:
        archive: the archive of the rows: programs and lineage.
        ranked: standings with their entries in the order of the lines.
        left_out: names of submissions that are at fault.
    """
    boards = [standings for standings, _ in ranked]
    first = boards[0]
    target = first.target
    own = "(() => {\n'use strict';\n" + "\n".join(page_file(name) for name in SCRIPTS) + "\n})();\n"
    scripts = [page_file(f"vendor/{library}") for library, _ in LIBRARIES] + [own]
    rule = SCHEMES[target.scheme]
    rows = ", ".join(f"{len(b.target):,} {b.target.split.rows}" for b in boards)
    version, digest = archive.manifest.version, archive.manifest.logical_digest
    return render(
        "page.html",
        title=f"Kernel forecast board: {archive.manifest.name} {version}",
        package=__version__,
        script_hashes=Markup(" ".join(map(_script_hash, scripts))),  # noqa: S704 - digests of our own scripts
        style=Markup(page_file("style.css")),  # noqa: S704 - our own file
        facts=f"{rows} of {len(target.task_names)} tasks, measured on {', '.join(target.facts.gpus)} · archive {version} · {digest[7:19]}",
        boards=[_board(board) for board in boards],
        left_out=left_out,
        scheme=target.scheme,
        bins="; ".join(f"{name.replace('_', ' ')} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)),
        draws=f"{first.draws:,}",
        seed=first.seed,
        licences=[(library, page_file(f"vendor/{licence}")) for library, licence in LIBRARIES],
        footer=f"{archive.manifest.name} {version}, {digest}. Scored by kernel-archive {__version__}.",
        payload=packed(make_payload(archive, ranked)),
        scripts=[Markup(text) for text in scripts],  # noqa: S704 - our own files
    )
