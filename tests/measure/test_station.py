"""Tests of the station: how processors are shared out."""

from __future__ import annotations

import os
from pathlib import Path

from kernel_archive.measure.providers import Templates
from kernel_archive.measure.station import share_processors

PLAN = Path(__file__).with_name("plan") / "plan.toml"
TEMPLATES_FOLDER = PLAN.parent / "programs" / "rehearsal"
TEMPLATES = Templates(TEMPLATES_FOLDER)


def test_processors_are_shared_out(monkeypatch):
    """Each of several recordings gets its own processors, timing apart from compiling; few are used by all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    parts = [share_processors(i, 4) for i in range(4)]
    used = [cpu for timing, others in parts for cpu in (*timing, *others)]
    assert len(used) == len(set(used))
    assert all(len(timing) == 2 and len(others) == 13 for timing, others in parts)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert share_processors() == ([0, 1], [0, 1])
