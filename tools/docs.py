"""Write the generated lists into the pages, and check pages against the code.

    python tools/docs.py            # write every generated list anew
    python tools/docs.py --check    # say which page no longer agrees with the code, and exit with 1

A list stands between two comments, so that a code host shows it as it is::

    <!-- generated: NAME -->
    ...
    <!-- end -->

or, where it is a single figure, inside a line.

:data:`PARTS` says what makes each NAME: the registry of metrics, the data contract, the structures
of recipes and splits, the readers, the baselines, the commands, the public names, and the scores of
the board's entries.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
import numpy as np

import kernel_archive
from kernel_archive import _PUBLIC, cli
from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.recipe import (
    About,
    EvaluationRules,
    Exclude,
    Recipe,
    Source,
    key_meanings,
)
from kernel_archive.archive.recipe_files import Reading
from kernel_archive.baselines.registry import BASELINES
from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES, representatives
from kernel_archive.gpus import GpuFacts
from kernel_archive.readers import READERS
from kernel_archive.readers.sql_doubts import COLUMNS
from kernel_archive.schema import TABLES
from kernel_archive.scoring import METRICS, Forecasts, Split, read_record, score
from kernel_archive.scoring.cues import CUES, EDIT_CUES, LAUNCH_CUES
from kernel_archive.scoring.split import RowFacts
from kernel_archive.selection import definitions
from kernel_archive.selection.definitions import (
    CloseDefinition,
    Definition,
    DiscoveryDefinition,
    EvalDefinition,
    TrainDefinition,
)
from kernel_archive.splits import SPLITS
from kernel_archive.toml_files import toml_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kernel_archive.scoring import Score

__all__ = ["PAGES", "PARTS", "fill", "main"]

ROOT: Final = Path(__file__).parent.parent
#: Pages that may hold generated lists.
PAGES: Final = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

#: The worked example of the evaluation metrics, four candidates of one task: S, and a forecast
#: as bin -> probability.
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
#: The worked example of the metrics of outcomes: whether a program passes, and its chance to.
CHANCES: Final = ((0, 0.6), (1, 0.3), (1, 0.8), (1, 1.0))
#: What their shortcuts go by: the parents' speedups, and whether the language changes.
PARENTS: Final = (0.9, 0.5, 1.0, 2.0)
CHANGED: Final = (False, False, True, False)
#: Metric -> its arithmetic on the example, in words; the figure behind it is computed.
WORKED: Final[dict[str, str]] = tomllib.loads(
    (ROOT / "tools" / "worked.toml").read_text(encoding="utf-8")
)

_ROW_FACTS: Final = RowFacts(
    languages=("triton",) * len(EDGES),
    spreads=np.ones(len(EDGES)),
    cues={"parent_speedup": -np.array(PARENTS), "language_change": np.array(CHANGED, dtype=float)},
)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    lines += [
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows
    ]
    return "\n".join(lines)


def _record(split: str, rows: Sequence[tuple[float, dict[int, float]]]) -> Score:
    target = Split.from_arrays(
        row_ids=[f"row {i}" for i in range(1, len(rows) + 1)],
        tasks=["a task"] * len(rows),
        groups=["all"] * len(rows),
        speedups=[s for s, _ in rows],
        split=split,
        row_facts=_ROW_FACTS if split == "discovery" else RowFacts.plain(len(rows)),
    )
    probabilities = [[p.get(b, 0.0) for b in range(1, N_BINS + 1)] for _, p in rows]
    return score(target, Forecasts.from_arrays(target, probabilities), draws=0)


def _bins() -> str:
    m = {name: representatives([], [], name) for name in SCHEMES}
    ends = {1: "mean S of its rows", N_BINS: "mean S of its rows"}
    rows = [
        (
            b,
            BIN_NAMES[b - 1],
            *(SCHEMES[name].describe(b) for name in SCHEMES),
            ends.get(b, f"{m['paper'][b - 1]:.6f}"),
        )
        for b in range(1, N_BINS + 1)
    ]
    return _table(("bin", "name", *(f"`{name}`" for name in SCHEMES), "m_b (`paper`)"), rows)


def _metrics() -> str:
    examples = {
        "eval": _record("eval", EXAMPLE),
        "close": _record("eval_close", EXAMPLE),
        "validity": _record("validity", [(passes, {1: 1 - p, 8: p}) for passes, p in CHANCES]),
        "discovery": _record("discovery", EDGES),
    }
    titles = {"eval": "Evaluation splits"} | {
        spec.kind: spec.title for spec in reversed(SPLITS.values()) if spec.kind != "eval"
    }
    parts = []
    for metric in METRICS.values():
        kind = metric.kinds[0]
        value = examples[kind].metrics[metric.name].mean
        figure = "undefined" if value is None else metric.format(value)
        where = ", ".join(titles[k].lower() for k in metric.kinds)
        better = {
            "higher": "Higher is better.",
            "lower": "Lower is better.",
            "neither": "Neither way is better.",
        }
        headline = " A headline metric." if metric.headline else ""
        worked = WORKED.get(metric.name, "")
        parts.append(
            f"### {metric.title}\n\n`{metric.name}`: {metric.meaning}. "
            f"{better[metric.better]}{headline} Of: {where}.\n\n"
            f"Formula: `{metric.formula}`.\n\nExample: {worked} **{figure}**."
        )
    return "\n\n".join(parts)


def _edges() -> str:
    rows = (
        (
            f"row {i}",
            f"{g:g}",
            ", ".join(f"bin {b}: {p:g}" for b, p in bins.items()),
            f"{s:g}",
            "yes" if c else "no",
        )
        for i, ((g, bins), s, c) in enumerate(zip(EDGES, PARENTS, CHANGED, strict=True), 1)
    )
    return _table(("", "g", "forecast", "parent's speedup", "another language"), rows)


def _controls() -> str:
    rows = [
        ("`uniform`", "even odds (an eighth for every bin): the unedited template"),
        ("`frequencies`", "the split's bin frequencies for every row: a random order"),
        *((f"`{name}`", title) for name, (title, _) in CUES.items()),
        *((f"`{name}`", title) for name, title in LAUNCH_CUES.items()),
        *((f"`{name}`", f"{title} (discovery pairs)") for name, title in EDIT_CUES.items()),
        ("`goal`", "bound: the range of speedups that the author was told to land in"),
        ("`oracle_bins`", "bound: certain of every true bin"),
        ("`oracle_speedups`", "bound: the same, and states every measured speedup"),
    ]
    return _table(("name", "goes by"), rows)


def _example(rows: Sequence[tuple[float, dict[int, float]]], name: str) -> str:
    target = ((f"row {i}", s, p) for i, (s, p) in enumerate(rows, 1))
    shown = [
        (row, f"{s:g}", ", ".join(f"bin {b}: {p:g}" for b, p in bins.items()))
        for row, s, bins in target
    ]
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
            f"## `{table.name}`\n\n{table.title} ({made}). "
            f"Splits: {', '.join(table.splits)}; key: `{table.key}`.\n\n"
            + _table(("column", "type", "null", "meaning"), rows)
        )
    return "\n\n".join(parts)


def _keys(kind: type[msgspec.Struct], said: dict[str, str]) -> str:
    rows = []
    for f in msgspec.structs.fields(kind):
        default = "" if f.default in (msgspec.NODEFAULT, None) else f"`{f.default!r}`"
        if f.encode_name in said:
            shown = "required" if f.required else default
            rows.append((f"`{f.encode_name}`", said[f.encode_name], shown))
    return _table(("key", "meaning", "default"), rows)


def _definition(kind: type[Definition], *tables: str) -> str:
    """List the keys of a definition; those that another one has, too, are explained there."""
    meanings = toml_beside(definitions.__file__, "keys.toml")
    said = {key: text for table in tables for key, text in meanings[table].items()}
    shared = [f"`{key}`" for key in kind.__struct_encode_fields__ if key not in said]
    as_above = f"Keys as in `eval`: {', '.join(shared)}. Further keys:\n\n" if shared else ""
    return as_above + _keys(kind, said)


def _recipe_keys(kind: type[msgspec.Struct], table: str) -> str:
    return _keys(kind, key_meanings()[table])


def _readers() -> str:
    rows = [(f"`{r.name}`", r.title, r.expects) for r in READERS.values()]
    return _table(("format", "what it is", "what `path` must match"), rows)


def _baselines() -> str:
    return _table(
        ("name", "what it does", "learns"),
        [(f"`{name}`", b.title, "yes" if b.learns else "") for name, b in BASELINES.items()],
    )


def _flags() -> str:
    return _table(
        ("flag", "rule", "why it matters"), [(f"`{f.name}`", f.rule, f.why) for f in FLAGS]
    )


def _n_kernels() -> str:
    """Count the kernels of the newest release, as ``make freeze`` did."""
    paths = (ROOT / "splits/frozen").glob("*/kernels.txt")
    newest = max(paths, key=lambda path: [int(n) for n in path.parent.name.split(".")])
    return f"{int(newest.read_text(encoding='utf-8')):,}"


def _splits() -> str:
    rows = [
        (
            f"`{s.name}`",
            f"`{s.table}`",
            s.rows,
            s.ratio,
            METRICS[s.lead].title if s.kind != "train" else "",
            f"`kernel-archive {s.command}`",
        )
        for s in SPLITS.values()
    ]
    columns = ("split", "table", "its rows are", "what is forecast", "headline figure", "made by")
    return _table(columns, rows)


#: Kind of split -> what a table of results shows beside the headline figure.
_RESULTS: Final = {
    "eval": ("pair_accuracy", "close_pairs", "crps_skill", "speedup_recovered"),
    "validity": ("crps_skill", "accuracy", "average_precision_failures"),
    "discovery": ("crps_skill", "average_precision_1.25", "lift_1.25"),
}


def _results(split: str) -> str:
    """Show the board's entries of a split, and its controls and bounds, best first."""
    spec = SPLITS[split]
    names = list(dict.fromkeys([spec.lead, *_RESULTS[spec.kind]]))
    paths = sorted(ROOT.glob("leaderboard/submissions/*/score.json"))
    records = [r for r in map(read_record, paths) if r.split.table == spec.table]
    best = records[0].best_controls[spec.lead]
    shown = {best: f"best cue, `{best}`", "uniform": "uniform", "dry_run": "zero: `dry-run`"}
    shown |= {"frequencies": "bin frequencies", "oracle_bins": "bound: every range known"}
    shown |= {"oracle_speedups": "bound: every speedup known"}
    if spec.asks_outcome:
        shown |= {"frequencies": "zero: the base rate", "oracle_bins": "bound: every outcome known"}
    values: dict[tuple[str, ...], float] = {}  # cells of a row -> what it is ordered by
    for record in records:
        cells = [record.forecasts.name]
        for name in names:
            figure, info = record.metrics[name], METRICS[name]
            span = f" ({figure.low:z.{info.decimals}f} to {figure.high:z.{info.decimals}f})"
            weak = " *" if record.is_weak(name) else ""
            cells.append(f"{info.format(figure.mean)}{span}{weak}")
        values[tuple(cells)] = record.metrics[spec.lead].mean or 0.0
    for control in records[0].controls:
        figures = [METRICS[name].format(control.metrics.get(name)) for name in names]
        is_new = figures not in [[*cells[1:]] for cells in values]
        if control.name in shown and is_new:  # knowing every speedup may say no more
            values[shown[control.name], *figures] = control.metrics[spec.lead] or 0.0
    rows = sorted(values, key=lambda cells: METRICS[spec.lead].sign * values[cells])
    titles = [METRICS[metric].title for metric in names]
    return _table(("forecasts", *titles), rows)


