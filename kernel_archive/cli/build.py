"""From logs or a folder of results to an archive: ``init``, ``build`` and ``readers``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

import kernel_archive
from kernel_archive.cli import common
from kernel_archive.errors import UsageError
from kernel_archive.storage import check_new


@click.command()
@click.argument("place", metavar="FOLDER|FILE", type=click.Path())
@common.option("-o", "--output", type=common.FILE, default="builder.toml", help="Recipe to write.")
@common.option("--name", help="OWNER/DATASET of the archive.  [default: me/ and the folder's name]")
@common.option("--gpu", help="GPU of the measurements, where the files don't say.")
@common.option("--problem", help="What the programs compute, where the files don't say.")
@common.option("--reference", help="File with the reference program ({problem} allowed).")
@common.force_option
@common.json_option
def init(place: str, output: str, name: str | None, force: bool, **typed: str | None) -> None:
    """Look at FOLDER or FILE, and write a recipe and a query (import.sql) that read it.

    Files that a shipped query reads get that query. For any other table a query is made from the
    names of its columns. The first rows are shown; nothing is built. Check both files: they may
    guess wrong. Where no program with a problem and a speedup would come out, correct them; the
    exit status is then 1.

    Example: kernel-archive init results/ --name me/my-kernels --gpu H100, then kernel-archive
    build builder.toml.
    """
    from kernel_archive.archive.recipe import ARCHIVE_NAME
    from kernel_archive.drafting.draft import (
        draft_recipe,
        preview,
        query_of,
        why_no_build,
        write_recipe,
    )

    target = Path(output)
    for file in (target, query_of(target)):
        check_new(file, force=force)
    if name is not None and not re.fullmatch(ARCHIVE_NAME, name):
        raise UsageError(f"--name is OWNER/DATASET, for example me/my-kernels (got {name!r})")
    draft = draft_recipe(Path(place))
    folder = re.sub(r"[^\w-]", "-", Path(place).absolute().name.split(".")[0]).strip("_-")
    own_name = name or f"me/{folder or 'kernels'}"
    stated = {key: value for key, value in typed.items() if value}
    write_recipe(draft, target, name=own_name, stated=stated)
    preview_facts, build = preview(target), f"kernel-archive build {common.argument(output)}"
    facts: dict[str, Any] = {"found": draft.found, **preview_facts, "notes": draft.notes}
    query = {"query": query_of(target).name}
    sources = [source | (query if "query" in source else {}) for source in draft.sources]
    facts |= {"sources": sources, "recipe": str(target), "name": own_name}
    facts["next"] = f"read {target} and its query, then: {build}"
    lack = why_no_build(preview_facts)
    if lack:
        common.print_remark(f"Error: {lack}")
    first = [{**row, "code": row["code"][:60]} for row in preview_facts["first"]]
    common.emit(facts, facts | {"first": first}, ok=not lack)


@click.command()
@click.argument("builders", nargs=-1, metavar="[BUILDER]...")
@common.option(
    "--out", type=common.FOLDER, help="Archive directory.  [default: the archive's name]"
)
@common.option(
    "--name", help="OWNER/DATASET.  [default: the recipe's, else gpu-forecasters/kernels]"
)
@common.option("--version", help="Name of the release.  [default: the recipe's, else the digest's]")
@common.option("--jobs", type=common.JOBS, help="Worker processes.  [default: one per core]")
@common.option(
    "--engine",
    type=common.Choice(["local", "dask"]),
    default="local",
    help="Processes of this machine, or Dask.",
)
@common.option(
    "--scheduler", metavar="ADDRESS", help="Running Dask scheduler.  [default: workers here]"
)
@common.option(
    "--stage",
    metavar="PLACE",
    help="Directory or URL (s3://, gs://, ...) for fragments that all workers see.  "
    "[default: a hidden folder beside --out]",
)
@common.option("--strict", is_flag=True, help="End with an error at the first damaged log.")
@common.option("--replace", is_flag=True, help="Overwrite another release that stands in --out.")
@common.option("--bins", "scheme", type=common.SCHEME, default="paper", help="Bin scheme.")
@common.option(
    "--source", type=click.Path(), help="Local copy of the tables that a recipe reads from the Hub."
)
@common.json_option
def build(builders: tuple[str, ...], **options: Any) -> None:
    """Consolidate raw search logs into an archive with splits and card.

    BUILDER is the name of a shipped builder or the path of a builder.toml. Without one, the
    shipped default builders are taken, and load_dataset("gpu-forecasters/kernels") works in this
    directory afterwards.

    Builds are incremental: a run that was read before is not read again, even where the build was
    killed. Where no program with a speedup comes out, nothing is built: the exit status is 1, and
    an archive that is there stays.
    """
    from kernel_archive.cli.splits import show_left_out

    with common.progress("Reading") as advance:
        result = kernel_archive.build(builders, advance=advance, **options)

    def print_result() -> None:
        common.print_findings(result.shown, total=result.findings)
        facts: dict[str, Any] = {"archive": result.path, "version": result.version}
        facts["logical_digest"] = result.logical_digest
        facts["state"] = "up to date" if result.unchanged else "built"
        facts["replaced_version"] = result.replaced
        facts["runs_read_anew"] = f"{result.staged:,} of {result.runs:,}"
        facts |= {"rows": result.rows, "not_made": result.not_made}
        facts["findings_in_manifest.json"] = result.findings
        facts["next"] = f"kernel-archive info {common.argument(result.path)}"
        common.print_facts(facts)
        if result.own and "eval" in result.rows:
            from kernel_archive.selection.own_archive import problems_left_out

            archive = kernel_archive.open_archive(result.path)
            show_left_out(archive.manifest.splits["eval"], problems_left_out(archive))

    common.emit(result, print_result)


@click.command()
@common.option(
    "--columns", is_flag=True, help="List the columns that a query may return (format sql)."
)
@common.json_option
def readers(columns: bool) -> None:
    """List the log formats that a recipe can name, and what each expects."""
    from kernel_archive.readers import READERS
    from kernel_archive.readers.sql_doubts import COLUMNS

    if columns:
        meanings = {name: text for name, (_, text) in COLUMNS.items()}
        rows = [*meanings.items()]
        common.emit(meanings, lambda: common.print_table(["name", "meaning"], rows, left=2))
        return
    formats = [
        {"format": r.name, "title": r.title, "expects": r.expects, "files": list(r.files)}
        for r in READERS.values()
    ]
    common.emit(formats, lambda: common.print_records(formats))
