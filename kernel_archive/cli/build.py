"""``build`` and ``readers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from kernel_archive.cli import common


def _complete_builder(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Shipped builders, and files."""
    from kernel_archive.archive.recipe import shipped_recipes

    return [CompletionItem(name) for name in shipped_recipes() if name.startswith(begun)] or [
        CompletionItem(begun, type="file")
    ]


@click.command(short_help="Consolidate raw search logs into an archive.")
@click.argument("builders", nargs=-1, metavar="[BUILDER]...", shell_complete=_complete_builder)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default=None,
    help="Archive directory.  [default: the archive's name]",
)
@click.option(
    "--name",
    default=None,
    help="Name of the archive, OWNER/DATASET.  [default: the recipe's, else gpu-forecasters/kernels]",
)
@click.option(
    "--version", default=None, help="Name of the release.  [default: the shipped data's, else from the digest]"
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=None, help="Processes that share the work.  [default: one per core]"
)
@common.engine_option
@common.scheduler_option
@click.option(
    "--stage",
    metavar="PLACE",
    default=None,
    help="Directory or URL (s3://, gs://, ...) for fragments that all workers see.  [default: a hidden folder beside --out]",
)
@click.option("--strict", is_flag=True, help="End with an error at the first damaged log.")
@click.option("--replace", is_flag=True, help="Overwrite another release that stands in --out.")
@click.option(
    "--bins", type=click.Choice(["paper", "released"]), default="paper", show_default=True, help="Bin scheme."
)
@click.option(
    "--source", type=click.Path(), default=None, help="Local copy of the tables that a recipe reads from the Hub."
)
@common.json_option
def build(builders: tuple[str, ...], bins: str, as_json: bool, **options: Any) -> None:
    """Consolidate raw search logs into an archive with splits and card.

    BUILDER is the name of a shipped builder or the path of a builder.toml; without one, the shipped default builders are
    taken, and load_dataset("gpu-forecasters/kernels") works in this directory afterwards.

    Builds are incremental: a run that was read before is not read again, also after a build that was killed.
    """
    from kernel_archive.bins import scheme
    from kernel_archive.cli.splits import show_left_out
    from kernel_archive.pipeline import build as run

    with common.progress("Reading", quiet=as_json) as advance:
        result = run(builders, scheme=scheme(bins).name, advance=advance, say=common.say, **options)
    if result.findings and not as_json:
        common.print_findings(result.shown, total=result.findings)

    def text() -> None:
        common.print_table(["table", "rows"], [(name, f"{rows:,}") for name, rows in result.rows.items()])
        if result.replaced:
            common.say(f"Replaced version {result.replaced}.")
        state = "is up to date" if result.unchanged else f"built ({result.staged} of {result.runs} runs read anew)"
        common.tell(f"{result.path} {state}: version {result.version}, {result.logical_digest}")
        for name, why in result.not_made.items():
            common.say(f"warning: {name} was not made: {why}")
        if result.own and result.rows.get("eval"):
            common.tell(f"eval asks about {result.rows['eval']:,} kernels; kernel-archive build-eval shows which")
        elif result.own:
            show_left_out(Path(result.path), "eval")
        if result.findings:
            common.tell(f"{result.findings} findings in the logs are kept in manifest.json")

    common.emit(result, as_json=as_json, text=text)


@click.command(short_help="List the log formats and what each expects.")
@click.option("--columns", is_flag=True, help="List the columns that a table of measurements can be mapped to.")
@click.option("--keys", is_flag=True, help="Explain every key of a recipe.")
@common.json_option
def readers(columns: bool, keys: bool, as_json: bool) -> None:
    """List the log formats that a recipe can name, and what each expects."""
    from kernel_archive.readers import READERS
    from kernel_archive.readers.mapping import COLUMNS

    if keys:
        from kernel_archive.archive.recipe import explained_keys

        explained = explained_keys()
        common.emit(
            explained,
            as_json=as_json,
            text=lambda: common.print_table(["key", "what it is"], list(explained.items()), left=2),
        )
        return
    if columns:
        text = lambda: common.print_table(["column", "what it is"], list(COLUMNS.items()), left=2)  # noqa: E731
        common.emit(COLUMNS, as_json=as_json, text=text)
        return
    rows = [
        {"format": r.name, "title": r.title, "expects": r.expects, "files": list(r.files)} for r in READERS.values()
    ]
    shown = [(r.name, r.title, r.expects) for r in READERS.values()]
    common.emit(
        rows, as_json=as_json, text=lambda: common.print_table(["format", "what it is", "expects"], shown, left=3)
    )
