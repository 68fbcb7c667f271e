"""``push``, ``pull``, ``eval-results`` and ``reproduce``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.publishing.push import PushResult
    from kernel_archive.publishing.reproduce import Reproduction


def _quiet_bars() -> None:
    """No progress bars of the Hub's client where nobody watches them."""
    import sys

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
def push(repo: str, archive_path: str | None, **how: Any) -> None:
    """Publish an archive as the dataset REPO (owner/name) on the Hugging Face Hub.

    The archive is validated first; only files that differ are sent, in one commit, which is tagged. A push that broke off is
    completed by the next one. A tag is never moved. Log in with 'hf auth login' or set HF_TOKEN.
    """
    from kernel_archive.archive.open import default_directory
    from kernel_archive.publishing.push import push as run

    _quiet_bars()
    if not common.as_json():
        common.say("Validating ...")
    result = run(archive_path or default_directory(), repo, **how)
    common.emit(result, lambda: _show_push(result))


def _show_push(result: PushResult) -> None:
    if result.changes:
        common.print_table(
            ["file", "change", "bytes"],
            [(c.path, c.kind, f"{c.bytes:,}" if c.kind != "delete" else "-") for c in result.changes],
            left=2,
        )
    would = "would be " if result.dry_run else ""
    files = f"{len(result.changes)} files ({_megabytes(result.upload_bytes)}) {would}sent, {result.unchanged} unchanged"
    made = f"; the repository {would}made" if result.created else ""
    common.tell(f"{result.repo} {result.tag}: {files}{made}")
    if result.dry_run:
        common.tell("Dry run: nothing was sent.")
    elif not result.tagged:
        common.tell(f"Version {result.version} was published already: {result.url}")
    else:
        common.tell(f"Version {result.version} ({result.logical_digest}) is published: {result.url}")


@click.command()
@click.argument("repo")
@common.option("--version", help="Release or its tag, commit, or digest.  [default: the newest content]")
@common.option("--out", type=common.FOLDER, help="Archive directory.  [default: REPO]")
@common.option("--replace", is_flag=True, help="Overwrite another archive that stands in --out.")
@common.json_option
def pull(repo: str, **how: Any) -> None:
    """Fetch the dataset REPO (owner/name) from the Hugging Face Hub into a directory.

    Files and rows are compared with the digests of the manifest before the directory takes its place. Without --out it is
    REPO itself, where load_dataset finds it offline.
    """
    from kernel_archive.publishing.pull import pull as run

    _quiet_bars()
    result = run(repo, **how)

    def text() -> None:
        state = "is up to date" if result.unchanged else f"pulled ({result.files} files, verified)"
        if result.replaced:
            common.say(f"Replaced version {result.replaced}.")
        common.print_findings(result.findings)
        common.tell(
            f"{result.path} {state}: version {result.version}, {result.logical_digest}, commit {result.commit[:12]}"
        )

    common.emit(result, text)


@click.command("eval-results")
@click.argument("score", type=click.Path(exists=True, dir_okay=False))
@common.option("--dataset", default="gpu-forecasters/kernels", help="The benchmark dataset on the Hub.")
@common.option("--revision", help="Commit or tag of the dataset that was scored against.")
@common.option("--source-url", help="Where the forecasts are described.")
@common.option("--notes", help="Details of the set-up.  [default: repeats, coverage, scheme, digest]")
@common.option("-o", "--output", type=common.FILE, help="File to write.  [default: stdout]")
@common.json_option
def eval_results(score: str, dataset: str, output: str | None, **said: Any) -> None:
    """Write the headline metrics of SCORE (what 'score --json' printed) for a model repository on the Hub.

    The file belongs into the model repository under .eval_results/; the dataset's page then lists the model.
    """
    from pathlib import Path

    from kernel_archive.publishing.benchmark import eval_results as render
    from kernel_archive.publishing.hub import check_name
    from kernel_archive.scoring.record import read_record

    made = render(read_record(Path(score)), dataset=check_name(dataset), **said)
    if output:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).write_bytes(made)
    payload: dict[str, Any] = {"output": output, "yaml": made.decode()}
    common.emit(payload, f"{output} written" if output else made.decode().rstrip())


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(), required=False)
@common.json_option
def reproduce(source: str | None) -> None:
    """Recompute the GPU Forecasters paper's Table 1 from its published predictions, beside the printed figures.

    DIR is a local copy of the published tables, one folder per repository (gpu-forecasters-eval-set, ...); the Hub when not
    given. What the paper leaves open is computed in every reading: the bin scheme, recovery per task or pooled, the most
    probable or the stated bin. The reading that comes nearest to the paper stands first.
    """
    from kernel_archive.publishing.reproduce import reproduce as run

    _quiet_bars()
    if source is None and not common.as_json():
        common.say("Fetching the published tables from the Hub ...")
    result = run(source)
    common.emit(result, lambda: _show_reproduction(result))


