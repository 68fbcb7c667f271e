"""``baseline`` and ``leaderboard``."""

from __future__ import annotations

from typing import Any

import click

import kernel_archive
from kernel_archive.baselines.registry import BASELINES, forecast_lines, make_baseline
from kernel_archive.board import add_submission, build_board, standings_json, verify_board
from kernel_archive.board.standings import Standings
from kernel_archive.board.submissions import ModelFacts, Seen
from kernel_archive.cli import common
from kernel_archive.errors import counted
from kernel_archive.scoring import METRICS
from kernel_archive.scoring.metrics import shown_first
from kernel_archive.storage import check_new

_board = common.option(
    "--board", type=common.FOLDER, help="Folder of the board.  [default: leaderboard]"
)


@click.command()
@click.argument("name", type=common.Choice(list(BASELINES)))
@common.split_option
@common.output_options
@common.option("--seed", type=common.FROM_0, default=0, help="Seed of everything random in it.")
@common.archive_options
def baseline(
    name: str, split: str, output: str | None, force: bool, seed: int, archive_path: str | None
) -> None:
    """Write the forecasts of a baseline as an ordinary forecast file.

    uniform: one eighth for every bin. prior: bin frequencies of the problem's training pairs.
    trees: extra trees on static features of both programs. dry-run: the same on what a dry run of
    the host code launches besides.

    The learning ones see the training pairs of the archive and nothing else. trees and dry-run need
    the extra learn.
    """
    if output is not None:
        check_new(output, force=force)
    archive = kernel_archive.open_archive(archive_path)
    forecasts = make_baseline(name, archive, split, seed=seed)
    facts: dict[str, Any] = {"baseline": name, "split": split, "seed": seed}
    facts |= {"rows": len(forecasts.row_ids), "training_pairs": forecasts.n_training}
    facts["next"] = common.next_command("score", output or "FILE", split, archive_path)
    common.emit_lines(facts, b"".join(forecast_lines(forecasts)), output, force=force)


@click.group()
def leaderboard() -> None:
    """Submissions, standings and the page.

    A board is a folder: submissions/NAME/ with the forecasts, their record and score, and the
    standings made from them.
    """


@leaderboard.command(short_help="Check, score and store a submission.")
@click.argument("file", type=click.Path())
@common.option("--name", required=True, help="Name of the entry, at most 80 characters.")
@common.option("--url", help="Web address of the method or its author.")
@common.option("--model", help="The model behind it.")
@common.option(
    "--open-weights/--closed-weights", default=None, help="Whether anybody can have the model."
)
@common.option(
    "--saw-archive",
    type=common.Choice(["yes", "no", "held-out", "unknown"]),
    default="unknown",
    help="Whether the model was trained on this archive; held-out: also on rows that are forecast.",
)
@common.option("--notes", help="Anything to know about it.")
@common.split_option
@_board
@common.archive_options
def add(
    file: str, open_weights: bool | None, saw_archive: Seen, board: str | None, **stated: Any
) -> None:
    """Check and score a forecast file and store it as a submission, whole or not at all.

    FILE must forecast the rows of the archive that stands here. The folder it makes is what a pull
    request adds. The prompt that a language model answered is read from FILE; what was asked of
    which model is read from FILE.run.json, where kernel-archive forecast left it.
    """
    archive, split = stated.pop("archive_path"), stated.pop("split")
    loaded = kernel_archive.load_split(archive, split)
    facts = ModelFacts(open_weights=open_weights, saw_archive=saw_archive)
    stored = add_submission(file, loaded, facts=facts, board=board, **stated)
    payload: dict[str, Any] = {"slug": stored.slug, "folder": str(stored.folder)}
    next_options = common.restated_options(archive, board=board)
    payload["next"] = f"kernel-archive leaderboard build{next_options}"
    figures = []
    score = stored.score
    for name in dict.fromkeys([*shown_first(score.spec), "crps"]):
        f = score.metrics[name]
        value, low, high = map(METRICS[name].format, (f.mean, f.low, f.high))
        title = METRICS[name].title
        figures.append({"figure": title, "value": value, "95 % interval": f"{low} to {high}"})
    result = payload | {"submission": stored.submission, "score": score}
    result |= {"remarks": stored.remarks}
    common.emit(result, {"score": figures, **payload})
    common.print_findings(stored.remarks)


