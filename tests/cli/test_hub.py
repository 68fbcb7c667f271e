"""The commands push, pull and reproduce: options, help, and output as text and JSON."""

from __future__ import annotations

import json
from functools import cache

import pytest
from support.published_layout import write_published

from kernel_archive.cli import main
from kernel_archive.publishing import reproduce as module


@pytest.mark.parametrize(
    "arguments", [["push"], ["pull"], ["push", "a/b", "--private=yes"], ["pull", "x y"]]
)
def test_wrong_usage_is_status_2(arguments, capsys, tmp_path, monkeypatch):
    """Missing arguments, wrong options and impossible names end with status 2."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_push_of_nothing(capsys, tmp_path, monkeypatch):
    """Without an archive in the directory, push says so and how to make one."""
    monkeypatch.chdir(tmp_path)
    assert main(["push", "a/b", "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert out["error"] == "ArchiveNotFoundError"
    assert "kernel-archive build" in out["message"]


def test_reproduce_as_json_and_text(capsys, tmp_path, monkeypatch):
    """Reproduce prints tables, or everything that it computed as JSON."""
    write_published(tmp_path)
    monkeypatch.setattr(module, "reproduce", cache(module.reproduce))
    assert main(["reproduce", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["readings"]) == 3 * 6
    assert main(["reproduce", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "93.12 ± 0.97" in text
    assert main(["reproduce", str(tmp_path / "nowhere")]) == 1
    assert "no folder" in capsys.readouterr().err
