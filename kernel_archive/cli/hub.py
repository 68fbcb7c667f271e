"""The commands ``push``, ``pull`` and ``reproduce``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.publishing.reproduce import Reproduction

#: Metric of the paper's Table 1 -> title, decimals.
_PAPER_METRICS: Final = {
    "speedup_recovered": ("Speedup recovered, %", 2),
    "ece": ("ECE", 3),
    "forecast_error": ("Forecast error, x", 3),
}


def _announce(what: str) -> None:
    """Say what begins; the Hub's client shows no progress bars where nobody watches them."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if common.as_json() or not sys.stderr.isatty():
        disable_progress_bars()
    if what and not common.as_json():
        common.print_remark(what)


@click.command()
@click.argument("repo")
@common.option("--private", is_flag=True, help="Make a new repository private.")
@common.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@common.archive_options
def push(repo: str, archive_path: str | None, **options: Any) -> None:
    """Publish an archive as the dataset REPO (owner/name) on the Hugging Face Hub.

    The archive is validated first. Only files that differ are sent, in one commit, which is tagged.
    A push that broke off is completed by the next one. A tag is never moved. Log in with
    'hf auth login' or set HF_TOKEN.
    """
    from kernel_archive.archive.open import default_directory
    from kernel_archive.publishing.push import push as run

    _announce("Validating ...")
    result = run(archive_path or default_directory(), repo, **options)

    def print_result() -> None:
        common.print_facts(result)
        if result.dry_run:
            common.print_text("Dry run: nothing was sent.")
        elif not result.tagged:
            common.print_text(f"Version {result.version} was published already.")

    common.emit(result, print_result)


@click.command()
@click.argument("repo")
@common.option(
    "--version", help="Release or its tag, commit, or digest.  [default: the newest content]"
)
@common.option("--out", type=common.FOLDER, help="Archive directory.  [default: REPO]")
@common.option("--replace", is_flag=True, help="Overwrite another archive that stands in --out.")
@common.json_option
def pull(repo: str, **options: Any) -> None:
    """Fetch the dataset REPO (owner/name) from the Hugging Face Hub into a directory.

    Files and rows are compared with the digests of the manifest before the directory takes its
    place. Without --out it is REPO itself, where load_dataset finds it offline.
    """
    from kernel_archive.publishing.pull import pull as run

    _announce("")
    common.emit(run(repo, **options))


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(), required=False)
@common.json_option
def reproduce(source: str | None) -> None:
    """Recompute the paper's Table 1 from its published predictions, beside the printed figures.

    DIR is a local copy of the published tables, one folder per repository
    (gpu-forecasters-eval-set, ...); the Hub when not given. What the paper leaves open is computed
    in every reading, the nearest to the paper first, beside a random order and the best control.
    The published evaluation table has 424 rows, not 480.
    """
    from kernel_archive.publishing.reproduce import reproduce as run

    _announce("" if source else "Fetching the published tables from the Hub ...")
    result = run(source)
    common.emit(result, lambda: _show_reproduction(result))


def _show_reproduction(result: Reproduction) -> None:
    """Print a table per metric: the printed figures, then every reading, the nearest first."""
    from kernel_archive.publishing.reproduce import FORECASTERS, printed

    def cell(figure: tuple[float | None, float | None], decimals: int) -> str:
        mean, std = (None if n is None else f"{n:.{decimals}f}" for n in figure)
        return " ± ".join(n for n in (mean, std) if n is not None) or "-"

    present = {name: own for name, own in FORECASTERS.items() if name not in result.missing}
    titles = {name: own["title"] for name, own in present.items()}
    titles |= {name: name for name in ("random order", "best control")}
    for metric, (heading, decimals) in _PAPER_METRICS.items():
        readings = [r for r in result.readings if r.metric == metric]
        rows = []
        for name, title in titles.items():
            paper = printed(name, metric) if name in FORECASTERS else (None, None)
            figures = [paper, *(r.figures.get(name, (None, None)) for r in readings)]
            rows.append([title, *(cell(figure, decimals) for figure in figures)])
        distances = (cell((r.distance, None), decimals) for r in readings)
        rows.append(["mean distance from print", "", *distances])
        columns = ["", "printed", *(f"{r.labels} {r.choice}" for r in readings)]
        common.print_table(columns, rows, title=heading)
    common.print_text(
        "Labels: released = the published bins with that rule's centres; paper = relabelled by the "
        "paper's table; mixed = the published bins with the paper's centres. Macro: recovery per "
        "task, then the mean; pooled: all rows one candidate set; argmax or stated bin."
    )
    common.print_text(f"Evaluation rows: {sum(result.rows.values())}, tasks: {len(result.rows)}.")
    if result.missing:
        common.print_text(f"Not in the tables: {', '.join(result.missing)}.")