def _plus_minus(mean: float | None, std: float | None, decimals: int) -> str:
    return "-" if mean is None or std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def _show_reproduction(result: Reproduction) -> None:
    from kernel_archive.publishing.reproduce import PRINTED, SURROGATES, TRAINED

    titles = {"speedup_recovered": "Speedup recovered, %", "ece": "ECE", "forecast_error": "Forecast error, x"}
    at = {(f.surrogate, f.metric, f.labels, f.choice): f for f in result.figures}
    shown = [name for name in SURROGATES if name not in result.missing]
    for metric, title in titles.items():
        decimals = 2 if metric == "speedup_recovered" else 3
        printed = [PRINTED[name][metric] for name in shown]
        rows: list[list[str]] = [["printed", "", *(_plus_minus(p.mean, p.std, decimals) for p in printed), "", ""]]
        for reading in (r for r in result.readings if r.metric == metric):
            found = [at[name, metric, reading.labels, reading.choice] for name in shown]
            cells = [_plus_minus(f.mean, f.std, decimals) for f in found]
            near = [f"{reading.difference:.{decimals}f}", f"{reading.equal}/{reading.compared}"]
            rows.append([reading.labels, reading.choice, *cells, *near])
        columns = ["labels", "reading", *(SURROGATES[name] for name in shown), "mean distance", "equal to print"]
        common.print_table(columns, rows, title=title, left=2)
    trained = [name for name in TRAINED if name not in result.missing]
    if trained:
        changes = {(d.surrogate, d.metric, d.labels, d.choice): d for d in result.deltas}
        rows = []
        for r in result.readings:
            found_deltas = [changes.get((name, r.metric, r.labels, r.choice)) for name in trained]
            shown_deltas = ["-" if d is None or d.delta is None else f"{d.delta:+.3f}" for d in found_deltas]
            rows.append([titles[r.metric], r.labels, r.choice, *shown_deltas])
        title = f"Effect of training: difference from {SURROGATES['gpt_oss_20b_untrained']}"
        columns = ["metric", "labels", "reading", *(TRAINED[name] for name in trained)]
        common.print_table(columns, rows, title=title, left=3)
    common.tell(
        "Labels: released = the published bins with that rule's centres; paper = relabelled by the paper's table; mixed = the "
        "published bins with the paper's centres."
    )
    common.tell(
        "Readings: macro = recovery per task, then the mean; pooled = all rows one candidate set; argmax or stated bin."
    )
    common.print_table(
        ["pairs of", "cutoff", "pairs", "discoveries", "base rate"],
        [(r.family, f"{r.cutoff:g}x", r.pairs, r.positives, f"{r.rate:.4f}") for r in result.base_rates],
        title="Discoveries",
    )
    rows_of = ", ".join(f"{task} {n}" for task, n in result.rows.items())
    common.tell(f"{sum(result.rows.values())} evaluation rows ({rows_of}).")
    common.tell(
        f"{result.relabelled} have another bin under the paper's table; {result.mislabelled} have a published bin that is not "
        "the released rule's."
    )
    for f in result.forecasters:
        rate = "-" if f.parse_rate is None else f"{100 * f.parse_rate:.1f} %"
        common.tell(
            f"{f.title}: {f.n_repeats} repeats, {rate} parsed, {f.n_stated_differs} stated bins are not the most probable, "
            f"{f.n_raw_sum_outside} raw sums outside 0.5 to 1.5."
        )
    if result.missing:
        common.tell(f"Not in the tables: {', '.join(result.missing)}.")
