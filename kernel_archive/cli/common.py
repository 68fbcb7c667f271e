"""What every command shares: options, output as text or JSON, tables, progress, and how an error is shown."""

from __future__ import annotations

import difflib
import io
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from kernel_archive.errors import KernelArchiveError, printable
from kernel_archive.splits import FORECAST_SPLITS, REPLAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kernel_archive.archive.build import Advance
    from kernel_archive.errors import Finding


def options(*listed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which the help shows them."""

    def add(command: Any) -> Any:
        for option in reversed(listed):
            command = option(command)
        return command

    return add


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option whose help shows its default."""
    return click.option(*names, show_default=True, **settings)


class Choice(click.Choice[str]):
    """A choice whose error also says which one was meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """All choices, and the nearest one."""
        near = difflib.get_close_matches(str(value), [str(choice) for choice in self.choices], n=1)
        message = super().get_invalid_choice_message(value, ctx)
        return f"{message} Did you mean {near[0]!r}?" if near else message


#: Types that options of several commands have.
FILE: Final = click.Path(dir_okay=False)
FOLDER: Final = click.Path(file_okay=False)
SCHEME: Final = Choice(["paper", "released"])
JOBS: Final = click.IntRange(1, 256)
FROM_0: Final = click.IntRange(min=0)
FROM_1: Final = click.IntRange(min=1)


def _keep_json(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    ctx.meta[__name__] = asked


def as_json() -> bool:
    """Whether the command that runs was called with ``--json``."""
    return bool(click.get_current_context().meta.get(__name__))


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print the result as JSON, and nothing else, on stdout.",
)
archive_option = option(
    "--archive",
    "archive_path",
    type=FOLDER,
    help="Archive directory.  [default: gpu-forecasters/kernels, else the only one here]",
)
split_option = option(
    "--split",
    type=Choice([*FORECAST_SPLITS, REPLAY.name]),
    default="eval",
    help="Rows to forecast; replay: those of the recorded held-out searches.",
)
bins_option = option(
    "--bins",
    type=SCHEME,
    help="Bin scheme to score under; labels are computed anew when it is another.  [default: the split's own]",
)
labels_option = option("--labels", type=FOLDER, help="Folder with the labels, where they are withheld.")
output_option = option("-o", "--output", type=FILE, help="File to write.  [default: stdout]")
engine_option = option(
    "--engine",
    type=Choice(["local", "dask"]),
    default="local",
    help="What spreads the work: processes of this machine, or Dask.",
)
scheduler_option = option(
    "--scheduler", metavar="ADDRESS", help="A running Dask scheduler.  [default: workers on this machine]"
)
force_option = option("--force", is_flag=True, help="Overwrite the file.")
archive_argument = click.argument("archive_path", metavar="[DIR]", type=click.Path(), required=False)

#: So many findings are printed in full; the rest is counted. ``--json`` always has all that were kept.
SHOWN_FINDINGS = 20
#: Columns of a table in a pipe, at most.
MAX_WIDTH = 120
#: A longer line of text is cut.
MAX_LINE = 10_000


def _safe(message: str) -> str:
    """Text for a terminal: lines kept, every other control shown instead of sent."""
    return "\n".join(printable(line, MAX_LINE) for line in message.split("\n"))


def say(message: str = "") -> None:
    """Text for people on stderr: progress, remarks, warnings. Nothing in it reaches a terminal as a control."""
    # Where nothing can be written there is nobody to tell.
    with suppress(OSError):
        click.echo(_safe(message), err=True)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning of this package or of a library as one line; takes the place of ``warnings.showwarning``."""
    say(f"warning: {message}")


def tell(message: str = "") -> None:
    """Text for people on stdout: a result. Nothing in it reaches a terminal as a control."""
    click.echo(_safe(message))


def _other_builtin(item: Any) -> Any:
    return item.tolist() if hasattr(item, "tolist") else str(item)


def _print_json(payload: Any) -> None:
    """A value as plain JSON types; numpy scalars and arrays and msgspec structs included, non-finite floats as null."""
    import json

    import msgspec

    plain = msgspec.json.decode(msgspec.json.encode(payload, enc_hook=_other_builtin))
    click.echo(json.dumps(plain, indent=1, ensure_ascii=True))


def emit(payload: Any, text: Callable[[], None] | str) -> None:
    """Print a command's result: as JSON on stdout where that was asked for, else as text. Either may be made only then."""
    if as_json():
        _print_json(payload() if callable(payload) else payload)
    elif callable(text):
        text()
    else:
        tell(text)


def emit_lines(facts: dict[str, Any], data: bytes | None, done: str) -> None:
    """Print what a command made: the lines themselves, which ``--json`` adds to the facts, or what was done with them."""
    if data is None:
        emit(facts, done)
    else:
        emit(
            lambda: facts | {"lines": [line.decode() for line in data.splitlines()]}, lambda: click.echo(data, nl=False)
        )


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    left: int = 1,
    notes: Sequence[str] = (),
) -> None:
    """A table on stdout: the first ``left`` columns left-aligned, the others right-aligned.

    In a terminal it fits the width, in a pipe 120 columns: what is longer goes on in the next line, and nothing is cut. Cells are made printable: no escape reaches a terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = Console(file=None if terminal else text, width=None if terminal else MAX_WIDTH, highlight=False)
    table = Table(
        title=None if title is None else Text(printable(title, 2000)),  # a name in it is neither escape nor mark-up
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for i, name in enumerate(columns):
        table.add_column(Text(printable(name, 2000)), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell), 2000)) for cell in row))
    console.print(table)
    for note in notes:
        console.print(Text(printable(note, 2000)))
    if not terminal:
        click.echo("\n".join(line.rstrip() for line in text.getvalue().split("\n")).strip("\n"))


def print_items(items: Iterable[Any], columns: Mapping[str, Callable[[Any], object]], **how: Any) -> None:
    """A table on stdout with a row for every item: by column what it shows of one. The rest as in :func:`print_table`."""
    print_table(list(columns), [[shown(item) for shown in columns.values()] for item in items], **how)


def print_findings(findings: Sequence[Finding], *, total: int | None = None) -> None:
    """Findings on stderr, one a line, the first twenty in full and the rest counted."""
    for finding in findings[:SHOWN_FINDINGS]:
        say(f"{finding.severity}: {finding.render()}")
    rest = (total if total is not None else len(findings)) - min(len(findings), SHOWN_FINDINGS)
    if rest > 0:
        say(f"... and {rest} more (all of them with --json)")


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress bar on stderr when that is a terminal and the result is text, else nothing."""
    if as_json() or not sys.stderr.isatty():
        yield lambda _done, _total, _what="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int, what: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {printable(what, 40)}".rstrip())

        yield advance


