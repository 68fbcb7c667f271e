"""``init``: from somebody's folder to a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.archive.seen import Look


@click.command(short_help="Write a recipe for a folder or table of your own.")
@click.argument("place", metavar="FOLDER|FILE", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="builder.toml",
    show_default=True,
    help="Recipe to write.",
)
@click.option("--name", default=None, help="Name of the archive, OWNER/DATASET.  [default: me/ and the folder's name]")
@click.option("--gpu", default=None, help="GPU of the measurements, where the files don't say.")
@click.option("--problem", default=None, help="What the programs compute, where the files don't say.")
@click.option("--reference", default=None, help="File with the reference program ({problem} allowed), or root.")
@click.option("--baseline", default=None, type=click.Path(), help="KernelBench: the timing baseline of the same GPU.")
@click.option("--problems", default=None, type=click.Path(), help="KernelBench: the folder with level1/*.py and so on.")
@click.option(
    "--role",
    type=click.Choice(["held_out", "training", "archive"]),
    default=None,
    help="What the rows are for.  [default: held_out]",
)
@click.option("--licence", default=None, help="SPDX name of the data's licence.  [default: that of a LICENSE file]")
@common.force_option
@common.json_option
def init(place: str, output: str, name: str | None, force: bool, as_json: bool, **answers: str | None) -> None:
    """Look at FOLDER or FILE, recognise its format or guess what a table's columns mean, and write a commented recipe.

    Shown is what would come out: rows, outcomes, the first kernels, what was doubted, what is missing. Nothing is built.
    What no file says is asked for in a terminal; elsewhere it is left to the options, and marked NEEDED in the recipe. Where nothing
    would come out, the recipe is written for you to correct, and the exit status is 1.

    Example: kernel-archive init results/ --name me/my-kernels --gpu H100, then kernel-archive build builder.toml.
    """
    from kernel_archive.archive.first_look import look, preview, recipe_text
    from kernel_archive.errors import TargetExistsError
    from kernel_archive.gpus import same_gpu
    from kernel_archive.storage import write_atomically

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
    if _asks() and not as_json:
        _ask(found, given)
    for key in ("gpu", "problem"):
        if key in given and key not in found.open:
            common.say(f"--{key} is not used: the files name it themselves.")
    said = [gpu for source in found.sources if (gpu := source.get("gpu")) and "{" not in gpu]
    if "gpu" in given and any(not same_gpu(gpu, given["gpu"]) for gpu in said):
        counts = "the file's counts where it names one" if len(found.sources) > 1 else "--gpu counts: is it right?"
        found.open["two GPUs"] = f"--gpu says {given['gpu']}, a file's name {', '.join(sorted(set(said)))}; {counts}"
    folder = Path(place).absolute()
    called = (
        name
        or f"me/{''.join(c if c.isalnum() or c in '._-' else '-' for c in folder.name.split('.')[0]).strip('._-') or 'kernels'}"
    )
    text = recipe_text(found, target.absolute().parent, name=called, answers=given)
    write_atomically(target, text.encode())
    shown = preview(target)
    open_ = {key: why for key, why in found.open.items() if key not in given}
    result = {
        "recipe": str(target),
        "name": called,
        "found": found.found,
        "sources": found.sources,
        "open": open_,
        **shown,
    }
    common.emit(result, as_json=as_json, text=lambda: _show(found, shown, open_, target))
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
        rows = [
            (ours, rule if isinstance(rule, str) else ", ".join(f"{k} {v}" for k, v in rule.items()))
            for ours, rule in source.get("columns", {}).items()
        ]
        if rows:
            common.print_table(["our column", "comes from"], rows, left=2)
    more = f" (in {shown['runs_read']} of {shown['runs']} runs)" if shown["runs"] > shown["runs_read"] else ""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in shown["outcomes"].items()) or "none"
    rows_of = f" of {shown['rows']:,}" if shown["rows"] else ""
    common.tell(
        f"Would come out: {shown['evaluations']:,}{rows_of} rows{more}: {outcomes}; {shown['problems']:,} problems on {', '.join(shown['gpus']) or 'no GPU'}."
    )
    if shown["first"]:
        common.print_table(
            ["problem", "GPU", "speedup", "program begins"],
            [
                (k["problem"] or "not said", k["gpu"] or "not said", f"{k['speedup']:.3g}x", k["code"][:60])
                for k in shown["first"]
            ],
            left=4,
        )
    common.print_findings(shown["findings"])
    for key, why in open_.items():
        common.say(f"open: {key}: {why}")
    for what in shown["missing"]:
        common.say(f"missing: {what}")
    common.tell(f"Wrote {target}. Read it, then: kernel-archive build {target}")
