"""Commands for forecast files: ``template``, ``check``, ``score``, ``compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

import kernel_archive
from kernel_archive.cli import common
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive import Split
    from kernel_archive.scoring.summary import Sheet

#: What is scored, and how scores are drawn and read.
_score_options = common.options(
    common.split_option,
    common.bins_option,
    common.labels_option,
    common.option("--seed", type=common.FROM_0, default=0, help="Seed of the draws."),
    common.option(
        "--draws",
        type=click.IntRange(0, 1_000_000),
        default=10_000,
        help="Bootstrap draws; 0: none.",
    ),
    common.option(
        "--predicted-bin",
        type=common.Choice(["argmax", "stated"]),
        default="argmax",
        help="Score the most probable or the named bin.",
    ),
)


def _print(sheet: Sheet) -> None:
    common.print_table(sheet.columns, sheet.rows, title=sheet.title, notes=sheet.notes)


def _load_split(options: dict[str, Any]) -> Split:
    """Load the split that options name, and take these out of the others."""
    names = ("archive_path", "split", "scheme", "labels")
    archive, split, scheme, labels = map(options.pop, names)
    return kernel_archive.load_split(archive, split, scheme, labels=labels)


@click.command()
@common.split_option
@common.option("--repeats", type=click.IntRange(min=1, max=100), default=1, help="Repeats per row.")
@common.output_options
@common.archive_options
def template(
    split: str, repeats: int, output: str | None, force: bool, archive_path: str | None
) -> None:
    """Write a valid forecast file for a split: the uniform distribution for every row.

    It goes to the file of -o, else to stdout; the format is explained on stderr. Replace the
    probabilities, then: kernel-archive check FILE, kernel-archive score FILE.
    """
    from kernel_archive.scoring.formats import fields_of
    from kernel_archive.scoring.template import explanation, template_lines

    if output is not None:
        check_new(output, force=force)
    loaded = kernel_archive.load_split(archive_path, split, blind=True)
    data = b"".join(template_lines(loaded, repeats=repeats))
    facts: dict[str, Any] = {"rows": len(loaded), "repeats": repeats}
    facts |= {"split": loaded.identity, "fields": fields_of(loaded.spec)}
    check_it = common.next_command("check", output or "FILE", split, archive_path)
    facts["next"] = f"fill it in, then: {check_it}"
    if not common.as_json():
        for line in explanation(loaded, common.restated_options(archive_path)):
            common.print_remark(line)
    common.emit_lines(facts, data, output, force=force, hidden=("split", "fields"))


@click.command()
@click.argument("file", type=click.Path())
@common.split_option
@common.archive_options
def check(file: str, split: str, archive_path: str | None) -> None:
    """Check a forecast file and list every fault: file, line, field, value and the way out.

    Reads JSON lines (plain, gzip, zstd) and Parquet. The exit status is 1 when the file can't be
    scored.
    """
    from kernel_archive.scoring.summary import check_lines

    loaded = kernel_archive.load_split(archive_path, split, blind=True)
    _, report = kernel_archive.check_forecasts(file, loaded)

    def print_result() -> None:
        common.print_text("\n".join(check_lines(report)))
        total = report.n_errors + report.n_warnings
        common.print_findings(report.findings, total=total, show=common.print_text)
        if report.ok:
            common.print_text(f"next: {common.next_command('score', file, split, archive_path)}")

    common.emit(report, print_result, ok=report.ok)


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@_score_options
@common.output_options
@common.archive_options
def score(files: tuple[str, ...], output: str | None, force: bool, **options: Any) -> None:
    """Score forecast files against a split, with 95 % intervals.

    One file: headline metrics, pairs by distance, every task. Several: one line each. With --json
    the full score record (a list of them for several files); -o writes it to a file besides.
    """
    from kernel_archive.scoring import score as score_one
    from kernel_archive.scoring.summary import score_remarks, score_sheets, several_sheet

    if output is not None:
        check_new(output, force=force)
    split = _load_split(options)
    # All files are read before the first is scored: a fault in the last one need not wait for that.
    forecasts = [kernel_archive.read_forecasts(file, split) for file in files]
    records = [score_one(split, one, **options) for one in forecasts]
    payload = records if len(records) > 1 else records[0]
    if output is not None:
        data = msgspec.json.format(msgspec.json.encode(payload), indent=1) + b"\n"
        write_new(output, data, force=force)

    def print_result() -> None:
        if len(records) > 1:
            _print(several_sheet(records))
        else:
            for sheet in score_sheets(records[0]):
                _print(sheet)
                common.print_text()
            for remark in score_remarks(records[0]):
                common.print_text(remark)
        for one in forecasts:
            common.print_findings(one.remarks)

    common.emit(payload, print_result)


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@_score_options
@common.archive_options
def compare(a: str, b: str, **options: Any) -> None:
    """Compare two forecast files: paired differences, intervals, permutation p-values (Holm)."""
    from kernel_archive.scoring.summary import comparison_sheet

    result = kernel_archive.compare(a, b, _load_split(options), **options)
    common.emit(result, lambda: _print(comparison_sheet(result)))
