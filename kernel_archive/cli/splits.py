"""``build-eval``, ``build-discovery`` and ``build-train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kernel_archive.cli import common
from kernel_archive.errors import counted
from kernel_archive.splits import SPLIT_TABLES, SPLITS

if TYPE_CHECKING:
    from kernel_archive.archive.manifest import SplitFacts

#: Name this many problems of which nothing is asked.
_SHOWN_PROBLEMS: Final = 5

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
    common.changed_archive_option,
    common.json_option,
)


def _split_name_option(command: str) -> Callable[[Any], Any]:
    """Let the user choose among the splits that a command makes."""
    names = [split.name for split in SPLITS.values() if split.command.split()[0] == command]
    choice = common.Choice(names)
    return common.option("--split", "name", type=choice, default=names[0], help="Which one.")


def _make_and_show_split(table: str, *, archive_path: str | None, **options: Any) -> None:
    """Make one split of an archive, which is built first in an empty default place; show it."""
    from kernel_archive.archive.open import open_archive
    from kernel_archive.pipeline import ensure_archive, remake_split
    from kernel_archive.selection.own_archive import problems_left_out
    from kernel_archive.storage import content_path

    with common.progress("Reading") as advance:
        directory = ensure_archive(archive_path, notify=common.print_remark, advance=advance)
    split = remake_split(directory, table, **options).facts
    archive = open_archive(directory)
    left_out = problems_left_out(archive) if table == "eval" else []

    def print_result() -> None:
        _show_cells(split, is_outcome=SPLIT_TABLES[table].asks_outcome)
        show_left_out(split, left_out)
        common.print_facts({name: split.facts.get(name) for name in ("kinds", "cutoffs")})
        if differ := split.facts.get("label_differences"):
            common.print_text(
                f"The two bin schemes label {differ:,} of {split.rows:,} differently."
            )
        _show_warnings(split)
        common.print_text(
            f"{directory}: {table} ({split.name}), {counted(split.rows, 'row')}, "
            f"{split.logical_digest}"
        )

    # The definition of eval follows an archive's own recipe; the others are the shipped ones.
    is_own = archive.manifest.eval_rules is not None and table != "eval"
    if is_own and not split.rows and not options["definition"] and "tasks" in split.parameters:
        definition = common.argument(str(content_path("splits") / f"{table}.toml"))
        common.print_remark(
            f"{table} has no row: its definition asks about programs of the shipped archive. Copy "
            f"{definition}, write your own in it, and give it with --definition"
        )
    result: dict[str, Any] = {"path": str(directory), "table": table}
    result |= {"problems_left_out": left_out} if left_out else {}
    common.emit(result | {"split": split}, print_result)


def show_left_out(split: SplitFacts, problems: Sequence[Mapping[str, Any]]) -> None:
    """Print how many kernels a split does not ask about, by reason, and the first problems."""
    excluded = {name: n for name, n in split.facts.get("excluded", {}).items() if n}
    if excluded:
        counts = (f"{n:,} {name.replace('_', ' ')}" for name, n in excluded.items())
        common.print_text(f"Left out: {', '.join(counts)}. What each means: docs/splits.md.")
    for row in problems[:_SHOWN_PROBLEMS]:
        rows = counted(row["rows"], "row")
        common.print_text(f"Nothing is asked about {row['problem']} ({rows}): {row['reason']}.")
    if len(problems) > _SHOWN_PROBLEMS:
        common.print_text(
            f"Nor about {counted(len(problems) - _SHOWN_PROBLEMS, 'more problem')} (--json)."
        )
    if not split.rows:
        common.print_text(
            'Only kernels of sources with role = "held_out" are asked about. What else leaves them '
            "out, and what to change: docs/splits.md."
        )


def _show_cells(split: SplitFacts, *, is_outcome: bool) -> None:
    """Print rows per problem and bin or outcome; cells with fewer rows than the cap are marked."""
    columns, title = [*"12345678"], f"bin, labels of scheme {split.scheme}"
    cells: dict[str, list[int]] = split.facts["cells"]
    if is_outcome:  # what fails is in the first bin, what passes in the last
        columns, title = ["fail", "pass"], "outcome"
        cells = {problem: [counts[0], counts[-1]] for problem, counts in cells.items()}
    cap = split.parameters.get("cap") or 0
    numbers = [n for counts in cells.values() for n in counts]
    short = sum(n < cap for n in numbers)
    note = f"* short: {short} of {len(numbers)} cells have fewer than {cap} kernels to choose from"
    rows = [
        (problem, *(f"{n}*" if n < cap else n for n in counts), sum(counts))
        for problem, counts in cells.items()
    ]
    totals = [sum(column) for column in zip(*cells.values(), strict=True)] or [0] * len(columns)
    rows.append(("all", *totals, sum(totals)))
    title, notes = f"Rows per problem and {title}", [note] if short else []
    common.print_table(["problem", *columns, "all"], rows, title=title, notes=notes)


def _show_warnings(split: SplitFacts) -> None:
    """Say what a reader of scores on the split must know."""
    if split.name != "canonical":
        common.print_remark(
            f"This is the variant {split.name!r}, not the canonical split: its scores compare "
            "with no others. Without options the command makes the canonical one again."
        )


@click.command("build-eval")
@_split_name_option("build-eval")
@common.option(
    "--cap", type=common.FROM_1, help="Kernels per task and bin.  [default: the definition's]"
)
@common.option(
    "--gpu", help="GPU of the split.  [default: the definition's, else the only one there is]"
)
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
    _make_and_show_split(SPLITS[name].table, **options)
    if withhold is not None:
        from kernel_archive.archive.open import default_directory, open_archive
        from kernel_archive.pipeline import withhold_labels

        directory = options["archive_path"] or default_directory()
        withhold_labels(directory, withhold)
        report = open_archive(directory).manifest.reports["withheld"]
        names, emptied = (", ".join(report[key]) for key in ("splits", "emptied"))
        way_out = "To score those, build the archive again from its logs."
        common.print_remark(
            f"Labels of {names}: {withhold}. Keep that folder out of what you publish. What else "
            "their searches ran is gone"
            + (f", which empties {emptied}. {way_out}" if emptied else ".")
        )


@click.command("build-discovery")
@_split_name_option("build-discovery")
@_split_options
def build_discovery(name: str, **options: Any) -> None:
    """Make the discovery pairs: edges of search trees, g = speedup(child) / speedup(parent)."""
    _make_and_show_split(SPLITS[name].table, **options)


@click.command("build-train")
@_split_options
def build_train(**options: Any) -> None:
    """Make the training pairs: reference to candidate, parent to child, sampled pairs of a task."""
    _make_and_show_split(SPLITS["train"].table, **options)
