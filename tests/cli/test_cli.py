"""The command line as a whole: help, lazy imports, exit statuses, errors as people and programs see them."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from kernel_archive import cli
from kernel_archive.errors import DataError, Finding


def run(*arguments, cwd=None):
    """The real program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "kernel_archive", *arguments], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def every_command():
    """Name and command of every command and subcommand."""
    context = click.Context(cli.cli)
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        yield name, command
        if isinstance(command, click.Group):
            for sub, inner in command.commands.items():
                yield f"{name} {sub}", inner


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=lambda v: v if isinstance(v, str) else "")
def test_every_command_has_help_and_documented_options(name, command):
    """No command without help, no option without help."""
    assert command.help, f"{name} is missing its help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} is missing its help"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_the_lazy_registry_says_what_the_command_says(name):
    """The one-line help that --help prints without importing is what completion in a shell shows of the command."""
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command.short_help == cli.COMMANDS[name][1]
    assert command.name == name


def test_json_is_offered_everywhere():
    """Every command that prints a result can print it as JSON."""
    silent = {"leaderboard"}
    for name, command in every_command():
        if name not in silent and "serve" not in name:
            assert any("--json" in p.opts for p in command.params), name


def test_help_imports_nothing_heavy():
    """--help loads neither polars, duckdb, datasets, pyarrow nor numpy."""
    code = (
        "import sys; sys.argv = ['kernel-archive', '--help']\n"
        "from kernel_archive.cli import main\n"
        "status = main()\n"
        "heavy = {'polars', 'duckdb', 'datasets', 'pyarrow', 'numpy', 'rich', 'torch', 'sklearn'} & sys.modules.keys()\n"
        "assert not heavy, heavy\nassert status == 0"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "build-eval" in result.stdout


def test_wrong_usage_is_status_two_with_a_hint(tmp_path):
    """A typo names the nearest command; an unknown option says so; neither has a traceback."""
    typo = run("buidl", cwd=tmp_path)
    assert typo.returncode == 2
    assert "Did you mean 'build'?" in typo.stderr
    option = run("info", "--jsn", cwd=tmp_path)
    assert option.returncode == 2
    assert "Traceback" not in typo.stderr + option.stderr


def test_a_copy_that_is_not_there_is_status_one(tmp_path):
    """A directory that an option names is data, as every named file is."""
    for name, what in (("gone", "no such directory"), ("file", "not a directory")):
        (tmp_path / "file").touch()
        result = run("build", "cuda-l1", "--source", name, cwd=tmp_path)
        assert (result.returncode, what in result.stderr) == (1, True)


def test_no_archive_is_status_one_and_says_how_to_make_one(tmp_path):
    """The message names the directory and the command that makes an archive."""
    for command in (["info"], ["audit"], ["validate"], ["show", "abcdef123456"], ["sql", "SELECT 1"]):
        result = run(*command, cwd=tmp_path)
        assert result.returncode == 1, command
        assert "kernel-archive build" in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""


def test_an_error_as_json_is_the_only_thing_on_stdout(tmp_path):
    """--json gives programs the error too."""
    result = run("info", "--json", cwd=tmp_path)
    assert result.returncode == 1
    assert json.loads(result.stdout)["error"] == "ArchiveNotFoundError"


def test_findings_are_printed_first_twenty_in_full(capsys):
    """Twenty findings, then a count; nothing of a hostile name reaches the terminal raw."""
    from kernel_archive.cli.common import report

    findings = [Finding(code="x", message="bad", file=f"\x1b[31m{i}.jsonl", line=i) for i in range(30)]
    assert report(DataError("many", findings=findings), as_json=False) == 1
    shown = capsys.readouterr().err
    assert shown.count("error: ") == 20
    assert "and 10 more" in shown
    assert "\x1b" not in shown


def test_a_bug_says_that_it_is_one(capsys, monkeypatch):
    """An exception that nobody foresaw asks for a report, and shows its traceback only when asked."""
    from kernel_archive.cli.common import report

    monkeypatch.delenv("KERNEL_ARCHIVE_TRACEBACK", raising=False)
    assert report(ZeroDivisionError("x"), as_json=False) == 1
    shown = capsys.readouterr().err
    assert "This is a bug" in shown
    assert "Traceback" not in shown


def test_a_full_disk_is_told_as_such(capsys):
    """Errors of the system have its own words and no traceback."""
    from kernel_archive.cli.common import report

    assert report(OSError(28, "No space left on device", "out/x.parquet"), as_json=False) == 1
    assert "out/x.parquet: No space left on device" in capsys.readouterr().err


def test_a_closed_pipe_is_no_fault(tmp_path):
    """`kernel-archive readers | head -1` ends quietly."""
    result = subprocess.run(
        f"{sys.executable} -m kernel_archive --help | head -1", shell=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stderr == ""
