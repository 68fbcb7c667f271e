"""A small slice of the campaign against a hostile Hub; ``tests/fuzz/hub.py`` plays as many cases as
are asked for.
"""

from __future__ import annotations

from fuzz import hub


def test_hostile_hubs() -> None:
    """Pulls and pushes against broken answers, headers, contents and connections keep every
    promise.
    """
    seen = hub.run(seed=1, count=10)
    assert sum(seen.values()) == 10
    assert {"pull refused", "pull pulled"} <= seen.keys()
