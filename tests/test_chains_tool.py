"""Tests of tools/chains.py: recorded chains come back as the files that they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import chains

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "chains.py"


def call(*arguments):
    """The tool, as a user calls it."""
    return subprocess.run(
        [sys.executable, TOOL, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_shipped_chains_are_unpacked_whole(tmp_path):
    """Every program of the shipped builder is a file again, and fit in form."""
    done = call("unpack", ROOT / "builders" / "h200-lm-2026-11", tmp_path)
    assert done.returncode == 0, done.stderr
    programs = sorted((tmp_path / "chains").glob("*/*/*.py"))
    assert len(programs) > 500
    said = json.loads(programs[0].with_suffix(".json").read_text())
    assert abs(sum(said["probabilities"]) - 1) < 0.02
    results = (programs[0].parent / "results.md").read_text()
    assert "passed, speedup" in results
    assert results.count(".py (") == len(list(programs[0].parent.glob("*.py")))
    checked = call("check", *sorted((tmp_path / "chains").glob("*/*/")))
    assert (checked.returncode, checked.stdout) == (0, "")


def test_problem_is_shown_with_reference_cases_and_tolerance():
    """What an author needs, and no time of any program."""
    shown = call("problem", "swiglu").stdout
    assert "def reference(data):" in shown
    assert "{'rows': 16384, 'cols': 14336}" in shown
    assert "rtol 0.02" in shown


def test_wrong_use_is_explained():
    """Without arguments the tool says how it is called."""
    assert "tools/chains.py unpack" in call().stderr


def test_telling_words():
    """Words that say how fast a program is; names of functions that contain one are none."""
    code = "# Optimized: beats the baseline\n__fast_expf(x); tl.fast_dividef; use_fast_math"
    assert chains.telling_words(code) == ["Optimized", "baseline"]
