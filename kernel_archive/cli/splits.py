"""``build-eval``, ``build-discovery``, ``build-train`` and ``diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli.common import archive_option, emit, json_option, print_table, progress, say, tell
from kernel_archive.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernel_archive.bins import Scheme
    from kernel_archive.selection.diff import Difference
    from kernel_archive.selection.make import Made

__all__ = ["build_discovery", "build_eval", "build_train", "diff"]

bins_option = click.option("--bins", type=click.Choice(["paper", "released"]), default=None, help="Bin scheme of the labels.  [default: the definition's]")  # fmt: skip
definition_option = click.option("--definition", type=click.Path(dir_okay=False), default=None, help="A split definition of your own (see splits/*.toml).")  # fmt: skip
reselect_option = click.option("--reselect", is_flag=True, help="Select anew what others published, as a variant.")


def _remade(
    archive_path: str | None, table: str, *, bins: Scheme | None, reselect: bool, as_json: bool, **changes: Any
) -> tuple[Path, Made]:
    """Build the embedded archive where no directory was named and there is none yet, then make one split."""
    from kernel_archive.pipeline import ensure_archive, remake_split

    with progress("Reading", quiet=as_json) as advance:
        directory = ensure_archive(archive_path, say=say, advance=advance)
    return directory, remake_split(directory, table, scheme=bins, reselect=reselect, **changes)


def _show(directory: Path, table: str, made: Made, *, as_json: bool, text: Callable[[dict[str, Any]], None]) -> None:
    facts = made.facts[table]
    changed = table in made.changed
    result = {
        "path": str(directory),
        "table": table,
        "changed": changed,
        "published_and_kept": table in made.kept,
        "split": facts,
        "leakage": made.leakage,
    }

    def shown() -> None:
        text(facts.facts)
        excluded = {k: n for k, n in facts.facts.get("excluded", {}).items() if n}
        if excluded:
            tell("Left out: " + ", ".join(f"{n:,} {k.replace('_', ' ')}" for k, n in excluded.items()) + ".")
        tell(
            f"Labels: scheme {facts.scheme}; the two bin schemes label {facts.facts['label_differences']:,} of {facts.rows:,} rows "
            f"differently. m_1 = {facts.facts['m_1']:.6g}x, m_8 = {facts.facts['m_8']:.6g}x."
        )
        if table in made.kept:
            say(
                f"{table} was published by others and is kept as it is. --bins labels it by another scheme, --reselect "
                "selects a variant of your own."
            )
        elif facts.name != "canonical":
            say(
                f"This is the variant {facts.name!r}, not the canonical split: its scores compare with no others. "
                "Without options the command makes the canonical one again."
            )
        tell(
            f"{directory}: {table} ({facts.name}), {facts.rows:,} rows, {facts.logical_digest}"
            f"{'' if changed else ', as it was'}"
        )

    emit(result, as_json=as_json, text=shown)


def _cells(facts: dict[str, Any], cap: int | None, title: str, first: str) -> None:
    """Problem x bin; cells under the cap are marked."""

    def cell(n: int) -> str:
        return f"{n}*" if cap is not None and n < cap else f"{n} " if cap is not None else str(n)

    cells: dict[str, list[int]] = facts["cells"]
    rows = [(task, *map(cell, counts), sum(counts)) for task, counts in cells.items()]
    totals = [sum(column) for column in zip(*cells.values(), strict=True)] or [0] * 8
    pad = " " if cap is not None else ""
    rows.append(("all", *(f"{n}{pad}" for n in totals), sum(totals)))
    short = sum(n < cap for counts in cells.values() for n in counts) if cap is not None else 0
    notes = (
        [f"* short: {short} of {8 * len(cells)} cells have fewer than {cap} kernels to choose from"] if short else []
    )
    print_table([first, *(f"{b}{pad}" for b in range(1, 9)), "all"], rows, title=title, notes=notes)


@click.command("build-eval", short_help="Make the evaluation split.")
@click.option("--cap", type=click.IntRange(1), default=None, help="Kernels per task and bin, at most.  [default: 10]")
@click.option("--gpu", default=None, help="GPU of the split.  [default: A100-80GB, else the only one there is]")
@bins_option
@definition_option
@reselect_option
@archive_option
@json_option
def build_eval(
    cap: int | None,
    gpu: str | None,
    bins: Scheme | None,
    definition: str | None,
    reselect: bool,
    archive_path: str | None,
    as_json: bool,
) -> None:
    """Make the evaluation split: held-out kernels of one GPU, at most CAP per task and bin.

    Without options this is the canonical split, which `build` makes too. Without --archive, and where the default
    directory has no archive yet, the embedded one is built there first.
    """
    directory, made = _remade(
        archive_path, "eval", bins=bins, reselect=reselect, as_json=as_json, cap=cap, gpu=gpu, definition=definition
    )
    split = made.facts["eval"]

    def text(facts: dict[str, Any]) -> None:
        gpus = split.parameters.get("gpu") or ", ".join(facts["gpus"]) or "no GPU"
        cap_used = split.parameters.get("cap") if split.origin == "selected" else None
        _cells(facts, cap_used, f"Evaluation rows per task and bin, {gpus}", "task")
        for task, references in facts.get("several_references", {}).items():
            say(
                f"Warning: the rows of {printable(task)} were timed against {len(references)} references: their speedups have "
                "different denominators. Give the searches of one reference another role to keep them apart."
            )
        near = made.leakage.get("similarity", {})
        if near.get("similar_rows"):
            tell(
                f"{near['similar_rows']:,} of {near['rows']:,} rows have a training program with at least {near['threshold']:.0%} of "
                "their token 5-grams in common (manifest.json names examples); none has the same program."
            )

    _show(directory, "eval", made, as_json=as_json, text=text)


@click.command("build-discovery", short_help="Make the discovery-pair split.")
@bins_option
@definition_option
@reselect_option
@archive_option
@json_option
def build_discovery(
    bins: Scheme | None, definition: str | None, reselect: bool, archive_path: str | None, as_json: bool
) -> None:
    """Make the discovery pairs: parent-child edges of search trees with g = speedup(child) / speedup(parent)."""
    directory, made = _remade(
        archive_path, "discovery_pairs", bins=bins, reselect=reselect, as_json=as_json, definition=definition
    )

    def text(facts: dict[str, Any]) -> None:
        _cells(facts, None, "Pairs per problem and bin of g", "problem")
        cutoffs: dict[str, dict[str, int]] = facts["cutoffs"]
        names = [name for name in next(iter(cutoffs.values()), {}) if name != "rows"]
        rows = [
            (family, counts["rows"], *(f"{counts[n]} ({counts[n] / counts['rows']:.1%})" for n in names))
            for family, counts in cutoffs.items()
        ]
        if rows:
            print_table(["family", "pairs", *(f"g >= {n}" for n in names)], rows, title="Discoveries")
        for name, what in (("own_measurements", "the edge's own two measurements"), ("case_times", "per-case times")):
            other = facts.get(name, {})
            if other.get("pairs"):
                tell(
                    f"g from {what}: {other['pairs']:,} pairs, off by a factor of {other['median_factor']:.4g} in the median, "
                    f"{other['largest_factor']:.4g} at most; {other['label_differences']:,} labels differ."
                )

    _show(directory, "discovery_pairs", made, as_json=as_json, text=text)


@click.command("build-train", short_help="Make the training pairs.")
@click.option(
    "--pairs", type=click.IntRange(0), default=None, help="Pairs of the kind 'pair' per task.  [default: 500]"
)
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of their sample.  [default: 0]")
@bins_option
@definition_option
@reselect_option
@archive_option
@json_option
def build_train(
    pairs: int | None,
    seed: int | None,
    bins: Scheme | None,
    definition: str | None,
    reselect: bool,
    archive_path: str | None,
    as_json: bool,
) -> None:
    """Make the training pairs: reference to candidate, parent to child, and sampled pairs of one task."""
    directory, made = _remade(
        archive_path,
        "train_pairs",
        bins=bins,
        reselect=reselect,
        as_json=as_json,
        definition=definition,
        pairs_per_task=pairs,
        seed=seed,
    )

    def text(facts: dict[str, Any]) -> None:
        per_task: dict[str, dict[str, int]] = facts.get("kinds_per_task", {})
        if per_task:
            kinds = ("seed", "parent_edit", "pair")
            rows = [(task, *(n.get(k, 0) for k in kinds), sum(n.values())) for task, n in per_task.items()]
            rows.append(("all", *(facts["kinds"].get(k, 0) for k in kinds), sum(facts["kinds"].values())))
            print_table(["problem", *kinds, "all"], rows, title="Training pairs per problem and kind")
        _cells(facts, None, "Training pairs per problem and bin", "problem")

    _show(directory, "train_pairs", made, as_json=as_json, text=text)


@click.command(short_help="Show what changed between two archive versions.")
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@click.option("--changelog", "as_changelog", is_flag=True, help="Print a changelog entry of the data, as Markdown.")
@click.option("--examples", type=click.IntRange(0), default=5, show_default=True, help="Rows named per kind of change.")
@json_option
def diff(old: str, new: str, as_changelog: bool, examples: int, as_json: bool) -> None:
    """Show what changed from OLD to NEW, table by table: rows added, removed, relabelled, measured again.

    OLD and NEW are archive directories, folders of frozen splits (splits/frozen/VERSION), or single frozen splits.
    """
    from kernel_archive.selection import diff as module

    if as_changelog and as_json:
        raise click.UsageError("--changelog and --json exclude each other")
    found = module.diff(old, new)
    emit(
        found,
        as_json=as_json,
        text=(lambda: tell(module.changelog(found).rstrip("\n")))
        if as_changelog
        else lambda: _print_diff(found, examples),
    )


def _print_diff(found: Difference, examples: int) -> None:
    kinds = ("added", "removed", "relabelled", "remeasured", "moved", "changed")
    rows = [
        (t.table, t.rows_old, t.rows_new, *("-" if getattr(t, k) is None else len(getattr(t, k)) for k in kinds))
        for t in found.tables
    ]
    print_table(["table", "old rows", "new rows", *kinds], rows, title=f"{found.old} -> {found.new}")
    for name in found.only_old:
        tell(f"{name}: only in {found.old}")
    for name in found.only_new:
        tell(f"{name}: only in {found.new}")
    for table in found.tables:
        for name, (before, now) in table.facts_changed.items():
            tell(f"{table.table}: {name} was {before}, is {now}")
        for kind in kinds:
            items = getattr(table, kind) or []
            for item in items[:examples]:
                detail = item if isinstance(item, str) else f"{item.id}: {item.old} -> {item.new}"
                tell(f"{table.table} {kind} {detail}")
            if examples and len(items) > examples:
                tell(f"{table.table} {kind} ... and {len(items) - examples:,} more (all with --json)")
    tell("Nothing changed." if found.same else "The two differ.")
