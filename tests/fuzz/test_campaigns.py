"""A small slice of each campaign; ``make fuzz`` plays as many cases as time allows."""

from __future__ import annotations

import pytest
from fuzz import builds, forecasts, logs

pytestmark = pytest.mark.slow


def test_disturbed_builds_make_the_same_archive() -> None:
    """Flipped bits in staged files, cut files and kills: the next build is as if none had been."""
    assert sum(builds.run(3, 3).values()) == 3


@pytest.mark.parametrize("seed", [0, 1])
def test_mutated_forecast_files_get_the_right_verdict(seed: int) -> None:
    """Harmless changes are accepted, damage is reported."""
    seen = forecasts.run(seed, 100)
    assert seen["harmless accepted"] + seen["damage accepted"] + seen["damage refused"] == 100
    assert seen["damage refused"] > 5


def test_a_wrong_verdict_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with other bounds fails the campaign with the place of the file."""
    real = forecasts.check_forecasts
    monkeypatch.setattr(
        forecasts, "check_forecasts", lambda *args: real(*args, raw_sum_bounds=(2.0, 3.0))
    )
    with pytest.raises(AssertionError, match="seed 0, file"):
        forecasts.run(0, 40)


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_logs(seed: int) -> None:
    """No internal error, no label that was never measured, less than a gigabyte."""
    counts = logs.run(seed, count=150)
    assert counts["cases"] == 150
    assert counts["values"] > 50