def _show_standings(standings: Standings) -> None:
    """Print the entries of one split by rank."""
    rows, remarks = [], []
    lead, split = standings.lead, standings.split
    shown = list(dict.fromkeys([lead, *shown_first(split.spec)]))[:2]
    for entry in standings.entries:
        rank, score = entry.ranks.get(lead), entry.score
        row = {"rank": "-" if rank is None else str(rank.rank), "possible ranks": "-"}
        if rank is not None and rank.best is not None:
            row["possible ranks"] = f"{rank.best} to {rank.worst}"
        row["entry"] = entry.submission.name
        for key in shown:
            star = " *" if score.is_weak(key) else ""
            row[METRICS[key].title] = METRICS[key].format(score.metrics[key].mean) + star
        coverage = f"{100 * score.forecasts.coverage:.0f} %"
        rows.append(row | {"coverage": coverage})
        remarks += [f"{entry.submission.name}: {entry.remark}"] if entry.remark else []
    notes = [
        *remarks,
        f"Ranked by {METRICS[lead].title}. The page has all figures, controls and bounds.",
        "* does not beat the best control by its interval",
    ]
    title = f"{split.spec.name}: {counted(len(split), 'row')}"
    common.print_records(rows, title=title, notes=notes)


@leaderboard.command(short_help="Score every submission anew; write standings and page.")
@_board
@common.option("--out", type=common.FOLDER, help="Folder to write to.  [default: the board's]")
@common.option("--draws", type=click.IntRange(100, 100_000), default=4_000, help="Bootstrap draws.")
@common.option("--seed", type=common.FROM_0, default=0, help="Seed of the draws.")
@common.option("--jobs", type=common.JOBS, help="Processes that score.  [default: one per core]")
@common.archive_options
def build(archive_path: str | None, **options: Any) -> None:
    """Score and rank every submission, and write standings.json and index.html.

    A submission whose files are at fault, or that is of another archive, is named and left out.

    The page is one file that fetches nothing: open it in a browser.
    """
    with common.progress("Scoring") as advance:
        result = build_board(kernel_archive.open_archive(archive_path), advance=advance, **options)
    files = [str(file) for file in result.files]

    def print_result() -> None:
        for standings in result.boards:
            _show_standings(standings)
            common.print_text()
        left_out = [f"{out.slug}: {out.findings[0].message}" for out in result.left_out]
        page = f"open {files[-1]} in a browser"
        common.print_facts({"files": files, "left_out": left_out, "next": page})

    facts = {"files": files, "page_bytes": result.page_bytes, "left_out": result.left_out}
    common.emit(lambda: facts | standings_json(result.boards), print_result)
    common.print_findings([finding for verdict in result.left_out for finding in verdict.findings])


@leaderboard.command(short_help="Show that stored scores are what the forecasts give.")
@click.argument("slugs", nargs=-1, metavar="[NAME]...")
@common.option("--update", is_flag=True, help="Store new scores where older versions made them.")
@_board
@common.archive_options
def verify(archive_path: str | None, **options: Any) -> None:
    """Score submissions again, all when none is named, and compare with their stored scores.

    The exit status is 1 when one fails. A pull request that adds a submission is checked with this.
    """
    with common.progress("Verifying") as advance:
        verdicts = verify_board(
            kernel_archive.open_archive(archive_path), advance=advance, **options
        )
    failed = [v for v in verdicts if v.status == "failed"]

    def print_result() -> None:
        common.print_records([{"submission": v.slug, "verdict": v.status} for v in verdicts])
        common.print_text(f"{len(verdicts) - len(failed)} of {len(verdicts)} are sound")
        common.print_findings([finding for v in failed for finding in v.findings])

    common.emit({"verdicts": verdicts}, print_result, ok=not failed)
