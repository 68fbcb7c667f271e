"""Plots of score records: everything is drawn from the record alone, in one look.

Colours are told apart by colour-blind readers and come with different markers and dashes, so that a grey print keeps
them. An SVG brings its own background and follows the reader's light or dark setting.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.bins import N_BINS
from kernel_archive.errors import DataError, MissingExtraError, UsageError, printable
from kernel_archive.scoring.metrics import HEADLINE, METRICS, cutoff_name
from kernel_archive.scoring.summary import heading
from kernel_archive.splits import split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kernel_archive.scoring.record import ScoreRecord

#: File endings that can be drawn.
FORMATS: Final = (".svg", ".png", ".pdf")
#: So many records fit into the same axes.
MAX_RECORDS: Final = 7
_COLOURS: Final = ("#2f6fb2", "#b26a00", "#1d7f5f", "#a8457f", "#6a5fb0", "#b0472f", "#6b747d")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: Final = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)), (0, (6, 2)))
_INK, _MUTED, _GRID, _PAPER = "#1f2933", "#5b6770", "#d5dbe1", "#ffffff"
_DARK: Final = {_INK: "#e6eaee", _MUTED: "#a3adb7", _GRID: "#2e3944", _PAPER: "#12181f"}
_SETTINGS: Final = {
    "font.size": 9, "font.family": "DejaVu Sans", "text.parse_math": False, "axes.titlesize": 10,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.edgecolor": _MUTED, "axes.labelcolor": _INK,
    "axes.titlecolor": _INK, "text.color": _INK, "xtick.color": _MUTED, "ytick.color": _MUTED, "axes.grid": True,
    "grid.color": _GRID, "grid.linewidth": 0.8, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "figure.facecolor": _PAPER, "axes.facecolor": _PAPER, "savefig.facecolor": _PAPER,
    "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.7, "lines.markersize": 4.5,
    "svg.fonttype": "path", "svg.hashsalt": "kernel_archive", "pdf.fonttype": 42,
}  # fmt: skip


@dataclass(frozen=True)
class _Drawn:
    """One record and how it is drawn."""

    record: ScoreRecord
    label: str
    colour: str
    marker: str
    dashes: Any

    def line(self, axes: Axes, x: Sequence[float], y: Sequence[float], **more: Any) -> None:
        """A curve in the record's own look."""
        axes.plot(x, y, **{"color": self.colour, "linestyle": self.dashes, "label": self.label, **more})

    def buckets(self, what: str) -> list[float]:
        """One mean of every confidence bucket that holds a forecast."""
        return [getattr(b, what) for b in self.record.buckets if b.count]


def draw(records: Sequence[ScoreRecord], kind: str = "all", ending: str = ".svg") -> bytes:
    """Draw score records.

    Args:
        records: one, or several of the same split and scheme.
        kind: one of :data:`KINDS`, or ``all`` for every plot that these records have.
        ending: one of :data:`FORMATS`.

    Returns:
        The bytes of the picture: the same for the same records.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: unknown kind or ending, or too many records.
        DataError: the records don't belong together, or have nothing of this kind.
    """
    if ending.lower() not in FORMATS:
        raise UsageError(f"can't draw a {printable(ending) or 'nameless'} file; choose one of: {', '.join(FORMATS)}")
    if kind not in ("all", *KINDS):
        raise UsageError(f"unknown plot {kind!r}; choose one of: all, {', '.join(KINDS)}")
    if not 1 <= len(records) <= MAX_RECORDS:
        raise UsageError(f"{len(records)} records: 1 to {MAX_RECORDS} fit into one picture")
    first = records[0]
    if any((r.target, r.scheme) != (first.target, first.scheme) for r in records):
        raise DataError("these records are of different splits or bin schemes and don't belong into one picture")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError('plots need matplotlib: pip install "kernel-archive[plots]"') from None

    names = [name for name, panel in KINDS.items() if kind in ("all", name) and panel.there(records)]
    if kind != "all" and not names:
        raise DataError(f"these records have nothing for the plot {kind!r}: {KINDS[kind].lacks}")
    drawn = [
        _Drawn(r, printable(r.forecasts.name, 32), colour, marker, dashes)
        for r, colour, marker, dashes in zip(records, _COLOURS, _MARKERS, _DASHES, strict=False)
    ]
    with mpl.rc_context({**mpl.rcParamsDefault, **_SETTINGS}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn with boxes: no reason to trouble the user.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        columns, lines = min(3, len(names)), -(-len(names) // 3)
        figure = Figure(figsize=(4.1 * columns + 0.4, 3.6 * lines + 0.6), layout="constrained")
        title = drawn[0].label if len(records) == 1 else f"{len(records)} forecasters"
        figure.suptitle(
            f"{title} on {printable(heading(first.target, first.scheme), 160)}" if columns > 1 else title,
            x=0.01, ha="left", fontsize=11, color=_INK,
        )  # fmt: skip
        for i, name in enumerate(names, 1):
            KINDS[name].draw(figure.add_subplot(lines, columns, i), drawn)
        if len(records) > 1 and len(names) > 1:
            _shared_legend(figure)
        return _saved(figure, ending.lower())


def file_name_for(records: Sequence[ScoreRecord], kind: str) -> str:
    """A file name for the picture when its user gives none."""
    name = records[0].forecasts.name if len(records) == 1 else "forecasters"
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "forecasts"
    return f"{safe}.svg" if kind == "all" else f"{safe}-{kind}.svg"


def _shared_legend(figure: Figure) -> None:
    """One legend for all axes instead of one in each."""
    for legend in filter(None, (axes.get_legend() for axes in figure.axes)):
        legend.remove()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4)


def _saved(figure: Figure, ending: str) -> bytes:
    out = io.BytesIO()
    metadata: dict[str, Any] = {".svg": {"Date": None, "Creator": None}, ".pdf": {"CreationDate": None}}.get(ending, {})
    figure.savefig(out, format=ending[1:], dpi=160, metadata=metadata)
    data = out.getvalue()
    if ending != ".svg":
        return data
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n </defs>"
    return data.replace(b"</defs>", style.encode(), 1)


def _reliability(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=":", label="_perfect")
    most = max((b.count for d in drawn for b in d.record.buckets), default=1) or 1
    for d in drawn:
        x, y = d.buckets("confidence"), d.buckets("accuracy")
        d.line(axes, x, y, marker=d.marker, markersize=3)
        sizes = [12 + 110 * count / most for count in d.buckets("count")]
        axes.scatter(x, y, s=sizes, color=d.colour, marker=d.marker, alpha=0.45, linewidths=0)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xlabel="confidence", ylabel="share of right bins", title="Reliability")
    _figures(axes, drawn, "ece", "upper left")


