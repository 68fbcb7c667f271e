"""What is done with forecast files: ``template``, ``check``, ``score``, ``compare``, ``plot`` and ``replay``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kernel_archive.cli import common
from kernel_archive.errors import printable
from kernel_archive.scoring.replay import POLICIES
from kernel_archive.splits import FORECAST_SPLITS, REPLAY
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive.scoring.record import ScoreRecord
    from kernel_archive.scoring.replay import Figure, Replay
    from kernel_archive.scoring.summary import Sheet

_surrogate = common.option("--surrogate", help="Take only the lines with this surrogate_label.")


_draw_options = common.options(
    common.option("--seed", type=common.FROM_0, default=0, help="Seed of the draws."),
    common.option(
        "--draws", type=click.IntRange(0, 1_000_000), default=10_000, help="Bootstrap draws; 0 for no intervals."
    ),
    common.option(
        "--predicted-bin",
        type=common.Choice(["argmax", "stated"]),
        default="argmax",
        help="Score the most probable bin, or the one that the forecaster names.",
    ),
)


def _print(sheet: Sheet) -> None:
    common.print_table(sheet.columns, sheet.rows, title=sheet.title, notes=sheet.notes)


@click.command()
@click.argument("file", required=False, type=common.FILE)
@common.split_option
@common.option("--repeats", type=click.IntRange(min=1, max=100), default=1, help="Repeats per row.")
@common.output_option
@common.force_option
@common.archive_option
@common.json_option
def template(
    file: str | None, split: str, repeats: int, output: str | None, force: bool, archive_path: str | None
) -> None:
    """Write a forecast file for a split that is valid as it is: the uniform distribution for every row.

    It goes to FILE (or that of -o), to stdout without one or for -; the format is explained on stderr. Replace the probabilities, then:
    kernel-archive check FILE and kernel-archive score FILE.
    """
    from kernel_archive.scoring import load_target
    from kernel_archive.scoring.template import explanation, json_schema, template_lines

    if file is not None and output is not None:
        raise click.UsageError("FILE and -o name the same thing: give one")
    output = None if (file or output) == "-" else file or output
    if output is not None:
        check_new(output, force=force)
    target = load_target(archive_path, split, blind=True)
    data = b"".join(template_lines(target, repeats=repeats))
    if output is not None:
        write_new(output, data, force=force)
    shown = None if output is None else printable(output, 5000)
    facts = {"file": shown, "rows": len(target), "repeats": repeats, "split": target.facts}
    if not common.as_json():
        for line in explanation(target):
            common.say(line)
    done = f"{shown}: {len(target) * repeats:,} forecasts to fill in. Next: kernel-archive check {shown}"
    common.emit_lines({**facts, "schema": json_schema()}, data if output is None else None, done)


@click.command()
@click.argument("file", type=click.Path())
@common.split_option
@_surrogate
@common.archive_option
@common.json_option
def check(file: str, split: str, surrogate: str | None, archive_path: str | None) -> None:
    """Check a forecast file and list every fault: file, line, field, value and the way out.

    Reads JSON lines (plain, gzip, zstd) and Parquet. The exit status is 1 when the file can't be scored.
    """
    from kernel_archive.scoring import check_forecasts, load_target
    from kernel_archive.scoring.summary import check_lines

    _, report = check_forecasts(file, load_target(archive_path, split, blind=True), surrogate=surrogate)

    def text() -> None:
        common.tell("\n".join(check_lines(report)))
        common.print_findings(report.findings, total=report.n_errors + report.n_warnings)

    common.emit(report, text)
    if not report.ok:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@common.split_option
@common.bins_option
@_surrogate
@common.labels_option
@_draw_options
@common.option("--jobs", type=common.JOBS, default=1, help="Processes that compute the draws.")
@common.output_option
@common.force_option
@common.archive_option
@common.json_option
def score(
    files: tuple[str, ...],
    split: str,
    bins: str | None,
    surrogate: str | None,
    labels: str | None,
    jobs: int,
    output: str | None,
    force: bool,
    archive_path: str | None,
    **how: Any,
) -> None:
    """Score forecast files against a split, with 95 % intervals.

    One file: every metric, per task and per budget. Several: one line each. With --json the full score record (a list
    of them for several files), which kernel-archive plot draws; -o writes it to a file besides.
    """
    from kernel_archive.archive.team import team
    from kernel_archive.scoring import load_target, read_forecasts
    from kernel_archive.scoring import score as score_one
    from kernel_archive.scoring.record import records_to_json
    from kernel_archive.scoring.summary import score_remarks, score_sheets, several_sheet

    if output is not None:
        check_new(output, force=force)
    target = load_target(archive_path, split, bins, labels=labels)
    # All files are read before the first is scored: a fault in the last one need not wait for that.
    cast = [read_forecasts(file, target, surrogate=surrogate) for file in files]
    with team(jobs) as workers:
        records = [score_one(target, f, workers=workers if jobs > 1 else None, **how) for f in cast]
    if output is not None:
        write_new(output, records_to_json(records), force=force)

    def text() -> None:
        if len(records) > 1:
            _print(several_sheet(records))
        else:
            for sheet in score_sheets(records[0]):
                _print(sheet)
                common.tell()
            for remark in score_remarks(records[0]):
                common.tell(remark)
        for f in cast:
            common.print_findings(f.remarks)

    common.emit(records if len(records) > 1 else records[0], text)


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@common.split_option
@common.bins_option
@common.labels_option
@_draw_options
@common.archive_option
@common.json_option
def compare(
    a: str, b: str, split: str, bins: str | None, labels: str | None, archive_path: str | None, **how: Any
) -> None:
    """Compare two forecast files on the same rows: paired differences, intervals, permutation p-values (Holm)."""
    from kernel_archive.scoring import compare_files, load_target
    from kernel_archive.scoring.summary import comparison_sheet

    target = load_target(archive_path, split, bins, labels=labels)
    result = compare_files(a, b, target, **how)
    common.emit(result, lambda: _print(comparison_sheet(result)))


@click.command()
@click.argument("records", type=click.Path(), nargs=-1, required=True)
@common.option(
    "--kind",
    type=common.Choice(["all", "recovery", "precision-recall", "reliability", "error", "confusion", "risk", "groups"]),
    default="all",
    help="Which plot; all of them on one sheet by default.",
)
@common.output_option
@common.force_option
@common.json_option
def plot(records: tuple[str, ...], kind: str, output: str | None, force: bool) -> None:
    """Draw the plots of score records (from kernel-archive score --json or -o) as SVG, PNG or PDF.

    The file of -o gives the format; NAME.svg in the current directory when not given. Several records of one split
    are drawn into the same axes, where the plot allows it.
    """
    from kernel_archive.scoring.plots import draw, file_name_for
    from kernel_archive.scoring.record import read_records

    scores: list[ScoreRecord] = [record for path in records for record in read_records(path)]
    path = output if output is not None else file_name_for(scores, kind)
    check_new(path, force=force)
    data = draw(scores, kind, Path(path).suffix)
    write_new(path, data, force=force)
    shown = printable(path, 5000)
    common.emit({"file": shown, "kind": kind, "bytes": len(data)}, f"{shown}: {len(data):,} bytes")


def _shown(f: Figure) -> str:
    if not math.isfinite(f.mean):
        return "-"  # random and oracle find the same
    return f"{f.mean:.1f} ({f.low:.1f} to {f.high:.1f})"


def _rows(done: Replay) -> list[list[str]]:
    return [
        [done.name or "(none needed)", p.policy, _shown(p.rescaled), _shown(p.area), _shown(p.to_near), f"{p.curve[10]:.0f}", f"{p.curve[25]:.0f}"]
        + [f"{value:.0f}" for value in p.hidden.values()]
        for p in done.policies
    ]  # fmt: skip


@click.command()
@click.argument("files", type=click.Path(), nargs=-1)
@common.option("--forecaster", "names", multiple=True, metavar="NAME", help="A baseline, or a cue such as code_length.")
@common.option(
    "--policy", "policies", multiple=True, type=common.Choice(list(POLICIES)), help="Only these.  [default: all]"
)
@common.option(
    "--split",
    type=common.Choice([REPLAY.name, *FORECAST_SPLITS]),
    default=REPLAY.name,
    help="replay: every recorded program; else only the rows of a split.",
)
@common.option(
    "--searches",
    "made",
    type=common.Choice(["natural", "generated"]),
    default="natural",
    help="Chains of programs written one by one, or searches over templates.",
)
@common.option(
    "--share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.25,
    help="Share of the children that a step measures.",
)
@common.option("--parents", type=common.FROM_1, default=4, help="Parents per step.")
@common.option("--repeats", type=common.FROM_1, default=8, help="Runs with other ties and draws.")
@common.option("--hide/--no-hide", default=True, help="Replay with 25 and 50 % of the tree hidden, too.")
@common.option("--seed", type=common.FROM_0, default=0, help="Seed of everything random.")
@common.option("--draws", type=click.IntRange(min=1, max=100_000), default=2000, help="Bootstrap draws.")
@common.archive_option
@common.json_option
def replay(
    files: tuple[str, ...],
    names: tuple[str, ...],
    policies: tuple[str, ...],
    split: str,
    made: Literal["natural", "generated"],
    hide: bool,
    seed: int,
    archive_path: str | None,
    **how: Any,
) -> None:
    """Search the recorded held-out searches again, with forecasts that choose what is measured.

    FILES are forecast files (kernel-archive template --split replay -o FILE); --forecaster makes the forecasts of a baseline or of a
    cue. Without any, the policies that need none are shown. Figures are percentages: the area under the best speedup so far (0 is
    random, 100 is an oracle), the same unscaled, the share of the measurements until 95 % of the best, and the best so far after
    10 and 25 % of the measurements.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.forecasters.baselines import forecasts_by_name
    from kernel_archive.scoring.reader import name_of, read_forecasts
    from kernel_archive.scoring.replay import replay as run
    from kernel_archive.scoring.worlds import load_worlds

    archive = open_archive(archive_path)
    worlds = load_worlds(archive, split=split, made=made)
    target = worlds.target()
    # A submission's file is always called the same: its folder has the name.
    named = [Path(file).parent.name if name_of(file) == "forecasts" else None for file in files]
    cast = [read_forecasts(file, target, name=name or None) for file, name in zip(files, named, strict=True)]
    cast += [forecasts_by_name(name, archive, worlds, seed=seed) for name in names]
    wanted = [p for p in POLICIES if not policies or p in policies]
    hidden = (0.25, 0.5) if hide else ()
    done = []
    with common.progress("Replaying") as advance:
        for number, forecasts in enumerate([*cast] or [None], 1):
            done.append(run(worlds, forecasts, policies=wanted, hide=hidden, seed=seed, **how))
            advance(number, max(1, len(cast)), forecasts.name if forecasts is not None else "")

    def text() -> None:
        first = done[0]
        columns = ["forecasts", "policy", "area, random to oracle", "area", "measured until 95 %", "at 10 %", "at 25 %"]
        columns += [f"{float(part):.0%} hidden" for part in (first.policies[0].hidden if first.policies else {})]
        note = (
            f"{first.n_worlds} worlds with {first.n_edges:,} recorded children; {first.parents} parents a step, of whose children "
            f"{first.share:.0%} are measured; 95 % intervals over worlds."
        )
        notes = [note] + [
            f"{d.name} says something of {d.coverage:.0%} of the rows; the others count as uniform."
            for d in done
            if d.name and d.coverage < 1
        ]
        common.print_table(columns, [row for d in done for row in _rows(d)], left=2, notes=notes)

    common.emit(done, text)
