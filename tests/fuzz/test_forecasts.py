"""A small slice of the forecast campaign; ``forecasts.run`` takes any seed and number."""

import pytest
from fuzz.forecasts import FAULTS, run


@pytest.mark.parametrize("seed", [0, 1])
def test_every_mutated_forecast_file_gets_the_right_verdict(seed):
    """Harmless changes are accepted, faults are named, damage is reported."""
    seen = run(seed, 150)
    assert seen.total() == 150
    assert seen["harmless accepted"] > 15
    assert seen["fault refused"] > 12 * len(FAULTS) / 2
    assert seen["damage refused"] > 5


def test_a_wrong_verdict_is_noticed(monkeypatch):
    """A reader that accepts everything fails the campaign with the place of the file."""
    import fuzz.forecasts

    real = fuzz.forecasts.check_forecasts
    monkeypatch.setattr(
        fuzz.forecasts,
        "check_forecasts",
        lambda path, target: real(path, target, raw_sum_bounds=(2.0, 3.0)),
    )
    with pytest.raises(AssertionError, match="seed 0, file"):
        run(0, 40)