def _signature(value: Any) -> str:
    text = str(inspect.signature(value))
    return re.sub(r"(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", text.replace("'", ""))


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _api() -> str:
    parts = []
    for name in sorted(_PUBLIC, key=str.lower):
        value = getattr(kernel_archive, name)
        parts.append(f"## `kernel_archive.{name}`\n\n{_summary(value)}")
        if inspect.isfunction(value):
            parts.append(f"```python\n{name}{_signature(value)}\n```")
            continue
        members = [
            (f"`{key}`", _summary(getattr(value, key)))
            for key in dir(value)
            if not key.startswith("_")
            and (
                inspect.isfunction(getattr(value, key)) or isinstance(getattr(value, key), property)
            )
            and (inspect.isclass(value) or key in getattr(value, "__all__", (key,)))
        ]
        if members and not issubclass(value if inspect.isclass(value) else object, Exception):
            parts.append(_table(("name", "meaning"), members))
    return "\n\n".join(parts)


def _commands() -> str:
    """Print the help of every command, as ``kernel-archive COMMAND --help`` does."""
    parts = []

    def add(command: click.Command, path: str, parent: click.Context | None) -> None:
        context = click.Context(
            command,
            info_name=path.rsplit(" ", 1)[-1],
            parent=parent,
            max_content_width=98,
            help_option_names=["-h", "--help"],
        )
        context.terminal_width = 98
        if not isinstance(command, click.Group) or parent is None:
            text = command.get_help(context)
            parts.append(f"## `{path}`\n\n```text\n{text}\n```")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    add(inner, f"{path} {name}", context)

    add(cli.cli, "kernel-archive", None)
    return "\n\n".join(parts)


