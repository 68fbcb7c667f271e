"""From logs or somebody's folder to an archive: ``init``, ``build`` and ``readers``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kernel_archive.cli import common
from kernel_archive.errors import TargetExistsError
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from kernel_archive.archive.seen import Look


@click.command()
@click.argument("place", metavar="FOLDER|FILE", type=click.Path())
@common.option("-o", "--output", type=common.FILE, default="builder.toml", help="Recipe to write.")
@common.option("--name", help="Name of the archive, OWNER/DATASET.  [default: me/ and the folder's name]")
@common.option("--gpu", help="GPU of the measurements, where the files don't say.")
@common.option("--problem", help="What the programs compute, where the files don't say.")
@common.option("--reference", help="File with the reference program ({problem} allowed), or root.")
@common.option("--baseline", type=click.Path(), help="KernelBench: the timing baseline of the same GPU.")
@common.option("--problems", type=click.Path(), help="KernelBench: the folder with level1/*.py and so on.")
@common.option(
    "--role",
    type=common.Choice(["held_out", "training", "archive"]),
    help="What the rows are for.  [default: held_out]",
)
@common.option("--licence", help="SPDX name of the data's licence.  [default: that of a LICENSE file]")
@common.force_option
@common.json_option
def init(place: str, output: str, name: str | None, force: bool, **answers: str | None) -> None:
    """Look at FOLDER or FILE, recognise its format or guess what a table's columns mean, and write a commented recipe.

    Shown is what would come out: rows, outcomes, the first kernels, what was doubted, what is missing. Nothing is built.
    What no file says is asked for in a terminal; elsewhere it is left to the options, and marked NEEDED in the recipe. Where nothing
    would come out, the recipe is written for you to correct, and the exit status is 1.

    Example: kernel-archive init results/ --name me/my-kernels --gpu H100, then kernel-archive build builder.toml.
    """
    from kernel_archive.archive.first_look import look, preview, recipe_text
    from kernel_archive.gpus import same_gpu

    target = Path(output)
    if target.exists() and not force:
        raise TargetExistsError(f"{target} is there already. Choose another -o, or overwrite it with --force")
    found = look(Path(place))
    given: dict[str, str] = {key: value for key, value in answers.items() if value}
    for key in ("baseline", "problems"):
        if key in given:
            given[key] = str(Path(given[key]).absolute())
    if given.get("reference") not in (None, "root") and Path(given["reference"]).exists():
        given["reference"] = str(Path(given["reference"]).absolute())
    if _asks() and not common.as_json():
        _ask(found, given)
    for key in ("gpu", "problem"):
        if key in given and key not in found.open:
            common.say(f"--{key} is not used: the files name it themselves.")
    said = [gpu for source in found.sources if (gpu := source.get("gpu")) and "{" not in gpu]
    if "gpu" in given and any(not same_gpu(gpu, given["gpu"]) for gpu in said):
        counts = "the file's counts where it names one" if len(found.sources) > 1 else "--gpu counts: is it right?"
        found.open["two GPUs"] = f"--gpu says {given['gpu']}, a file's name {', '.join(sorted(set(said)))}; {counts}"
    of_folder = re.sub(r"[^\w-]", "-", Path(place).absolute().name.split(".")[0]).strip("_-")
    called = name or f"me/{of_folder or 'kernels'}"
    text = recipe_text(found, target.absolute().parent, name=called, answers=given)
    write_atomically(target, text.encode())
    shown = preview(target)
    open_ = {key: why for key, why in found.open.items() if key not in given}
    facts = {"recipe": str(target), "name": called, "found": found.found, "sources": found.sources, "open": open_}
    common.emit(facts | shown, lambda: _show(found, shown, open_, target))
    click.get_current_context().exit(0 if shown["evaluations"] else 1)


def _asks() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty()


def _ask(found: Look, given: dict[str, str]) -> None:
    """Ask for what no file says; an empty answer leaves it open."""
    common.say(f"Found: {found.found}.")
    for key in ("gpu", "problem", "reference", "baseline", "problems"):
        if key in found.open and key not in given:
            answer = click.prompt(f"{key}: {found.open[key]} (empty: later)", default="", show_default=False, err=True)
            if answer:
                given[key] = str(Path(answer).absolute()) if Path(answer).exists() else answer


def _show(found: Look, shown: dict[str, Any], open_: dict[str, str], target: Path) -> None:
    common.tell(f"Found: {found.found}.")
    for source in found.sources[:1]:
        if columns := source.get("columns"):
            words = (r if isinstance(r, str) else ", ".join(f"{k} {v}" for k, v in r.items()) for r in columns.values())
            common.print_table(["our column", "comes from"], list(zip(columns, words, strict=True)), left=2)
    more = f" (in {shown['runs_read']} of {shown['runs']} runs)" if shown["runs"] > shown["runs_read"] else ""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in shown["outcomes"].items()) or "none"
    rows_of = f" of {shown['rows']:,}" if shown["rows"] else ""
    common.tell(
        f"Would come out: {shown['evaluations']:,}{rows_of} rows{more}: {outcomes}; {shown['problems']:,} problems on {', '.join(shown['gpus']) or 'no GPU'}."
    )
    if shown["first"]:
        rows = [
            (k["problem"] or "not said", k["gpu"] or "not said", f"{k['speedup']:.3g}x", k["code"][:60])
            for k in shown["first"]
        ]
        common.print_table(["problem", "GPU", "speedup", "program begins"], rows, left=4)
    common.print_findings(shown["findings"])
    for key, why in open_.items():
        common.say(f"open: {key}: {why}")
    for what in shown["missing"]:
        common.say(f"missing: {what}")
    common.tell(f"Wrote {target}. Read it, then: kernel-archive build {target}")


def _complete_builder(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Shipped builders, and files."""
    from kernel_archive.archive.recipe import shipped_recipes

    return [CompletionItem(name) for name in shipped_recipes() if name.startswith(begun)] or [
        CompletionItem(begun, type="file")
    ]


