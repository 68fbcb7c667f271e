"""``build-eval``, ``build-discovery`` and ``build-train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kernel_archive.cli import common
from kernel_archive.errors import counted
from kernel_archive.splits import EVALUATIONS, SPLITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernel_archive.archive.manifest import SplitFacts

#: Name this many problems of which nothing is asked.
_PROBLEMS: Final = 5

#: The options of every command that makes a split.
_split_options = common.options(
    common.option(
        "--bins",
        "scheme",
        type=common.SCHEME,
        help="Bin scheme of the labels.  [default: the definition's]",
    ),
    common.option(
        "--definition", type=common.FILE, help="Definition of your own, as splits/*.toml."
    ),
    common.archive_option,
    common.json_option,
)


def _which(names: list[str]) -> Callable[[Any], Any]:
    choice = common.Choice(names)
    return common.option("--split", "name", type=choice, default=names[0], help="Which one.")


def _make(table: str, *, archive_path: str | None, **options: Any) -> None:
    """Make one split of an archive, which is built first in an empty default place; show it."""
    from kernel_archive.archive.open import open_archive
    from kernel_archive.pipeline import ensure_archive, remake_split
    from kernel_archive.selection.evaluation import problems_left_out

    with common.progress("Reading") as advance:
        directory = ensure_archive(archive_path, notify=common.say, advance=advance)
    remade = remake_split(directory, table, **options)
    split, changed = remade.facts, remade.changed
    left_out = problems_left_out(open_archive(directory)) if table == "eval" else []

    def text() -> None:
        _show_cells(split)
        show_left_out(split, left_out)
        common.print_facts({name: split.facts.get(name) for name in ("kinds", "cutoffs")})
        if differ := split.facts.get("label_differences"):
            common.tell(f"The two bin schemes label {differ:,} of {split.rows:,} differently.")
        _show_warnings(split, kept=remade.kept)
        unchanged = "" if changed else ", as it was"
        common.tell(
            f"{directory}: {table} ({split.name}), {counted(split.rows, 'row')}, "
            f"{split.logical_digest}{unchanged}"
        )

    result = {"path": str(directory), "table": table, "changed": changed}
    result |= {"problems_left_out": left_out} if left_out else {}
    common.emit(result | {"published_and_kept": remade.kept, "split": split}, text)


def show_left_out(split: SplitFacts, problems: Sequence[Mapping[str, Any]]) -> None:
    """Print how many kernels a split does not ask about, by reason, and the first problems."""
    excluded = {name: n for name, n in split.facts.get("excluded", {}).items() if n}
    if excluded:
        counts = (f"{n:,} {name.replace('_', ' ')}" for name, n in excluded.items())
        common.tell(f"Left out: {', '.join(counts)}.")
    for row in problems[:_PROBLEMS]:
        rows = counted(row["rows"], "row")
        common.tell(f"Nothing is asked about {row['problem']} ({rows}): {row['reason']}.")
    if len(problems) > _PROBLEMS:
        common.tell(f"Nor about {counted(len(problems) - _PROBLEMS, 'more problem')} (--json).")
    if not split.rows:
        common.tell(
            'Only kernels of sources with role = "held_out" are asked about. What else leaves them '
            "out, and what to change: docs/splits.md."
        )


def _show_cells(split: SplitFacts) -> None:
    """Print rows per problem and bin; cells with fewer kernels than the split's cap are marked."""
    cells: dict[str, list[int]] = split.facts["cells"]
    cap = (split.parameters.get("cap") or 0) if split.origin == "selected" else 0
    short = sum(n < cap for counts in cells.values() for n in counts)
    n_cells, notes = sum(map(len, cells.values())), []
    if short:
        notes = [
            f"* short: {short} of {n_cells} cells have fewer than {cap} kernels to choose from"
        ]
    rows = [
        (problem, *(f"{n}*" if n < cap else n for n in counts), sum(counts))
        for problem, counts in cells.items()
    ]
    totals = [sum(column) for column in zip(*cells.values(), strict=True)] or [0] * 8
    rows.append(("all", *totals, sum(totals)))
    title = f"Rows per problem and bin, labels of scheme {split.scheme}"
    common.print_table(["problem", *"12345678", "all"], rows, title=title, notes=notes)


def _show_warnings(split: SplitFacts, *, kept: bool) -> None:
    """Say what a reader of scores on the split must know."""
    if kept:
        common.say("The split was published by others and is kept as it is.")
    elif split.name != "canonical":
        common.say(
            f"This is the variant {split.name!r}, not the canonical split: its scores compare "
            "with no others. Without options the command makes the canonical one again."
        )
    for task, references in split.facts.get("several_references", {}).items():
        common.say(
            f"Warning: the rows of {task} were timed against {len(references)} references: their "
            "speedups have different denominators. Give the searches of one reference another role."
        )


@click.command("build-eval")
@_which([*EVALUATIONS, "eval_close"])
@common.option(
    "--cap", type=common.FROM_1, help="Kernels per task and bin.  [default: the definition's]"
)
@common.option("--gpu", help="GPU of the split.  [default: A100-80GB, else the only one there is]")
@common.option(
    "--withhold",
    type=common.FOLDER,
    help="New folder to move the labels of all evaluation splits to.",
)
@_split_options
def build_eval(name: str, withhold: str | None, **options: Any) -> None:
    """Make an evaluation split: held-out kernels of one GPU, at most CAP per task and bin.

    Without options this is the canonical split, which `build` makes too. Without --archive the
    embedded archive is built first where the default directory has none.

    With --withhold the archive keeps the programs of the evaluation rows and nothing that was
    measured of them or of what else their searches ran; the folder holds the labels, for
    kernel-archive score --labels.
    """
    _make(SPLITS[name].table, **options)
    if withhold is not None:
        from kernel_archive.archive.open import default_directory
        from kernel_archive.pipeline import withhold_labels

        files = withhold_labels(options["archive_path"] or default_directory(), withhold)
        names = ", ".join(path.name for path in files)
        common.say(
            f"Labels withheld in {withhold}: {names}. Keep that folder out of what you publish."
        )


@click.command("build-discovery")
@_which([s.name for s in SPLITS.values() if s.kind == "discovery"])
@_split_options
def build_discovery(name: str, **options: Any) -> None:
    """Make the discovery pairs: edges of search trees, g = speedup(child) / speedup(parent)."""
    _make(SPLITS[name].table, **options)


@click.command("build-train")
@common.option(
    "--pairs", "pairs_per_task", type=common.FROM_0, help="Pairs of kind 'pair'.  [default: 500]"
)
@common.option("--seed", type=common.FROM_0, help="Seed of their sample.  [default: 0]")
@_split_options
def build_train(**options: Any) -> None:
    """Make the training pairs: reference to candidate, parent to child, sampled pairs of a task."""
    _make("train_pairs", **options)
