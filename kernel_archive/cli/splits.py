"""``build-eval``, ``build-discovery`` and ``build-train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli import common
from kernel_archive.splits import EVALUATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.archive.manifest import SplitFacts


#: The options of every command that makes a split.
_split_options = common.options(
    common.option(
        "--bins",
        "scheme",
        type=common.SCHEME,
        help="Bin scheme of the labels.  [default: the definition's]",
    ),
    common.option(
        "--definition",
        type=common.FILE,
        help="Definition of your own, as splits/*.toml.",
    ),
    common.archive_option,
    common.json_option,
)


def _make(
    table: str,
    text: Callable[[SplitFacts], None],
    *,
    archive_path: str | None,
    **how: Any,
) -> None:
    """Make one split of an archive, which is built first in an empty default place; show it."""
    from kernel_archive.pipeline import ensure_archive, remake_split

    with common.progress("Reading") as advance:
        directory = ensure_archive(archive_path, say=common.say, advance=advance)
    made = remake_split(directory, table, **how)
    split, changed = made.facts, made.changed

    def show() -> None:
        text(split)
        show_left_out(split)
        common.tell(
            f"Labels: scheme {split.scheme}; the two bin schemes label "
            f"{split.facts['label_differences']:,} of {split.rows:,} rows differently. "
            f"m_1 = {split.facts['m_1']:.6g}x, m_8 = {split.facts['m_8']:.6g}x."
        )
        if made.kept:
            common.say(f"{table} was published by others and is kept as it is.")
        elif split.name != "canonical":
            common.say(
                f"This is the variant {split.name!r}, not the canonical split: its scores compare "
                "with no others. Without options the command makes the canonical one again."
            )
        unchanged = "" if changed else ", as it was"
        common.tell(
            f"{directory}: {table} ({split.name}), {split.rows:,} rows, "
            f"{split.logical_digest}{unchanged}"
        )

    result = {"path": str(directory), "table": table, "changed": changed}
    result |= {"published_and_kept": made.kept, "split": split}
    common.emit(result, show)


def show_left_out(split: SplitFacts) -> None:
    """Print how many kernels a split does not ask about, by reason."""
    excluded = {name: n for name, n in split.facts.get("excluded", {}).items() if n}
    if excluded:
        counts = (f"{n:,} {name.replace('_', ' ')}" for name, n in excluded.items())
        common.tell(f"Left out: {', '.join(counts)}.")
    if not split.rows:
        common.tell(
            'Only kernels of sources with role = "held_out" are asked about. What else leaves them '
            "out, and what to change: docs/splits.md."
        )


def _cells(split: SplitFacts, title: str, first: str, cap: int | None = None) -> None:
    """Print rows per problem and bin; cells under the cap are marked."""
    cells: dict[str, list[int]] = split.facts["cells"]
    mark = "" if cap is None else " "

    def cell(n: int) -> str:
        return f"{n}*" if cap is not None and n < cap else f"{n}{mark}"

    rows = [(task, *map(cell, counts), sum(counts)) for task, counts in cells.items()]
    totals = [sum(column) for column in zip(*cells.values(), strict=True)] or [0] * 8
    rows.append(("all", *(f"{n}{mark}" for n in totals), sum(totals)))
    short = sum(n < (cap or 0) for counts in cells.values() for n in counts)
    note = (
        f"* short: {short} of {8 * len(cells)} cells have fewer than {cap} kernels to choose from"
    )
    columns = [first, *(f"{b}{mark}" for b in range(1, 9)), "all"]
    common.print_table(columns, rows, title=title, notes=[note] if short else [])


@click.command("build-eval")
@common.option(
    "--split",
    "table",
    type=common.Choice([*EVALUATIONS, "eval_close"]),
    default="eval",
    help="Which one.",
)
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
def build_eval(table: str, withhold: str | None, **options: Any) -> None:
    """Make an evaluation split: held-out kernels of one GPU, at most CAP per task and bin.

    Without options this is the canonical split, which `build` makes too. Without --archive the
    embedded archive is built first where the default directory has none.

    With --withhold the archive keeps the programs of the evaluation rows and nothing that was
    measured of them or of what else their searches ran; the folder holds the labels, for
    kernel-archive score --labels.
    """
    _make(table, _show_eval, **options)
    if withhold is not None:
        from kernel_archive.archive.open import default_directory
        from kernel_archive.pipeline import withhold_labels

        written = withhold_labels(options["archive_path"] or default_directory(), withhold)
        names = ", ".join(path.name for path in written)
        common.say(
            f"Labels withheld in {withhold}: {names}. Keep that folder out of what you publish."
        )


def _show_eval(split: SplitFacts) -> None:
    """Print the cells."""
    gpus = split.parameters.get("gpu") or ", ".join(split.facts["gpus"]) or "no GPU"
    cap = split.parameters.get("cap") if split.origin == "selected" else None
    _cells(split, f"Evaluation rows per task and bin, {gpus}", "task", cap)


@click.command("build-discovery")
@_split_options
def build_discovery(**options: Any) -> None:
    """Make the discovery pairs: edges of search trees, g = speedup(child) / speedup(parent)."""
    _make("discovery_pairs", _show_discovery, **options)


def _show_discovery(split: SplitFacts) -> None:
    """Print the cells, and the discoveries of each family at each cutoff."""
    _cells(split, "Pairs per problem and bin of g", "problem")
    cutoffs: dict[str, dict[str, int]] = split.facts["cutoffs"]
    names = [name for name in next(iter(cutoffs.values()), {}) if name != "rows"]
    rows = []
    for family, counts in cutoffs.items():
        n = counts["rows"]
        rows.append((family, n, *(f"{counts[x]} ({counts[x] / n:.1%})" for x in names)))
    if rows:
        columns = ["family", "pairs", *(f"g >= {n}" for n in names)]
        common.print_table(columns, rows, title="Discoveries")


@click.command("build-train")
@common.option(
    "--pairs", "pairs_per_task", type=common.FROM_0, help="Pairs of kind 'pair'.  [default: 500]"
)
@common.option("--seed", type=common.FROM_0, help="Seed of their sample.  [default: 0]")
@_split_options
def build_train(**options: Any) -> None:
    """Make the training pairs: reference to candidate, parent to child, sampled pairs of a task."""
    _make("train_pairs", _show_train, **options)


def _show_train(split: SplitFacts) -> None:
    """Print the pairs per problem and kind, and the cells."""
    per_task: dict[str, dict[str, int]] = split.facts.get("kinds_per_task", {})
    if per_task:
        kinds = ("seed", "parent_edit", "pair")
        every = {**per_task, "all": split.facts["kinds"]}
        rows = [(task, *(n.get(k, 0) for k in kinds), sum(n.values())) for task, n in every.items()]
        title = "Training pairs per problem and kind"
        common.print_table(["problem", *kinds, "all"], rows, title=title)
    _cells(split, "Training pairs per problem and bin", "problem")
