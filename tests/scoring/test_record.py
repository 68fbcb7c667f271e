"""Records as JSON."""

from dataclasses import replace

import numpy as np
import pytest

from kernel_archive.errors import DataError
from kernel_archive.scoring import read_record, score


def test_records_survive_json_and_are_the_same_bytes_again(split, forecasts):
    """Nothing of the clock, the host or hash order is in a record."""
    nothing = replace(forecasts, parsed=np.zeros_like(forecasts.parsed))  # a record with holes
    for record in (score(split, forecasts, draws=10), score(split, nothing, draws=10)):
        assert read_record(record.to_json()) == record
    assert score(split, nothing, draws=10).to_json() == record.to_json()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"[{}, {}]", b"\xff", b"[" * 100_000, b'{"metric_version": 1}']
)
def test_what_is_no_record_is_refused(data, tmp_path):
    """With a way to make one; a missing file is named as such."""
    with pytest.raises(DataError, match="not a score record"):
        read_record(data)
    with pytest.raises(DataError, match="cannot be read"):
        read_record(tmp_path / "nothing.json")
