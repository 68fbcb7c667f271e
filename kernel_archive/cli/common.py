"""What every command shares: options, text or JSON on stdout, tables, progress, errors."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from kernel_archive.errors import Finding, counted, printable, suggestion
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.storage import write_new

if TYPE_CHECKING:
    from kernel_archive.archive.build import Advance

#: Print this many findings in full, and count the rest; ``--json`` has them all.
SHOWN_FINDINGS: Final = 20
#: Wrap a table in a pipe at this many columns; one in a terminal fits its width.
MAX_WIDTH: Final = 120
#: Put one space between the columns of a table, not two, where it is then no wider than this.
NARROW: Final = 80
#: Cut a line of text after this many characters, and a cell of a table.
MAX_LINE: Final = 10_000
MAX_CELL: Final = 2000
#: Seconds between two lines of progress where there is no terminal.
PROGRESS_SECONDS: Final = 30.0


def options(*listed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make one decorator of several options, in the order in which the help shows them."""

    def add(command: Any) -> Any:
        for option in reversed(listed):
            command = option(command)
        return command

    return add


#: Makes an option whose help shows its default.
option = partial(click.option, show_default=True)


class Choice(click.Choice[str]):
    """A choice whose error suggests the nearest value."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """List the choices, and suggest the nearest one."""
        message = super().get_invalid_choice_message(value, ctx)
        near = suggestion(value, self.choices)
        return f"{message} {near}" if near.startswith("Did") else message


FILE: Final = click.Path(dir_okay=False)
FOLDER: Final = click.Path(file_okay=False)
SCHEME: Final = Choice(["paper", "released"])
JOBS: Final = click.IntRange(1, 256)
FROM_0: Final = click.IntRange(min=0)
FROM_1: Final = click.IntRange(min=1)


def as_json() -> bool:
    """Tell whether the command that runs was called with ``--json``."""
    return bool(click.get_current_context().meta.get("json"))


def _remember_option(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    ctx.meta[str(parameter.name)] = value


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_remember_option,
    help="Print the result as JSON on stdout.",
)


def _remark_unnamed_archive(
    ctx: click.Context, parameter: click.Parameter, archive: str | None, *, is_written: bool = False
) -> str | None:
    """Return the archive as typed; where others are here, say which is used, or refuse to write."""
    from kernel_archive.archive.open import DEFAULT_DIRECTORY, unnamed_archives, which_archive_error

    if archive is None and not ctx.resilient_parsing and (others := unnamed_archives()):
        if is_written:
            raise which_archive_error([*others, DEFAULT_DIRECTORY])
        verb = "is" if len(others) == 1 else "are"
        is_option = isinstance(parameter, click.Option)
        way_out = f"--archive {others[0]}" if is_option else "name the one that is meant"
        print_remark(
            f"using {DEFAULT_DIRECTORY}; {', '.join(map(str, others))} {verb} here too: {way_out}"
        )
    return archive


_ARCHIVE_HELP: Final = "Archive.  [default: gpu-forecasters/kernels, else the only one here]"
_archive = partial(option, "--archive", "archive_path", type=FOLDER, help=_ARCHIVE_HELP)
archive_option = _archive(callback=_remark_unnamed_archive)
archive_options = options(archive_option, json_option)
#: The archive that a command writes into.
changed_archive_option = _archive(callback=partial(_remark_unnamed_archive, is_written=True))
#: DIR and ``--json``.
archive_argument = options(
    click.argument(
        "archive_path",
        metavar="[DIR]",
        type=click.Path(),
        required=False,
        callback=_remark_unnamed_archive,
    ),
    json_option,
)
split_option = option(
    "--split", type=Choice(list(FORECAST_SPLITS)), default="eval", help="Rows to forecast."
)
bins_option = option(
    "--bins", "scheme", type=SCHEME, help="Bin scheme of the labels.  [default: the split's own]"
)
labels_option = option(
    "--labels", type=FOLDER, help="Folder with the labels, where they are withheld."
)
force_option = option("--force", is_flag=True, help="Overwrite the file.")
output_options = options(
    option("-o", "--output", type=FILE, help="File to write.  [default: stdout]"), force_option
)


def restated_options(archive_path: str | None, split: str = "eval", **more: Any) -> str:
    """Name split, archive and ``more`` as options of the next command, where they are stated."""
    stated = {"split": None if split == "eval" else split, "archive": archive_path, **more}
    return "".join(f" --{name} {argument(value)}" for name, value in stated.items() if value)


def next_command(name: str, file: str, split: str, archive_path: str | None) -> str:
    """Write the command about a file that comes next."""
    return f"kernel-archive {name} {argument(file)}{restated_options(archive_path, split)}"


def argument(value: object) -> str:
    """Write an argument of a command that can be pasted."""
    return shlex.quote(printable(str(value), 5000))


def _safe(message: str) -> str:
    """Show every control character but line ends, so that none reaches a terminal."""
    return "\n".join(printable(line, MAX_LINE) for line in message.split("\n"))


def print_remark(message: str) -> None:
    """Print text for people on stderr: progress, remarks, warnings."""
    with suppress(OSError):  # a closed or full stderr has no reader
        click.echo(_safe(message), err=True)


def print_text(message: str = "") -> None:
    """Print text for people on stdout: a result."""
    click.echo(_safe(message))


def _plain(payload: Any) -> Any:
    """Turn structs and numpy arrays into what JSON has; non-finite floats into ``None``."""

    def builtin(item: Any) -> Any:
        return item.tolist() if hasattr(item, "tolist") else str(item)

    return msgspec.json.decode(msgspec.json.encode(payload, enc_hook=builtin))


def print_json(payload: Any) -> None:
    """Print a value as JSON, numpy arrays and structs included; non-finite floats as null."""
    click.echo(json.dumps(_plain(payload), indent=1, ensure_ascii=True))


def emit(
    payload: Any, shown: Callable[[], None] | Mapping[str, Any] | None = None, *, ok: bool = True
) -> None:
    """Print a command's result: ``payload`` as JSON, or ``shown`` for people.

    ``shown`` prints, or is named values to lay out (:func:`print_facts`); without it the payload
    is. A payload that is a function is called for JSON only. The exit status is 1 if not ``ok``.
    """
    if as_json():
        print_json(payload() if callable(payload) else payload)
    elif callable(shown):
        shown()
    else:
        print_facts(payload if shown is None else shown)
    if not ok:
        raise click.exceptions.Exit(1)


def emit_lines(
    facts: dict[str, Any],
    data: bytes,
    output: str | None,
    *,
    force: bool,
    hidden: Sequence[str] = (),
) -> None:
    """Print the lines that a command made, or write them to a file and say what was done.

    The file is the first of the facts; the ``hidden`` ones are in the JSON alone.
    """
    facts = {"file": None if output is None else printable(output, 5000), **facts}
    if output is None:
        lines = facts | {"lines": [line.decode() for line in data.splitlines()]}
        emit(lines, lambda: click.echo(data, nl=False))
        return
    write_new(output, data, force=force)
    emit(facts, {name: value for name, value in facts.items() if name not in hidden})


def print_facts(result: Any) -> None:
    """Lay out named values: a line for each, and for each of several sentences; findings on stderr.

    ``{"rows": 3, "files": [{"path": "a", "bytes": 5}]}`` is the line ``rows: 3`` and a table with
    the columns ``path`` and ``bytes``. What is empty is not shown.
    """
    after_table = False
    for name, value in _plain(result).items():
        heading = name.replace("_", " ")
        if value in (None, {}, [], ""):
            continue
        if name == "findings":
            print_findings(msgspec.convert(value, list[Finding]))
            continue
        is_table = isinstance(value, list) and isinstance(value[0], dict)
        if is_table or after_table:
            print_text()
        if is_table:
            print_records(value, title=heading)
        elif isinstance(value, list) and any(" " in str(text) for text in value):
            print_text("\n  ".join([f"{heading}:", *map(str, value)]))
        else:
            print_text(f"{heading}: {in_words(value)}")
        after_table = is_table


def print_records(records: Sequence[Mapping[str, Any]], **options: Any) -> None:
    """Print a table with a row for every record, and a column for every key of the first one.

    Texts are left-aligned up to the first column of numbers.
    """
    columns = list(records[0]) if records else []
    numeric = [any(isinstance(row.get(name), int | float) for row in records) for name in columns]
    left = numeric.index(True) if True in numeric else len(columns)
    rows = [[in_words(row.get(name)) for name in columns] for row in records]
    print_table([name.replace("_", " ") for name in columns], rows, left=left, **options)


def in_words(value: Any) -> str:
    """Write one value in words: ``1,234``, ``0.1235``, ``a 1, b 2``, ``yes``, ``-``."""
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    return str(value)


def page_width() -> int:
    """Return how many columns a line on stdout may take."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else MAX_WIDTH


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows as a table where they fit the page, else one below the other, a line a column."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) + 2 for column in zip(columns, *texts, strict=True)]
    if not texts:
        print_text(f"no rows, of {', '.join(columns)}")
        return
    if sum(widths) <= page_width() and not any("\n" in text for row in texts for text in row):
        print_table(columns, texts)
        return
    for number, row in enumerate(texts, 1):
        print_text(f"row {number}")
        for name, text in zip(columns, row, strict=True):
            between = "\n" if "\n" in text else " "
            print_text(
                f"  {name}:{between}{textwrap.indent(text, '    ') if between != ' ' else text}"
            )
        print_text()


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    left: int = 1,
    notes: Sequence[str] = (),
) -> None:
    """Print a table on stdout: the first ``left`` columns left-aligned, the others right-aligned.

    Long cells are wrapped, never cut.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(value: object) -> Text:  # as Text nothing in it is mark-up
        return Text(printable(str(value), MAX_CELL))

    console = Console(highlight=False, file=io.StringIO(), width=page_width())
    table = Table(
        title=cell(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for i, name in enumerate(columns):
        table.add_column(cell(name), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    unbounded = console.options.update(max_width=MAX_CELL)
    if NARROW < console.measure(table, options=unbounded).maximum < NARROW + len(columns):
        table.padding = (0, 0, 0, 0)
    with console.capture() as captured:
        console.print(table, *map(cell, notes), sep="\n")
    lines = [line.rstrip() for line in captured.get().split("\n")]
    click.echo("\n".join(lines).strip("\n"))


def print_findings(
    findings: Sequence[Finding],
    *,
    total: int | None = None,
    show: Callable[[str], None] = print_remark,
) -> None:
    """Print findings on stderr, one a line, the first twenty in full and the rest counted.

    Those of one file that differ in nothing but their line are one. ``show`` is :func:`print_text`
    where they are the result of a command.
    """
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(msgspec.structs.replace(finding, line=None), []).append(finding)
    shown = [*alike.values()][:SHOWN_FINDINGS]
    for first, *others in shown:
        more = f" (and {counted(len(others), 'more line')} like it)" if others else ""
        show(f"{first.severity}: {first.render()}{more}")
    rest = (len(findings) if total is None else total) - sum(map(len, shown))
    if rest > 0:
        show(f"... and {rest} more (all of them with --json)")


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Show progress on stderr: a bar on a terminal, else a line every thirty seconds."""
    from rich import progress as bars
    from rich.console import Console

    watched = sys.stderr.isatty() and not as_json()
    columns = (*bars.Progress.get_default_columns(), bars.MofNCompleteColumn())
    last = time.monotonic()
    with bars.Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not watched
    ) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int, what: str = "") -> None:
            nonlocal last
            if watched:
                description = f"{title} {printable(what, 40)}".rstrip()
                bar.update(task, completed=done, total=total, description=description)
            elif time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                print_remark(f"{title}: {done:,} of {total:,}{what and ', '}{printable(what, 200)}")

        yield advance
