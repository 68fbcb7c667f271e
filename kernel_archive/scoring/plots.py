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
from kernel_archive.scoring.metrics import HEADLINE, METRICS
from kernel_archive.scoring.summary import heading
from kernel_archive.splits import split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kernel_archive.scoring.record import Metric, ScoreRecord

__all__ = ["FORMATS", "KINDS", "MAX_RECORDS", "draw", "file_name_for"]

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
class _Look:
    """How one record is drawn."""

    label: str
    colour: str
    marker: str
    dashes: Any


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

    names = [name for name, panel in KINDS.items() if panel.there(records)] if kind == "all" else [kind]
    if kind != "all" and not KINDS[kind].there(records):
        raise DataError(f"these records have nothing for the plot {kind!r}: {KINDS[kind].lacks}")
    looks = [
        _Look(printable(r.forecasts.name, 32), colour, marker, dashes)
        for r, colour, marker, dashes in zip(records, _COLOURS, _MARKERS, _DASHES, strict=False)
    ]
    with mpl.rc_context({**mpl.rcParamsDefault, **_SETTINGS}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn with boxes: no reason to trouble the user.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        columns = min(3, len(names))
        lines = -(-len(names) // columns)
        figure = Figure(figsize=(4.1 * columns + 0.4, 3.6 * lines + 0.6), layout="constrained")
        title = looks[0].label if len(records) == 1 else f"{len(records)} forecasters"
        figure.suptitle(
            f"{title} on {printable(heading(first.target, first.scheme), 160)}" if columns > 1 else title,
            x=0.01, ha="left", fontsize=11, color=_INK,
        )  # fmt: skip
        for i, name in enumerate(names):
            axes = figure.add_subplot(lines, columns, i + 1)
            KINDS[name].draw(axes, records, looks)
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
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(handles, labels, loc="outside lower left", ncols=4)


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


def _with(look: _Look, text: str) -> str:
    return f"{look.label} ({text})" if text else look.label


def _means(record: ScoreRecord, what: str) -> list[float]:
    """One mean of every bucket that holds a forecast."""
    return [getattr(b, what) for b in record.buckets if b.count]


def _reliability(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=":", label="_perfect")
    most = max((b.count for r in records for b in r.buckets), default=1) or 1
    for record, look in zip(records, looks, strict=True):
        x, y = _means(record, "confidence"), _means(record, "accuracy")
        axes.plot(x, y, color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=3, label=look.label)
        sizes = [12 + 110 * b.count / most for b in record.buckets if b.count]
        axes.scatter(x, y, s=sizes, color=look.colour, marker=look.marker, alpha=0.45, linewidths=0)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xlabel="confidence", ylabel="share of right bins", title="Reliability")
    _figures(axes, records, looks, "ece", "upper left")


def _error(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    for record, look in zip(records, looks, strict=True):
        x, y = _means(record, "confidence"), _means(record, "error")
        axes.plot(x, y, color=look.colour, linestyle=look.dashes, marker=look.marker, label=look.label)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="forecast error, x", title="Error by confidence")
    axes.set_ylim(bottom=0)
    _figures(axes, records, looks, "confidence_monotonicity", "best")


def _recovery(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    for record, look in zip(records, looks, strict=True):
        curve = record.recovery
        if curve is None:
            continue
        axes.plot(curve.budgets, curve.mean, color=look.colour, linestyle=look.dashes, label=look.label)
        if curve.low:
            axes.fill_between(curve.budgets, curve.low, curve.high, color=look.colour, alpha=0.16, linewidth=0)
    random = records[0].recovery
    if random is not None:
        axes.plot(random.budgets, random.random, color=_MUTED, linewidth=1, linestyle=":", label="_random order")
        axes.annotate(
            "random order", (random.budgets[9], random.random[9]), xytext=(6, -11), textcoords="offset points",
            color=_MUTED, fontsize=8,
        )  # fmt: skip
    axes.set(xscale="log", xlim=(1, 100), ylim=(0, 101), title="Recovery")
    axes.set(xlabel="budget, % of a task's candidates measured", ylabel="% of the best speedup")
    axes.set_xticks([1, 2, 5, 10, 25, 50, 100], ["1", "2", "5", "10", "25", "50", "100"])
    axes.minorticks_off()
    _figures(axes, records, looks, "speedup_recovered", "lower right")


def _confusion(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    counts = records[0].confusion
    shares = [[c / max(sum(row), 1) for c in row] for row in counts]
    from matplotlib.colors import LinearSegmentedColormap

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
    axes.set_title("Confusion, % of each row" + (f": {looks[0].label}" if len(records) > 1 else ""))


def _risk(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    for record, look in zip(records, looks, strict=True):
        if record.risk is not None:
            x = [100 * c for c in record.risk.coverage]
            axes.plot(x, record.risk.error, color=look.colour, linestyle=look.dashes, label=look.label)
    axes.set(xlim=(0, 100), xlabel="% of rows accepted, most confident first", ylabel="their forecast error, x")
    axes.set_title("Risk and coverage")
    axes.set_ylim(bottom=0)
    _figures(axes, records, looks, "aurc", "best")


def _precision_recall(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    single = len(records) == 1
    for record, look in zip(records, looks, strict=True):
        for i, curve in enumerate(record.discovery if single else record.discovery[1:2]):
            if not curve.precision:
                continue
            colour, dashes = (_COLOURS[i], _DASHES[i]) if single else (look.colour, look.dashes)
            value = METRICS[HEADLINE["discovery"][0]].format(record.metrics[f"average_precision_{curve.cutoff:g}"].mean)
            label = f"at least {curve.cutoff:g}x (AP {value})" if single else _with(look, f"AP {value}")
            axes.plot(curve.recall, curve.precision, color=colour, linestyle=dashes, label=label)
            axes.fill_between(
                curve.recall, curve.precision_low, curve.precision_high, color=colour, alpha=0.16, linewidth=0
            )
            if single or record is records[0]:
                axes.axhline(curve.base_rate, color=colour if single else _MUTED, linewidth=1, linestyle=":")
    cutoff = "" if single else f", at least {records[0].discovery[1].cutoff:g}x"
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision", title=f"Discovery moments{cutoff}")
    axes.legend(loc="best")


def _groups(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look]) -> None:
    first = records[0]
    name = HEADLINE[first.kind][0]
    groups = list(first.groups)
    step = 0.7 / len(records)
    for i, (record, look) in enumerate(zip(records, looks, strict=True)):
        shift = (i - (len(records) - 1) / 2) * step
        for y, group in enumerate(groups):
            metric: Metric = record.groups[group][name]
            if metric.mean is None:
                continue
            label = look.label if y == 0 else "_"
            if metric.low is not None and metric.high is not None:
                axes.plot([metric.low, metric.high], [y + shift] * 2, color=look.colour, alpha=0.45, linewidth=3)
            axes.plot([metric.mean], [y + shift], color=look.colour, marker=look.marker, linestyle="", label=label)
    axes.set_yticks(range(len(groups)), [printable(group, 24) for group in groups])
    axes.set(ylim=(len(groups) - 0.4, -0.6), xlabel=f"{METRICS[name].title}{METRICS[name].unit.replace(' %', ', %')}")
    axes.set_title(f"By {split_of(first.target.table).group}")
    axes.set_xlim(right=101 if first.kind == "eval" else 1.01)
    if len(records) > 1:
        axes.legend(loc="best")


def _figures(axes: Axes, records: Sequence[ScoreRecord], looks: Sequence[_Look], metric: str, place: str) -> None:
    """The plot's own figure: beside the title for one record, beside the names in a legend for several."""
    info = METRICS[metric]
    values = {
        look.label: info.format(record.metrics[metric].mean)
        for record, look in zip(records, looks, strict=True)
        if metric in record.metrics
    }
    if len(records) == 1:
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

    draw: Callable[[Axes, Sequence[ScoreRecord], Sequence[_Look]], None]
    there: Callable[[Sequence[ScoreRecord]], bool]
    lacks: str


def _parsed(records: Sequence[ScoreRecord]) -> bool:
    return any(r.forecasts.n_parsed for r in records)


#: Kind of plot -> how to draw it.
KINDS: Final[dict[str, _Panel]] = {
    "recovery": _Panel(_recovery, lambda rs: all(r.recovery for r in rs), "discovery pairs have no budgets"),
    "precision-recall": _Panel(
        _precision_recall, lambda rs: any(c.precision for r in rs for c in r.discovery), "it is for discovery pairs"
    ),
    "reliability": _Panel(_reliability, _parsed, "no forecast was parsed"),
    "error": _Panel(_error, _parsed, "no forecast was parsed"),
    "confusion": _Panel(_confusion, _parsed, "no forecast was parsed"),
    "risk": _Panel(_risk, lambda rs: any(r.risk for r in rs), "no forecast was parsed"),
    "groups": _Panel(_groups, lambda rs: all(r.groups for r in rs), "there are no groups"),
}
