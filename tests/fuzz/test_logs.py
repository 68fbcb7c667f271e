"""A small slice of the mutations of logs; ``tests/fuzz/logs.py`` makes as many as are asked for."""

from __future__ import annotations

import pytest
from fuzz import logs


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_logs(seed: int) -> None:
    """No internal error, no label that was never measured, less than a gigabyte."""
    counts = logs.run(seed, count=150)
    assert counts["cases"] == 150
    assert counts["values"] > 50
