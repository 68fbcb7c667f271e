"""Chains for tests: programs in files, with what their author said of them."""

from __future__ import annotations

import json

__all__ = ["AUTHOR", "FACTS", "write"]

AUTHOR = {
    "author": "a01",
    "role": "held_out",
    "model": "some-model",
    "experience": "a student",
    "style": "terse",
    "language": "NumPy",
    "chains": {"rehearsal": {"goal_bin": 4}},
}
FACTS = {
    "parent": None,
    "title": "as the reference",
    "intent": "to see where it stands",
    "expected_speedup": 1.0,
    "probabilities": [0, 0, 0, 0.5, 0.5, 0, 0, 0],
}


def write(folder, number, code, **facts):
    """Program ``number`` of a chain."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "author.json").write_text(json.dumps(AUTHOR))
    (folder / f"{number:02d}.py").write_text(code)
    (folder / f"{number:02d}.json").write_text(json.dumps({**FACTS, **facts}))
