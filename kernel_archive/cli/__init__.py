"""The command line: one module per group of commands, imported when one of them runs.

Exit statuses, and errors as one line or as JSON, are made here; kernel-measure uses that too.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from kernel_archive._version import __version__
from kernel_archive.cli import common
from kernel_archive.errors import Finding, KernelArchiveError, printable, suggestion
from kernel_archive.toml_files import toml_beside

_TABLES: Final = toml_beside(__file__, "commands.toml")
#: Command -> its module, and one line of help, so that ``--help`` imports no module.
COMMANDS: Final[dict[str, tuple[str, str]]] = _TABLES["commands"]
#: Command, command and option, or public name that went with 1.0 -> what to type instead.
MOVED: Final[dict[str, str]] = _TABLES["moved"]


def instead_of(*typed: str) -> str | None:
    """Say what to type instead of the first of these that is gone; ``None`` where all are here."""
    gone = next((name for name in typed if name in MOVED), None)
    return None if gone is None else f"{gone!r} is gone since 1.0. Type: {MOVED[gone]}"


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports a command's module when it runs."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, short_help = COMMANDS[cmd_name]
        command: click.Command = getattr(
            importlib.import_module(f"kernel_archive.cli.{module}"), cmd_name.replace("-", "_")
        )
        command.short_help = short_help
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        # A later word may be the value of an option.
        typed = [*args[1:2], *(word.partition("=")[0] for word in args[2:] if word[:2] == "--")]
        if gone := instead_of(name, *(f"{name} {word.partition('=')[0]}" for word in typed)):
            raise click.UsageError(gone, ctx)
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"No such command {name!r}. {suggestion(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kernel-archive")
def cli() -> None:
    """Build, audit, split, score and publish archives of measured GPU kernels.

    \b
    The shipped archive, and forecasts of yours:
      build -> template -o f.jsonl -> (fill it in) -> score f.jsonl
            -> leaderboard add f.jsonl --name ME
    Measurements of yours, and a benchmark on them:
      init FOLDER -> (read builder.toml) -> build builder.toml
            -> template -o f.jsonl -> score f.jsonl -> push

    Exit status: 0 done, 1 a file or archive is missing or at fault, 2 the command line is wrong.
    """  # noqa: D301 - click wants the character itself


def run_command(group: click.Group, arguments: list[str], name: str) -> int:
    """Run a command; return 0 when done, 1 when data is at fault, 2 for wrong usage.

    A bug shows its traceback only when KERNEL_ARCHIVE_TRACEBACK is set.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: common.print_remark(
                f"warning: {message}"
            )
            status: object = group.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        common.print_remark(text.getvalue().rstrip())
        missing = isinstance(error, click.BadParameter) and "does not exist" in error.message
        # A file that is missing is a fault of the data, not of the command line.
        status = 1 if missing else error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        common.print_remark("Stopped.")
        status = 130
    except BrokenPipeError:  # the reader of our output ended (| head)
        status = 0
    except Exception as error:  # noqa: BLE001 - the last line of defence, see report()
        if str(error) == "Query interrupted":  # DuckDB's answer to Ctrl-C
            common.print_remark("Stopped.")
            return 130
        status = report(error, as_json="--json" in arguments)
    return status if isinstance(status, int) else 0


def report(error: Exception, *, as_json: bool) -> int:
    """Show an error to the user; return the exit status."""
    status = 1
    findings: Sequence[Finding] = ()
    if isinstance(error, KernelArchiveError):
        status, message, findings = error.exit_status, str(error), error.findings
    elif isinstance(error, OSError):
        # Arrow raises OSError without errno and with everything in its text.
        place = f"{printable(str(error.filename), 300)}: " if error.filename else ""
        reason = error.strerror or printable(error, 400)
        message = f"{place}{reason}. Finished files are kept"
    elif isinstance(error, MemoryError):
        message = "out of memory. Finished files are kept"
    else:
        if os.environ.get("KERNEL_ARCHIVE_TRACEBACK"):
            traceback.print_exception(error)
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        what = f"{type(error).__name__}: {printable(error, 400)}"
        message = (
            f"internal error{where}: {what}. This is a bug: please report it "
            "with the traceback that KERNEL_ARCHIVE_TRACEBACK=1 prints"
        )
    if as_json:
        payload = {"error": type(error).__name__, "message": message, "findings": list(findings)}
        with suppress(OSError):  # stdout itself may be at fault; stderr says so below
            common.print_json(payload)
    common.print_findings(findings)
    if not findings or message != findings[0].render():
        common.print_remark(f"Error: {message}")
    return status


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 when done, 1 when data is at fault, 2 for wrong usage."""
    # Arrow's own pool gives memory back and asks for it again, at every table.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # That of Polars gives back late what is free; at once costs a tenth of the time at most.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    # Rows are many small objects without cycles: to look for cycles as often as usual is in vain.
    gc.set_threshold(100_000)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    status = run_command(cli, sys.argv[1:] if argv is None else argv, "kernel-archive")
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            click.echo(f"Error: stdout: {error.strerror}", err=True)
            status = status or 1
    return status
