"""The command reproduce: its output as text and JSON."""

from __future__ import annotations

import json
from functools import cache

from support.published_layout import write_published

from kernel_archive.cli import main
from kernel_archive.publishing import reproduce as module


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