def _error(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    for d in drawn:
        d.line(axes, d.buckets("confidence"), d.buckets("error"), marker=d.marker)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="forecast error, x", title="Error by confidence")
    axes.set_ylim(bottom=0)
    _figures(axes, drawn, "confidence_monotonicity", "best")


def _recovery(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    curves = [(d, d.record.recovery) for d in drawn if d.record.recovery is not None]
    for d, curve in curves:
        d.line(axes, curve.budgets, curve.mean)
        if curve.low:
            axes.fill_between(curve.budgets, curve.low, curve.high, color=d.colour, alpha=0.16, linewidth=0)
    _, first = curves[0]
    axes.plot(first.budgets, first.random, color=_MUTED, linewidth=1, linestyle=":", label="_random order")
    at = (first.budgets[9], first.random[9])
    axes.annotate("random order", at, xytext=(6, -11), textcoords="offset points", color=_MUTED, fontsize=8)
    axes.set(xscale="log", xlim=(1, 100), ylim=(0, 101), title="Recovery")
    axes.set(xlabel="budget, % of a task's candidates measured", ylabel="% of the best speedup")
    axes.set_xticks([1, 2, 5, 10, 25, 50, 100], ["1", "2", "5", "10", "25", "50", "100"])
    axes.minorticks_off()
    _figures(axes, drawn, "speedup_recovered", "lower right")


def _confusion(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    counts = drawn[0].record.confusion
    shares = [[c / max(sum(row), 1) for c in row] for row in counts]
    shades = LinearSegmentedColormap.from_list("shades", ["#eef3f8", "#8fb9d8", "#2f6fb2", "#173e66"])
    axes.grid(visible=False)
    axes.pcolormesh(range(N_BINS + 1), range(N_BINS + 1), shares, cmap=shades, vmin=0, vmax=1, edgecolors=_PAPER)
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            if share >= 0.005:
                # Fixed colours: the cell behind the figure is the same on a light and a dark page.
                ink = "#fefefe" if share > 0.45 else "#101820"
                axes.text(x + 0.5, y + 0.5, f"{100 * share:.0f}", ha="center", va="center", fontsize=7.5, color=ink)
    ticks = [b + 0.5 for b in range(N_BINS)]
    axes.set_xticks(ticks, [str(b) for b in range(1, N_BINS + 1)])
    axes.set_yticks(ticks, [f"{b}  ({sum(row):,})" for b, row in enumerate(counts, 1)])
    axes.tick_params(length=0)
    axes.set(
        xlim=(0, N_BINS), ylim=(N_BINS, 0), aspect="equal", xlabel="predicted bin", ylabel="measured bin (forecasts)"
    )
    axes.set_title("Confusion, % of each row" + (f": {drawn[0].label}" if len(drawn) > 1 else ""))


def _risk(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    for d in drawn:
        if d.record.risk is not None:
            d.line(axes, [100 * c for c in d.record.risk.coverage], d.record.risk.error)
    axes.set(xlim=(0, 100), xlabel="% of rows accepted, most confident first", ylabel="their forecast error, x")
    axes.set_title("Risk and coverage")
    axes.set_ylim(bottom=0)
    _figures(axes, drawn, "aurc", "best")


def _precision_recall(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    single = len(drawn) == 1
    for d in drawn:
        for i, curve in enumerate(d.record.discovery if single else d.record.discovery[1:2]):
            if not curve.precision:
                continue
            name = cutoff_name(curve.cutoff)
            ap = f"AP {METRICS[name].format(d.record.metrics[name].mean)}"
            colour = _COLOURS[i] if single else d.colour
            own = {"color": colour, "linestyle": _DASHES[i], "label": f"at least {curve.cutoff:g}x ({ap})"}
            d.line(axes, curve.recall, curve.precision, **(own if single else {"label": f"{d.label} ({ap})"}))
            low, high = curve.precision_low, curve.precision_high
            axes.fill_between(curve.recall, low, high, color=colour, alpha=0.16, linewidth=0)
            if single or d is drawn[0]:
                axes.axhline(curve.base_rate, color=colour if single else _MUTED, linewidth=1, linestyle=":")
    cutoff = "" if single else f", at least {drawn[0].record.discovery[1].cutoff:g}x"
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision", title=f"Discovery moments{cutoff}")
    axes.legend(loc="best")


def _groups(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    first = drawn[0].record
    info = METRICS[HEADLINE[first.kind][0]]
    groups = list(first.groups)
    step = 0.7 / len(drawn)
    for i, d in enumerate(drawn):
        shift = (i - (len(drawn) - 1) / 2) * step
        for y, group in enumerate(groups):
            metric = d.record.groups[group][info.name]
            if metric.mean is None:
                continue
            if metric.low is not None and metric.high is not None:
                axes.plot([metric.low, metric.high], [y + shift] * 2, color=d.colour, alpha=0.45, linewidth=3)
            label = d.label if y == 0 else "_"
            d.line(axes, [metric.mean], [y + shift], marker=d.marker, linestyle="", label=label)
    axes.set_yticks(range(len(groups)), [printable(group, 24) for group in groups])
    axes.set(ylim=(len(groups) - 0.4, -0.6), xlabel=f"{info.title}{info.unit.replace(' %', ', %')}")
    axes.set_title(f"By {split_of(first.target.table).group}")
    axes.set_xlim(right=101 if first.kind == "eval" else 1.01)
    if len(drawn) > 1:
        axes.legend(loc="best")


def _figures(axes: Axes, drawn: Sequence[_Drawn], metric: str, place: str) -> None:
    """The plot's own figure: beside the title for one record, beside the names in a legend for several."""
    info = METRICS[metric]
    values = {d.label: info.format(d.record.metrics[metric].mean) for d in drawn if metric in d.record.metrics}
    if len(drawn) == 1:
        for value in values.values():
            axes.set_title(f"{info.title} {value}", loc="right", fontsize=9, fontweight="normal", color=_MUTED)
        return
    handles, labels = axes.get_legend_handles_labels()
    shown = [f"{label} ({values[label]})" if label in values else label for label in labels]
    if handles:
        axes.legend(handles, shown, loc=place, title=info.title, title_fontsize=8, alignment="left")


@dataclass(frozen=True)
class _Panel:
    """One kind of plot: how it is drawn, which records have it, and why others don't."""

    draw: Callable[[Axes, Sequence[_Drawn]], None]
    there: Callable[[Sequence[ScoreRecord]], bool]
    lacks: str


def _parsed(records: Sequence[ScoreRecord]) -> bool:
    return any(r.forecasts.n_parsed for r in records)


def _found(records: Sequence[ScoreRecord]) -> bool:
    return any(c.precision for r in records for c in r.discovery)


#: Kind of plot -> how to draw it.
KINDS: Final = {
    "recovery": _Panel(_recovery, lambda rs: all(r.recovery for r in rs), "discovery pairs have no budgets"),
    "precision-recall": _Panel(_precision_recall, _found, "it is for discovery pairs"),
    "reliability": _Panel(_reliability, _parsed, "no forecast was parsed"),
    "error": _Panel(_error, _parsed, "no forecast was parsed"),
    "confusion": _Panel(_confusion, _parsed, "no forecast was parsed"),
    "risk": _Panel(_risk, lambda rs: any(r.risk for r in rs), "no forecast was parsed"),
    "groups": _Panel(_groups, lambda rs: all(r.groups for r in rs), "there are no groups"),
}
