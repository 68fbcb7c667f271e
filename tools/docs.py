"""The generated parts of the documentation: what code states already is not written a second time.

MkDocs loads this file as a hook (``mkdocs.yml``). A line ``[[generated: NAME, from ...]]`` in a page is replaced by what
:data:`PARTS` makes under that name; what follows the name is for who reads the page as a file. Parts are made from the registry of metrics, the data contract, the recipe's and the splits'
structures, the readers, the baselines, and the public names of the package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive import _PUBLIC
from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.readings import Reading
from kernel_archive.archive.recipe import About, Evaluation, Exclude, Recipe, Source, attributes
from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES, representatives
from kernel_archive.errors import printable
from kernel_archive.forecasters import BASELINES
from kernel_archive.gpus import GpuFacts
from kernel_archive.readers import READERS
from kernel_archive.readers.mapping import COLUMNS, From, Join
from kernel_archive.schema import TABLES
from kernel_archive.scoring import METRICS, Forecasts, Target, score
from kernel_archive.scoring.controls import CUES, EDIT_CUES
from kernel_archive.scoring.target import Surface
from kernel_archive.selection.definitions import DiscoveryDefinition, EvalDefinition, TrainDefinition
from kernel_archive.splits import SPLITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kernel_archive.scoring import ScoreRecord

__all__ = ["PARTS", "fill", "on_page_markdown"]

#: The worked example of the evaluation metrics: S, and a forecast as bin -> probability; four candidates of one task.
EXAMPLE: Final = (
    (0.4, {2: 0.6, 3: 0.4}),
    (0.9, {4: 0.3, 5: 0.7}),
    (1.3, {5: 0.2, 6: 0.8}),
    (3.0, {5: 0.5, 6: 0.4, 7: 0.1}),
)
#: The worked example of the discovery metrics: g of four parent-child pairs and their forecasts.
EDGES: Final = (
    (1.1, {5: 1.0}),
    (1.6, {6: 0.5, 7: 0.5}),
    (2.5, {4: 0.2, 6: 0.8}),
    (0.8, {4: 0.9, 7: 0.1}),
)
#: What their shortcuts go by: the parents' speedups, and whether the language changes.
PARENTS: Final = (0.9, 0.5, 1.0, 2.0)
CHANGED: Final = (False, False, True, False)
#: Metric -> its arithmetic on the example, in words; the figure behind it is computed when the page is made.
WORKED: Final = {
    "speedup_recovered": "k is 1, 1, 1, 1 and 2 of the 4 candidates. The largest expected speedup is the third row's, with "
    "S = 1.3 of at most 3.0: 43.33 %. With two candidates the fourth row is measured, too: 100 %. The mean over the five "
    "budgets is",
    "ece": "the confidences 0.6, 0.7, 0.8 and 0.5 fall into four buckets of one row each. Only the first row is a hit: "
    "1/4 (|1 - 0.6| + |0 - 0.7| + |0 - 0.8| + |0 - 0.5|) =",
    "forecast_error": "1/4 (|0.3536 - 0.4| + |1.1892 - 0.9| + |1.6818 - 1.3| + |1.1892 - 3.0|) =",
    "crps_skill": "the best control gives every row the bin frequencies, 1/4 for the bins 2, 4, 5 and 7, which has a CRPS of "
    "1/7. The CRPS is 0.5875/7 (below): 1 - 0.5875 =",
    "pair_accuracy": "the expected speedups 0.45, 1.08, 1.58 and 1.55 put one of the six pairs in the wrong order, that of 1.3 "
    "and 3.0: 5/6 =",
    "pair_accuracy_1.4": "no two candidates are so close:",
    "pair_accuracy_2": "0.9 and 1.3 differ by 1.44x, and their order is right:",
    "pair_accuracy_4": "four pairs differ by 2.25x, 3.25x, 3.33x and 2.31x; the last one, 1.3 and 3.0, is wrong: 3/4 =",
    "pair_accuracy_more": "0.4 and 3.0 differ by 7.5x, and their order is right:",
    "rank_correlation": "the ranks 1, 2, 4, 3 against 1, 2, 3, 4: 1 - 6 * (1 + 1) / (4 * 15) =",
    "selection_skill": "54.67 % are recovered. In random order one measurement finds 46.67 % on average and two 69.44 %, over the "
    "five budgets 51.22 %: (54.67 - 51.22) / (100 - 51.22) =",
    **{
        f"speedup_recovered_at_{c}": "one of four candidates is measured, with 1.3 of at most 3.0:"
        for c in (1, 5, 10, 25)
    },
    "speedup_recovered_at_50": "two of four candidates are measured, the best one among them:",
    "speedup_recovered_pooled": "with one task the same as speedup recovered:",
    "recovery_area": "43.33 % up to a budget of 25 %, 100 % from 26 % on: (24 * 43.33 + 71.67 + 74 * 100) / 99 =",
    "accuracy": "the first row alone is a hit:",
    "within_one": "bins 2, 5, 6 and 5 are predicted for 2, 4, 5 and 7: three rows are at most one bin off:",
    "brier": "1/2 of (0.4² + 0.4²), (0.7² + 0.7²), (0.8² + 0.8²) and (0.5² + 0.4² + 0.9²); the mean is",
    "crps": "1/7 of 0.4², 0.7², 0.8² and (0.5² + 0.9²), since each F_k that is neither 0 nor 1 as it should be counts; the "
    "mean is",
    "nll": "1/4 (-ln 0.6 - ln 0.3 - ln 0.2 - ln 0.1) =",
    "entropy": "1/4 (0.6730 + 0.6109 + 0.5004 + 0.9433) =",
    "ece_adaptive": "each row fills two and a half of the ten buckets: 1/10 (0.5 + 0.5 + 0.05 + 0.4 + 0.4 + 0.7 + 0.7 + 0.75 + "
    "0.8 + 0.8) =",
    "confidence_monotonicity": "from the least to the greatest confidence the errors are 1.8108, 0.0464, 0.2892 and 0.3818: "
    "they rise by 0.3354 and fall by 1.7644 in all, 0.3354 / 2.0998 =",
    "aurc": "in order of confidence the errors are 0.3818, 0.2892, 0.0464 and 1.8108; the mean of the means of the first "
    "1, 2, 3 and 4 is",
    "aurc_error_rate": "in the same order the rows are wrong, wrong, right, wrong: the mean of 1, 1, 2/3 and 3/4 is",
    "average_precision_1.25": "the scores Pr[g >= 1.25] are 0.356, 1, 0.8 and 0.1; rows 2 and 3 are positive and stand first:",
    "average_precision_1.5": "the scores Pr[g >= 1.5] are 0, 0.915, 0.664 and 0.1; rows 2 and 3 are positive and stand first:",
    "average_precision_2": "the scores Pr[g >= 2] are 0, 0.5, 0 and 0.1; only row 3 is positive. It is found last, in a tie "
    "with row 1, at a precision of 1/4:",
    "lift_1.25": "from the slowest parent up the rows are 2, 1, 3, 4: an average precision of 1/2 + 1/2 * 2/3 = 0.833. The one "
    "change of language, row 3, first, and then the rest in a tie: 1/2 + 1/2 * 2/4 = 0.75. Against the better one: 1 - 0.833 =",
    "lift_1.5": "as at 1.25x:",
    "lift_2": "the change of language finds row 3 at once, with an average precision of 1: 0.25 - 1 =",
    "average_precision_within_1.25": "of the rows 1, 2 and 4, whose language stays, row 2 is positive and has the largest score:",
    "average_precision_within_1.5": "as at 1.25x:",
    "average_precision_within_2": "no positive is left:",
    "lift_within_1.25": "of these rows, row 2 also has the slowest parent: 1 - 1 =",
    "lift_within_1.5": "as at 1.25x:",
    "lift_within_2": "no positive is left:",
}


_SURFACE: Final = Surface(
    languages=("triton",) * len(EDGES),
    spreads=np.ones(len(EDGES)),
    cues={"parent_speedup": -np.array(PARENTS), "language_change": np.array(CHANGED, dtype=float)},
    changed=np.array(CHANGED),
)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    lines += [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _record(split: str, rows: Sequence[tuple[float, dict[int, float]]]) -> ScoreRecord:
    target = Target.from_arrays(
        row_ids=[f"row {i}" for i in range(1, len(rows) + 1)],
        tasks=["a task"] * len(rows),
        groups=["all"] * len(rows),
        speedups=[s for s, _ in rows],
        split=split,
        surface=_SURFACE if split == "discovery" else None,
    )
    probabilities = [[p.get(b, 0.0) for b in range(1, N_BINS + 1)] for _, p in rows]
    return score(target, Forecasts.from_arrays(target, probabilities), draws=0)


def _bins() -> str:
    m = {name: representatives([], [], name) for name in SCHEMES}
    ends = {1: "mean S of its rows", N_BINS: "mean S of its rows"}
    rows = [
        (b, BIN_NAMES[b - 1], *(SCHEMES[name].describe(b) for name in SCHEMES), ends.get(b, f"{m['paper'][b - 1]:.6f}"))
        for b in range(1, N_BINS + 1)
    ]
    return _table(("bin", "name", *(f"`{name}`" for name in SCHEMES), "m_b (`paper`)"), rows)


def _metrics() -> str:
    examples = {"eval": _record("eval", EXAMPLE), "discovery": _record("discovery", EDGES)}
    parts = []
    for metric in METRICS.values():
        kind = metric.kinds[0]
        value = examples[kind].metrics[metric.name].mean
        figure = "undefined" if value is None else metric.format(value)
        where = " and ".join(SPLITS[k].title.lower() for k in metric.kinds)
        better = {"higher": "Higher is better.", "lower": "Lower is better.", "neither": "Neither way is better."}
        headline = " A headline metric." if metric.headline else ""
        worked = WORKED.get(metric.name, "")
        parts.append(
            f"### {metric.title}\n\n`{metric.name}`: {metric.meaning}. {better[metric.better]}{headline} Of: {where}.\n\n"
            f"Formula: `{metric.formula}`.\n\nExample: {worked} **{figure}**."
        )
    return "\n\n".join(parts)


def _edges() -> str:
    rows = (
        (f"row {i}", f"{g:g}", ", ".join(f"bin {b}: {p:g}" for b, p in bins.items()), f"{s:g}", "yes" if c else "no")
        for i, ((g, bins), s, c) in enumerate(zip(EDGES, PARENTS, CHANGED, strict=True), 1)
    )
    return _table(("", "g", "forecast", "parent's speedup", "another language"), rows)


def _controls() -> str:
    rows = [
        ("`uniform`", "an eighth for every bin: the unedited template"),
        ("`frequencies`", "the split's bin frequencies for every row: a random order"),
        *((f"`{name}`", title) for name, (title, _) in CUES.items()),
        *((f"`{name}`", f"{title} (discovery pairs)") for name, title in EDIT_CUES.items()),
        ("`oracle_bins`", "bound: certain of every true bin"),
        ("`oracle_speedups`", "bound: the same, and states every measured speedup"),
    ]
    return _table(("name", "goes by"), rows)


def _example(rows: Sequence[tuple[float, dict[int, float]]], name: str) -> str:
    target = ((f"row {i}", s, p) for i, (s, p) in enumerate(rows, 1))
    shown = [(row, f"{s:g}", ", ".join(f"bin {b}: {p:g}" for b, p in bins.items())) for row, s, bins in target]
    return _table(("", name, "forecast"), shown)


def _tables() -> str:
    parts = []
    for table in TABLES.values():
        made = "made by selection" if table.derived else "measured"
        rows = [
            (
                f"`{c.name}`",
                str(c.type) if len(str(c.type)) < 30 else "list of struct",
                "yes" if c.nullable else "",
                c.doc,
            )
            for c in table.columns
        ]
        parts.append(
            f"## `{table.name}`\n\n{table.title} ({made}). Splits: {', '.join(table.splits)}; key: `{table.key}`.\n\n"
            + _table(("column", "type", "null", "meaning"), rows)
        )
    return "\n\n".join(parts)


def _type_name(annotation: str) -> str:
    return re.sub(r"Annotated\[(.*), Meta.*|msgspec\.[\w.]*", r"\1", annotation).replace("typing.", "")


def _keys(kind: type[msgspec.Struct]) -> str:
    said = attributes(kind)
    rows = []
    for f in msgspec.structs.fields(kind):
        default = "required" if f.required else "" if f.default in (msgspec.NODEFAULT, None) else f"`{f.default!r}`"
        rows.append((f"`{f.encode_name}`", said.get(f.name, ""), default))
    return _table(("key", "meaning", "default"), rows)


def _readers() -> str:
    rows = [(f"`{r.name}`", r.title, r.expects) for r in READERS.values()]
    return _table(("format", "what it is", "what `path` must match"), rows)


def _baselines() -> str:
    return _table(
        ("name", "what it does", "learns"),
        [(f"`{b.name}`", b.title, "yes" if b.learns else "") for b in BASELINES.values()],
    )


def _flags() -> str:
    return _table(("flag", "rule", "why it matters"), [(f"`{f.name}`", f.rule, f.why) for f in FLAGS])


def _splits() -> str:
    rows = [(f"`{s.name}`", f"`{s.table}`", s.rows, s.ratio, f"`kernel-archive {s.command}`") for s in SPLITS.values()]
    return _table(("split", "table", "its rows are", "what is forecast", "made by"), rows)


def _api() -> str:
    parts = []
    for name in sorted(_PUBLIC, key=str.lower):
        module, inner = _PUBLIC[name]
        path = f"{module}.{inner}" if inner else module
        members = "" if inner else "\n    options:\n      members: false"
        parts.append(f"## `kernel_archive.{name}`\n\n::: {path}{members}")
    return "\n\n".join(parts)


#: Name in a page -> what makes the part.
PARTS: Final[dict[str, Callable[[], str]]] = {
    "api": _api,
    "baselines": _baselines,
    "bins": _bins,
    "definition of discovery": lambda: _keys(DiscoveryDefinition),
    "definition of eval": lambda: _keys(EvalDefinition),
    "definition of train": lambda: _keys(TrainDefinition),
    "controls": _controls,
    "example of discovery": _edges,
    "example of eval": lambda: _example(EXAMPLE, "S"),
    "flags": _flags,
    "metrics": _metrics,
    "readers": _readers,
    "columns": lambda: _table(("our column", "meaning"), [(f"`{k}`", v) for k, v in COLUMNS.items()]),
    "columns from": lambda: _keys(From),
    "recipe": lambda: _keys(Recipe),
    "recipe archive": lambda: _keys(About),
    "recipe eval": lambda: _keys(Evaluation),
    "recipe gpu": lambda: _keys(GpuFacts),
    "recipe exclude": lambda: _keys(Exclude),
    "recipe reading": lambda: _keys(Reading),
    "recipe join": lambda: _keys(Join),
    "recipe source": lambda: _keys(Source),
    "splits": _splits,
    "tables": _tables,
}


def fill(markdown: str) -> str:
    """A page with its generated parts.

    Raises:
        KeyError: a part has a name that nothing makes.
    """

    def part(found: re.Match[str]) -> str:
        name = found[1]
        if name not in PARTS:
            raise KeyError(f"no generated part {printable(name)!r}; there are: {', '.join(PARTS)}")
        return PARTS[name]()

    return re.sub(r"^\[\[generated: ([^\],]+)(?:,[^\]]*)?\]\]$", part, markdown, flags=re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs calls for every page."""
    return fill(markdown)
