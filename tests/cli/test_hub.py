"""The command reproduce: its output as text and JSON."""

from __future__ import annotations

import json
from functools import cache

from support.published_layout import write_published

from kernel_archive.publishing import reproduce as module


def test_reproduce_as_json_and_text(run, tmp_path, monkeypatch):
    """Reproduce prints tables, or everything that it computed as JSON."""
    write_published(tmp_path)
    monkeypatch.setattr(module, "reproduce", cache(module.reproduce))
    assert len(json.loads(run("reproduce", tmp_path, "--json")[1])["readings"]) == 3 * 6
    assert "93.12 ± 0.97" in run("reproduce", tmp_path)[1]
    status, _, err = run("reproduce", tmp_path / "nowhere")
    assert status == 1
    assert "no folder" in err
