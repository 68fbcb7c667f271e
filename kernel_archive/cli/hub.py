"""The commands ``push``, ``pull`` and ``reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.publishing.reproduce import Reproduction


def _begin(what: str) -> None:
    """Say what begins; the Hub's client shows no progress bars where nobody watches them."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if common.as_json() or not sys.stderr.isatty():
        disable_progress_bars()
    if what and not common.as_json():
        common.print_remark(what)


@click.command()
@click.argument("repo")
@common.option("--private", is_flag=True, help="Make a new repository private.")
@common.option("--dry-run", is_flag=True, help="List what would be published, and send nothing.")
@common.archive_options
def push(repo: str, archive_path: str | None, **options: Any) -> None:
    """Publish an archive as the dataset REPO (owner/name) on the Hugging Face Hub.

    The archive is validated first. Only files that differ are sent, in one commit, which is tagged.
    A push that broke off is completed by the next one. A tag is never moved. Log in with
    'hf auth login' or set HF_TOKEN.
    """
    from kernel_archive.archive.open import default_directory
    from kernel_archive.publishing.push import push as run

    _begin("Validating ...")
    result = run(archive_path or default_directory(), repo, **options)

    def text() -> None:
        common.print_facts(result)
        if result.dry_run:
            common.print_text("Dry run: nothing was sent.")
        elif not result.tagged:
            common.print_text(f"Version {result.version} was published already.")

    common.emit(result, text)


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

    _begin("")
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

    _begin("" if source else "Fetching the published tables from the Hub ...")
    result = run(source)
    common.emit(
        result,
        {
            "figures": list(_figures(result)),
            "evaluation_rows": sum(result.rows.values()),
            "tasks": len(result.rows),
            "not_in_the_tables": result.missing,
        },
    )


def _figures(result: Reproduction) -> Iterator[dict[str, str]]:
    """List a row per metric, reading and forecaster, the nearest reading of a metric first."""
    from kernel_archive.publishing.reproduce import FORECASTERS, printed

    def shown(figure: tuple[float | None, float | None]) -> str:
        return " ± ".join(common.words_of(round(n, 3)) for n in figure if n is not None) or "-"

    for reading in result.readings:
        for name, figure in reading.figures.items():
            is_forecaster = name in FORECASTERS
            yield {
                "metric": reading.metric.replace("_", " "),
                "reading": f"{reading.labels} {reading.choice}",
                "forecaster": FORECASTERS[name]["title"] if is_forecaster else name,
                "printed": shown(printed(name, reading.metric)) if is_forecaster else "-",
                "computed": shown(figure),
            }
