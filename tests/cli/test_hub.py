"""The commands push, pull, eval-results and reproduce: options, help, and output as text and JSON."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from support.archives import make_archive, six_tasks
from support.published_layout import write_published

from kernel_archive.archive.open import open_archive
from kernel_archive.cli import cli, main
from kernel_archive.cli.hub import eval_results, pull, push, reproduce
from kernel_archive.publishing import reproduce as module
from kernel_archive.scoring import Forecasts, load_target, score
from kernel_archive.selection.make import make_splits


@pytest.mark.parametrize("command", [push, pull, eval_results, reproduce])
def test_every_option_is_explained(command):
    """Every option of the commands has a help text, and the command a description."""
    assert command.help
    assert command.short_help
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, parameter.name


@pytest.mark.parametrize("name", ["push", "pull", "eval-results", "reproduce"])
def test_commands_are_registered(name):
    """The commands are found by name and show their help."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output


@pytest.mark.parametrize("arguments", [["push"], ["pull"], ["push", "a/b", "--private=yes"], ["pull", "x y"]])
def test_wrong_usage_is_status_2(arguments, capsys, tmp_path, monkeypatch):
    """A missing argument, a wrong option and an impossible name end with status 2 and one message."""
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


def test_eval_results_from_a_score_file(capsys, tmp_path):
    """A score record becomes the Hub's YAML on stdout or in a file; another file is refused."""
    archive = make_archive(tmp_path / "archive", *six_tasks())
    make_splits(archive, ["eval"])
    target = load_target(open_archive(archive))
    p = np.full((len(target), 8), 1 / 8)
    record = score(target, Forecasts.from_arrays(target, p), draws=0)
    path = tmp_path / "score.json"
    path.write_bytes(record.to_json())
    assert main(["eval-results", str(path), "--dataset", "a/b"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert {e["dataset"]["id"] for e in printed} == {"a/b"}
    out = tmp_path / ".eval_results" / "kernels.yaml"
    assert main(["eval-results", str(path), "--dataset", "a/b", "-o", str(out)]) == 0
    assert yaml.safe_load(out.read_text()) == printed
    capsys.readouterr()
    path.write_text("{}")
    assert main(["eval-results", str(path)]) == 1
    assert "not a score record" in capsys.readouterr().err


def test_reproduce_as_json_and_text(capsys, tmp_path, monkeypatch):
    """Reproduce prints tables, or everything that it computed as JSON."""
    write_published(tmp_path)
    monkeypatch.setattr(module, "reproduce", cache(module.reproduce))  # once is enough to show it in two ways
    assert main(["reproduce", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["figures"]) == 7 * 3 * 6
    assert main(["reproduce", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "93.12 ± 0.97" in text
    assert main(["reproduce", str(tmp_path / "nowhere")]) == 1
    assert "no folder" in capsys.readouterr().err