def _message(node: ast.expr | None) -> str | None:
    """Read a message from the source text; what is filled in becomes an ellipsis."""
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
        return "".join(str(p) for p in parts)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _reported(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Find the codes and messages that a module reports."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        named = {k.arg: k.value for k in node.keywords}
        code, message = named.get("code"), named.get("message")
        function = ast.unparse(node.func).rsplit(".", 1)[-1]
        if code is None and len(node.args) >= 2 and not function[0].isupper():
            code, *rest = node.args
            message = next((a for a in rest if re.match("[a-z…].* ", _message(a) or "")), None)
        text = _message(code)
        if text is not None and (function[0].isupper() or "code" in named or message is not None):
            yield text, _message(message)


def _codes() -> str:
    """List the codes of findings with a message of each, from the source text."""
    package = ROOT / "kernel_archive"
    messages: dict[str, str] = {}
    places: dict[str, str] = {}
    others = {*READERS, *BASELINES}  # names of the same form
    for path in sorted(package.rglob("*.py")):
        if "_content" in path.parts:
            continue
        for code, message in _reported(ast.parse(path.read_text(encoding="utf-8"))):
            if not re.fullmatch(r"[a-z]+(-[a-z]+)+|unreadable", code) or code in others:
                continue
            places.setdefault(code, str(path.relative_to(package)))
            if message and code not in messages:
                messages[code] = message
    for path in sorted(package.rglob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for rule in (*data.get("doubt", ()), *data.get("check", ())):
            says = rule.get("message") or rule["says"].strip("'").removeprefix("format('")
            says = re.sub(r"\{[^}]*\}|\$\w+", "…", says.split("',")[0].replace("''", "'"))
            messages.setdefault(rule["code"], says)
    for code, place in places.items():
        messages.setdefault(code, f"(made in `{place}`)")
    rows = [(f"`{code}`", messages[code].replace("\n", " ")) for code in sorted(messages)]
    return _table(("code", "a message of it"), rows)


#: Name in a page -> what makes the part.
PARTS: Final[dict[str, Callable[[], str]]] = {
    "api": _api,
    "baselines": _baselines,
    "bins": _bins,
    "definition of eval_close": lambda: _definition(CloseDefinition, "close"),
    "definition of discovery": lambda: _definition(DiscoveryDefinition, "discovery"),
    "definition of eval": lambda: _definition(EvalDefinition, "every", "candidates", "eval"),
    "definition of train": lambda: _definition(TrainDefinition, "train"),
    "controls": _controls,
    "example of discovery": _edges,
    "example of eval": lambda: _example(EXAMPLE, "S"),
    "flags": _flags,
    "metrics": _metrics,
    "number of kernels": _n_kernels,
    "readers": _readers,
    "commands": _commands,
    "findings": _codes,
    "columns": lambda: _table(
        ("our column", "meaning"), [(f"`{k}`", v) for k, (_, v) in COLUMNS.items()]
    ),
    "recipe": lambda: _recipe_keys(Recipe, "recipe"),
    "recipe archive": lambda: _recipe_keys(About, "archive"),
    "recipe eval": lambda: _recipe_keys(EvaluationRules, "eval"),
    "recipe gpu": lambda: _recipe_keys(GpuFacts, "gpu"),
    "recipe exclude": lambda: _recipe_keys(Exclude, "exclude"),
    "recipe reading": lambda: _recipe_keys(Reading, "reading"),
    "recipe source": lambda: _recipe_keys(Source, "source"),
    "results of eval_search": lambda: _results("eval_search"),
    "results of discovery": lambda: _results("discovery"),
    "results of discovery_search": lambda: _results("discovery_search"),
    "results of validity": lambda: _results("validity"),
    "splits": _splits,
    "tables": _tables,
}


_LIST: Final = re.compile(
    r"^(<!-- generated: (?P<name>[^>]+) -->\n).*?^(?=<!-- end -->$)", re.MULTILINE | re.DOTALL
)
_FIGURE: Final = re.compile(r"(<!-- generated: (?P<name>[^>\n]+) -->)[^\n]+?(?=<!-- end -->)")


def fill(markdown: str) -> str:
    """Return a page with its generated lists made anew.

    Raises:
        KeyError: a list has a name that nothing makes.
    """

    def made(name: str) -> str:
        if name not in PARTS:
            raise KeyError(f"no generated list {name!r}; there are: {', '.join(PARTS)}")
        return PARTS[name]()

    markdown = _LIST.sub(lambda match: f"{match[1]}\n{made(match['name'])}\n\n", markdown)
    return _FIGURE.sub(lambda match: match[1] + made(match["name"]), markdown)


def main(arguments: list[str]) -> int:
    """Write or check the pages; return the exit status."""
    outdated = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            outdated.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(filled, encoding="utf-8")
    for name in outdated:
        done = "outdated; run: python tools/docs.py" if "--check" in arguments else "written"
        print(f"{name}: {done}")
    return int(bool(outdated) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
