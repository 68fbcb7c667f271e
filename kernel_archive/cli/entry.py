"""Run a command line: exit statuses, errors as one line or as JSON. kernel-measure uses it too."""

from __future__ import annotations

import io
import os
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress

import click

from kernel_archive.cli import common
from kernel_archive.errors import Finding, KernelArchiveError, printable


def run_command(group: click.Group, arguments: list[str], name: str) -> int:
    """Run a command; return 0 when done, 1 when data is at fault, 2 for wrong usage.

    A bug shows its traceback only when KERNEL_ARCHIVE_TRACEBACK is set.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: common.say(f"warning: {message}")
            status: object = group.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        common.say(text.getvalue().rstrip())
        missing = isinstance(error, click.BadParameter) and "does not exist" in error.message
        # A file that is missing is a fault of the data, not of the command line.
        status = 1 if missing else error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        common.say("Stopped.")
        status = 130
    except BrokenPipeError:  # the reader of our output ended (| head)
        status = 0
    except Exception as error:  # noqa: BLE001 - the last line of defence, see report()
        if str(error) == "Query interrupted":  # DuckDB's answer to Ctrl-C
            common.say("Stopped.")
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
        reason = error.strerror or printable(str(error), 400)
        message = f"{place}{reason}. Finished files are kept"
    elif isinstance(error, MemoryError):
        message = "out of memory. Finished files are kept"
    else:
        if os.environ.get("KERNEL_ARCHIVE_TRACEBACK"):
            traceback.print_exception(error)
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        what = f"{type(error).__name__}: {printable(str(error), 400)}"
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
        common.say(f"Error: {message}")
    return status