def report(error: Exception, *, as_json: bool) -> int:
    """Show an error as its user should see it; the exit status."""
    status = 1
    findings: Sequence[Finding] = ()
    if isinstance(error, KernelArchiveError):
        status, message, findings = error.exit_status, str(error), error.findings
    elif isinstance(error, OSError):
        # Arrow raises OSError without errno and with the whole story in its text.
        place = f"{printable(str(error.filename), 300)}: " if error.filename else ""
        message = f"{place}{error.strerror or printable(str(error), 400)}. Nothing that was complete is lost"
    elif isinstance(error, MemoryError):
        message = "out of memory. Nothing that was complete is lost"
    else:
        if os.environ.get("KERNEL_ARCHIVE_TRACEBACK"):
            traceback.print_exception(error)
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        message = (
            f"internal error{where}: {type(error).__name__}: {printable(str(error), 400)}. This is a bug: please report it "
            "with the traceback that KERNEL_ARCHIVE_TRACEBACK=1 prints"
        )
    if as_json:
        # Where stdout itself is at fault (the disk is full), stderr still says so.
        with suppress(OSError):
            _print_json({"error": type(error).__name__, "message": message, "findings": list(findings)})
    print_findings(findings)
    if not findings or message != findings[0].render():
        say(f"Error: {message}")
    return status
