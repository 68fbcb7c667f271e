"""The command line as a whole: help, lazy imports, exit statuses, errors."""

import subprocess
import sys

import click
import pytest

import kernel_archive
from kernel_archive import cli
from kernel_archive.cli import common, main


def every_command():
    """Name and command of every command and subcommand."""
    context = click.Context(cli.cli)
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        yield name, command
        for sub, inner in getattr(command, "commands", {}).items():
            yield f"{name} {sub}", inner


@pytest.mark.parametrize(
    ("name", "command"), list(every_command()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_command_has_help_options_with_help_and_json(name, command):
    """Those that print a result print it as JSON, too."""
    assert command.help, f"{name} is missing its help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} is missing its help"
    if name != "leaderboard" and "serve" not in name:
        assert any("--json" in p.opts for p in command.params), name
    if name in cli.COMMANDS:
        assert (command.name, command.short_help) == (name, cli.COMMANDS[name][1])


#: Commands -> what they load none of.
HEAVY = "polars datasets sklearn torch scipy pandas httpx"
UNLOADED = {
    "--help": f"{HEAVY} duckdb pyarrow numpy rich",
    "template -o f.jsonl --archive ARCHIVE": HEAVY,
    "score f.jsonl --draws 20 --archive ARCHIVE": HEAVY,
    "forecast --help": "inspect_ai openai",
    "forecast --model m --limit 2 --export q.jsonl --archive ARCHIVE": "inspect_ai openai",
}


def test_commands_import_nothing_that_they_do_not_need(archive, tmp_path):
    """Help and scores start fast, and the batch form needs nothing of the extra."""
    for command, names in UNLOADED.items():
        code = (
            "import sys; from kernel_archive.cli import main; status = main(sys.argv[1:]); "
            f"loaded = {set(names.split())} & sys.modules.keys(); "
            "sys.exit(f'imports {loaded}' if loaded else status)"
        )
        arguments = command.replace("ARCHIVE", str(archive)).split()
        called = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(called, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, (command, result.stderr)


@pytest.mark.parametrize("name", cli.MOVED)
def test_what_is_gone_says_what_to_type(name, capsys):
    """Commands, options and names of Python: one line with the new one; none is there today."""
    package, _, attribute = name.partition(".")
    if package == "kernel_archive":
        with pytest.raises(AttributeError) as caught:
            getattr(kernel_archive, attribute)
        error = str(caught.value)
    else:
        assert main([*name.split(), "--any", "argument"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
    assert f"{name!r} is gone since 1.0. Type: " in error
    assert name not in cli.COMMANDS


def test_a_value_like_a_name_that_is_gone_is_a_value(tmp_path, capsys):
    """A file may be called like a baseline of before."""
    nowhere = str(tmp_path / "nowhere")
    assert main(["baseline", "prior", "-o", "text", "--archive", nowhere]) == 1
    assert "is gone" not in capsys.readouterr().err


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    """A log of CI shows that work goes on, and is not flooded."""
    with click.Context(cli.cli), common.progress("Reading") as advance:
        advance(1, 2000, "a")
        monkeypatch.setattr(common, "PROGRESS_SECONDS", 0.0)
        advance(1234, 2000, "run \x1b")
    assert capsys.readouterr().err == "Reading: 1,234 of 2,000, run \\x1b\n"


def test_a_closed_pipe_is_no_fault(tmp_path):
    """`kernel-archive --help | head -1` ends quietly."""
    line = f"{sys.executable} -m kernel_archive --help | head -1"
    result = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert result.stderr == ""