@click.command()
@click.argument("builders", nargs=-1, metavar="[BUILDER]...", shell_complete=_complete_builder)
@common.option("--out", type=common.FOLDER, help="Archive directory.  [default: the archive's name]")
@common.option(
    "--name", help="Name of the archive, OWNER/DATASET.  [default: the recipe's, else gpu-forecasters/kernels]"
)
@common.option("--version", help="Name of the release.  [default: the shipped data's, else from the digest]")
@common.option("--jobs", type=common.JOBS, help="Processes that share the work.  [default: one per core]")
@common.engine_option
@common.scheduler_option
@common.option(
    "--stage",
    metavar="PLACE",
    help="Directory or URL (s3://, gs://, ...) for fragments that all workers see.  [default: a hidden folder beside --out]",
)
@common.option("--strict", is_flag=True, help="End with an error at the first damaged log.")
@common.option("--replace", is_flag=True, help="Overwrite another release that stands in --out.")
@common.option("--bins", type=common.SCHEME, default="paper", help="Bin scheme.")
@common.option("--source", type=click.Path(), help="Local copy of the tables that a recipe reads from the Hub.")
@common.json_option
def build(builders: tuple[str, ...], bins: str, **options: Any) -> None:
    """Consolidate raw search logs into an archive with splits and card.

    BUILDER is the name of a shipped builder or the path of a builder.toml; without one, the shipped default builders are
    taken, and load_dataset("gpu-forecasters/kernels") works in this directory afterwards.

    Builds are incremental: a run that was read before is not read again, also after a build that was killed.
    """
    from kernel_archive.bins import scheme
    from kernel_archive.cli.splits import show_left_out
    from kernel_archive.pipeline import build as run

    with common.progress("Reading") as advance:
        result = run(builders, scheme=scheme(bins).name, advance=advance, say=common.say, **options)

    def text() -> None:
        common.print_findings(result.shown, total=result.findings)
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

    common.emit(result, text)


@click.command()
@common.option("--columns", is_flag=True, help="List the columns that a table of measurements can be mapped to.")
@common.option("--keys", is_flag=True, help="Explain every key of a recipe.")
@common.json_option
def readers(columns: bool, keys: bool) -> None:
    """List the log formats that a recipe can name, and what each expects."""
    from kernel_archive.archive.recipe import explained_keys
    from kernel_archive.readers import READERS
    from kernel_archive.readers.mapping import COLUMNS

    if keys or columns:
        name, explained = ("key", explained_keys()) if keys else ("column", COLUMNS)
        common.emit(explained, lambda: common.print_table([name, "what it is"], list(explained.items()), left=2))
        return
    rows = [
        {"format": r.name, "title": r.title, "expects": r.expects, "files": list(r.files)} for r in READERS.values()
    ]
    shown = [(r.name, r.title, r.expects) for r in READERS.values()]
    common.emit(rows, lambda: common.print_table(["format", "what it is", "expects"], shown, left=3))
