"""Tests of the commands measure, record and remeasure, on the stand-in device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cheats import NUMPY_HONEST

from kernel_measure.cli import main

PLAN = Path(__file__).parent / "plan" / "plan.toml"


@pytest.fixture
def files(tmp_path):
    """A good program and a wrong one, with a terminal escape in its message."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(NUMPY_HONEST)
    bad.write_text("raise ValueError('\\x1b[31mred')\n")
    return good, bad


STANDIN = ["--device", "standin"]
SHORT = [*STANDIN, "--set", "max_runs=5"]
CHAIN = ["record", str(PLAN), *STANDIN, "--only", "agentic/*", "--out"]


def test_measure_prints_a_verdict_per_file(files, capsys):
    """A table: verdict, speedup, bin and times; what a program says can't steer the terminal.

    A file that does not pass ends with status 1.
    """
    assert main(["measure", "rehearsal", *map(str, files), *SHORT]) == 1
    out = capsys.readouterr().out
    assert {"success", "compile_failed"} <= set(out.replace(":", " ").split())
    assert "\x1b[31m" not in out


def test_json_holds_protocol_and_environment(files, capsys):
    """With --json: the verdict, and how it was made."""
    assert main(["measure", "rehearsal", str(files[0]), *SHORT, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["results"][0]["measurement"]["outcome"] == "success"
    assert payload["measurement"]["max_runs"] == 5
    assert payload["environment"]["sandbox"]["isolation"] == "bubblewrap"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["measure", "trimull", "FILE"], "Did you mean 'trimul'"),
        (["measure", "rehearsal", "FILE"], "runs on --device standin"),
        (["measure", "trimul", "FILE", "--device", "standin"], "runs on --device cuda"),
        (["measure", "rehearsal", "FILE", *STANDIN, "--set", "max_runs"], "NAME=VALUE"),
        (["measure", "rehearsal", "FILE", *STANDIN, "--set", "max_runs=many"], "--set"),
        (["measure", "rehearsal", "FILE", *STANDIN, "--set", "max_runs=0"], "max_runs"),
        (["measure", "rehearsal", "nowhere.py", *STANDIN], "nowhere.py"),
        (["measure", "rehearsal"], "FILES"),
        ([*CHAIN, "OUT", "--share", "5/4"], "Type: taskset"),
        ([*CHAIN, "OUT", "--compile-only"], "Type: record without it"),
        (["remeasure", "--out", "OUT", "--repeat", "0"], "--repeat"),
        (["remeasure", "OUT", "--out", "OUT", *STANDIN], "no archive"),
    ],
)
def test_wrong_usage_is_said_in_a_line(files, tmp_path, capsys, arguments, text):
    """Every slip gives status 2 (a file that is missing: 1) and says which value was wrong."""
    given = [{"FILE": str(files[0]), "OUT": str(tmp_path / "out")}.get(a, a) for a in arguments]
    assert main(given) == (1 if text in ("nowhere.py", "no archive") else 2)
    err = capsys.readouterr().err
    assert text in err
    assert "Traceback" not in err


def test_record_prints_runs(tmp_path, capsys):
    """A line per run, and how many were measured; a second call finds nothing to do."""
    assert main([*CHAIN, str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "agentic/rehearsal__t_a00" in out
    assert "evaluations: 4" in out
    assert main([*CHAIN, str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 0
