"""The commands ``push``, ``pull`` and ``reproduce``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kernel_archive.cli import common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernel_archive.publishing.push import PushResult
    from kernel_archive.publishing.reproduce import PaperFigure, Reproduction

#: Metric of the paper's Table 1 -> title, decimals.
_PAPER_METRICS: Final = {
    "speedup_recovered": ("Speedup recovered, %", 2),
    "ece": ("ECE", 3),
    "forecast_error": ("Forecast error, x", 3),
}


def _quiet_bars() -> None:
    """Turn off the progress bars of the Hub's client where nobody watches them."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if common.as_json() or not sys.stderr.isatty():
        disable_progress_bars()


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB" if n >= 100_000 else f"{n:,} bytes"


@click.command()
@click.argument("repo")
@common.option("--tag", help="Tag of the version.  [default: v and the archive's version]")
@common.option("--private", is_flag=True, help="Make a new repository private.")
@common.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@common.archive_option
@common.json_option
def push(repo: str, archive_path: str | None, **options: Any) -> None:
    """Publish an archive as the dataset REPO (owner/name) on the Hugging Face Hub.

    The archive is validated first. Only files that differ are sent, in one commit, which is tagged.
    A push that broke off is completed by the next one. A tag is never moved. Log in with
    'hf auth login' or set HF_TOKEN.
    """
    from kernel_archive.archive.open import default_directory
    from kernel_archive.publishing.push import push as run

    _quiet_bars()
    if not common.as_json():
        common.say("Validating ...")
    result = run(archive_path or default_directory(), repo, **options)
    common.emit(result, lambda: _show_push(result))


def _show_push(result: PushResult) -> None:
    if result.changes:
        rows = [
            (change.path, change.kind, f"{change.bytes:,}" if change.kind != "delete" else "-")
            for change in result.changes
        ]
        common.print_table(["file", "change", "bytes"], rows, left=2)
    would = "would be " if result.dry_run else ""
    created = f"; the repository {would}made" if result.created else ""
    common.tell(
        f"{result.repo} {result.tag}: {len(result.changes)} files "
        f"({_megabytes(result.upload_bytes)}) {would}sent, {result.unchanged} unchanged{created}"
    )
    if result.not_compared:
        common.tell(f"Not compared with the Hub: {result.not_compared}")
    if result.dry_run:
        common.tell("Dry run: nothing was sent.")
    elif not result.tagged:
        common.tell(f"Version {result.version} was published already: {result.url}")
    else:
        common.tell(
            f"Version {result.version} ({result.logical_digest}) is published: {result.url}"
        )


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

    _quiet_bars()
    result = run(repo, **options)

    def text() -> None:
        state = "is up to date" if result.unchanged else f"pulled ({result.files} files, verified)"
        if result.replaced:
            common.say(f"Replaced version {result.replaced}.")
        common.print_findings(result.findings)
        common.tell(
            f"{result.path} {state}: version {result.version}, {result.logical_digest}, "
            f"commit {result.commit[:12]}"
        )

    common.emit(result, text)


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(), required=False)
@common.json_option
def reproduce(source: str | None) -> None:
    """Recompute the paper's Table 1 from its published predictions, beside the printed figures.

    DIR is a local copy of the published tables, one folder per repository
    (gpu-forecasters-eval-set, ...); the Hub when not given. What the paper leaves open is computed
    in every reading: the bin scheme, recovery per task or pooled, the most probable or the stated
    bin. The reading that comes nearest to the paper stands first.
    """
    from kernel_archive.publishing.reproduce import reproduce as run

    _quiet_bars()
    if source is None and not common.as_json():
        common.say("Fetching the published tables from the Hub ...")
    result = run(source)
    common.emit(result, lambda: _show_reproduction(result))


def _plus_minus(mean: float | None, std: float | None, decimals: int) -> str:
    return "-" if mean is None or std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def _show_table_1(result: Reproduction, figures: Mapping[Any, PaperFigure]) -> None:
    """Print a table per metric: the printed figures, then every reading, the nearest first."""
    from kernel_archive.publishing.reproduce import PRINTED, SURROGATES

    shown = [name for name in SURROGATES if name not in result.missing]
    for metric, (title, decimals) in _PAPER_METRICS.items():
        printed = [PRINTED[name][metric] for name in shown]
        cells = [_plus_minus(p.mean, p.std, decimals) for p in printed]
        rows = [["printed", "", *cells, "", ""]]
        for r in result.readings:
            if r.metric != metric:
                continue
            own = [figures[name, metric, r.labels, r.choice] for name in shown]
            cells = [_plus_minus(f.mean, f.std, decimals) for f in own]
            nearness = [f"{r.difference:.{decimals}f}", f"{r.equal}/{r.compared}"]
            rows.append([r.labels, r.choice, *cells, *nearness])
        names = [SURROGATES[name] for name in shown]
        columns = ["labels", "reading", *names, "mean distance", "equal to print"]
        common.print_table(columns, rows, title=title, left=2)


def _show_training(result: Reproduction, figures: Mapping[Any, PaperFigure]) -> None:
    """Print how training changed each metric, under each reading."""
    from kernel_archive.publishing.reproduce import BASELINE, SURROGATES, TRAINED

    trained = [name for name in TRAINED if name not in result.missing]
    if not trained:
        return
    rows = []
    for r in result.readings:
        own = [figures.get((name, r.metric, r.labels, r.choice)) for name in trained]
        deltas = ["-" if f is None or f.delta is None else f"{f.delta:+.3f}" for f in own]
        rows.append([_PAPER_METRICS[r.metric][0], r.labels, r.choice, *deltas])
    columns = ["metric", "labels", "reading", *(TRAINED[name] for name in trained)]
    title = f"Effect of training: difference from {SURROGATES[BASELINE]}"
    common.print_table(columns, rows, title=title, left=3)


def _show_reproduction(result: Reproduction) -> None:
    figures = {(f.surrogate, f.metric, f.labels, f.choice): f for f in result.figures}
    _show_table_1(result, figures)
    _show_training(result, figures)
    common.tell(
        "Labels: released = the published bins with that rule's centres; paper = relabelled by the "
        "paper's table; mixed = the published bins with the paper's centres."
    )
    common.tell(
        "Readings: macro = recovery per task, then the mean; pooled = all rows one candidate set; "
        "argmax or stated bin."
    )
    rates = [
        (r.family, f"{r.cutoff:g}x", r.pairs, r.positives, f"{r.rate:.4f}")
        for r in result.base_rates
    ]
    columns = ["pairs of", "cutoff", "pairs", "discoveries", "base rate"]
    common.print_table(columns, rates, title="Discoveries")
    tasks = ", ".join(f"{task} {n}" for task, n in result.rows.items())
    common.tell(f"{sum(result.rows.values())} evaluation rows ({tasks}).")
    common.tell(
        f"{result.relabelled} have another bin under the paper's table; {result.mislabelled} have "
        "a published bin that is not the released rule's."
    )
    for f in result.forecasters:
        rate = "-" if f.parse_rate is None else f"{100 * f.parse_rate:.1f} %"
        common.tell(
            f"{f.title}: {f.n_repeats} repeats, {rate} parsed, {f.n_stated_differs} stated bins "
            f"are not the most probable, {f.n_raw_sum_outside} raw sums outside 0.5 to 1.5."
        )
    if result.missing:
        common.tell(f"Not in the tables: {', '.join(result.missing)}.")
