"""Tests of tools/chains.py: recorded chains come back as the files that they were."""

import json
import runpy
import sys
from pathlib import Path

import chains
import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "chains.py"


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls the tool as a user does; its status, or what it says at its end, and stdout."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(TOOL), *map(str, arguments)])
        ended = None
        try:
            runpy.run_path(str(TOOL), run_name="__main__")
        except SystemExit as end:
            ended = end.code
        return ended, capsys.readouterr().out

    return run


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_shipped_chains_are_unpacked_whole(call, tmp_path, every):
    """Every program of the shipped logs, or of each eighth, is a file again, and fit in form."""
    logs = sorted((ROOT / "builders/h200-lm-2026-11/logs/agentic").iterdir())[::every]
    builder = tmp_path / "builder"
    (builder / "logs/agentic").mkdir(parents=True)
    for log in logs:
        (builder / "logs/agentic" / log.name).symlink_to(log)
    assert call("unpack", builder, tmp_path)[0] is None
    programs = sorted((tmp_path / "chains").glob("*/*/*.py"))
    assert len(programs) > 2 * len(logs) > 100
    said = json.loads(programs[0].with_suffix(".json").read_text())
    assert abs(sum(said["probabilities"]) - 1) < 0.02
    results = (programs[0].parent / "results.md").read_text()
    assert "passed, speedup" in results
    assert results.count(".py (") == len(list(programs[0].parent.glob("*.py")))
    assert call("check", *sorted((tmp_path / "chains").glob("*/*/"))) == (False, "")


def test_problem_is_shown_with_reference_cases_and_tolerance(call):
    """What an author needs, and no time of any program."""
    shown = call("problem", "swiglu")[1]
    assert "def reference(data):" in shown
    assert "{'rows': 16384, 'cols': 14336}" in shown
    assert "rtol 0.02" in shown


def test_wrong_use_is_explained(call):
    """Without arguments the tool says how it is called."""
    assert "tools/chains.py unpack" in call()[0]


def test_telling_words():
    """Words that say how fast a program is; names of functions that contain one are none."""
    code = "# Optimized: beats the baseline\n__fast_expf(x); tl.fast_dividef; use_fast_math"
    assert chains.telling_words(code) == ["Optimized", "baseline"]
