"""Features of dry runs, and the baseline on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.launch_tables import with_launches
from support.small_archive import write_archive

from kernel_archive.baselines.blocks import BlockWork
from kernel_archive.baselines.features import PROGRAM_FEATURES
from kernel_archive.baselines.launches import (
    COSTS,
    LaunchCall,
    call_costs,
    load_launch_features,
)
from kernel_archive.baselines.registry import make_baseline
from kernel_archive.baselines.trees import _described
from kernel_archive.errors import DataError
from kernel_archive.scoring import load_split
from kernel_archive.scoring.asked import ProgramPairs


@pytest.fixture
def archive(tmp_path):
    """An archive in which more blocks go with a slower program, and nothing else says so."""
    plain = write_archive(tmp_path)
    kernels = plain.arrow("kernels", columns=["program_id", "problem", "speedup"]).to_pylist()
    launch = {"kind": "launch", "name": "k", "grid_y": 1, "grid_z": 1, "warps": 4, "stages": 3}
    launch |= {"trips": 1.0, "configurations": 0, "largest_tile": 64}
    counted = "loads stores dots reductions loops transcendentals atomics"
    launch |= dict.fromkeys(counted.split(), 1)
    return with_launches(
        plain,
        [{**launch, **row, "grid_x": round(1e6 / row.pop("speedup"))} for row in kernels],
    )


def test_features_by_hand(tmp_path):
    """One launch of 33 blocks, twice, and one operator; of equal launches the first id counts."""
    plain = write_archive(tmp_path)
    columns = ["program_id", "problem", "code"]
    key = plain.arrow("kernels", columns=columns).to_pylist()[0]
    codes = [key.pop("code")]
    launch = {**key, "kind": "launch", "name": "k", "n": 2, "grid_x": 33, "grid_y": 1, "grid_z": 1}
    launch |= {"configurations": 0, "trips": 10.0, "warps": 8}
    operator = {**key, "kind": "operator", "name": "add", "n": 1, "bytes": 1024}
    archive = with_launches(plain, [{**launch, "stages": 2}, operator])
    features = load_launch_features(archive, codes, ["H200", "A100-80GB"])
    values = features[key["program_id"], key["problem"], "H200"]
    expected = [2, 1, 2 * 132 / 33, 2, 20, 10, 33, 33, 33, 1]
    assert values[:10] == pytest.approx([math.log2(1 + x) for x in expected])
    on_other = features[key["program_id"], key["problem"], "A100-80GB"]
    assert on_other[2] == pytest.approx(math.log2(1 + 2 * 108 / 33))
    pairs = ProgramPairs(problems=(key["problem"],), gpus=("H200",), launch_features=features)
    described = _described(pairs, ("import unknown",))
    assert np.isnan(described[:, : len(values)]).all()
    assert described.shape == (1, len(values) + len(PROGRAM_FEATURES))
    many = with_launches(plain, [{**launch, "stages": 2 + i} for i in range(9)])
    (values,) = load_launch_features(many, codes, ["H200"]).values()
    assert 2 ** values[20] - 1 == pytest.approx(2)  # the stages of the first


def test_costs_by_hand():
    """Of a launch of 66 blocks of 8 warps, twice: half of the GPU, a quarter of its warps."""
    work = BlockWork(elements=1e4, sectors=3e5, waits=100, flops=1e6, reduced=5e3)
    work = work._replace(transcendentals=2e3, atomics=10, scalars=4)
    call = LaunchCall("launch", "k", 2, 4_000_000, 0, 66, 8, 100.0)
    costs = dict(zip(COSTS, call_costs(call, 132, [work._replace(waits=1e6), work]), strict=True))
    expected = {"overhead": 4e-6, "memory": 1e-6, "cache": 66 * 3e5 / 6e12 * 4, "waits": 4e-5}
    expected |= {"products": 66 * 1e6 / 2e14 * 2, "vector": 66 * 2.3e4 / 1.5e13 * 4}
    expected |= {"total": 4.4e-5, "reduced": 66 * 5e3 / 1.5e13 * 4, "atomics": 6.6e-8}
    expected |= {"transcendentals": 66 * 2e3 / 1.5e13 * 4, "scalars": 1.6e-6}
    expected |= {"elements": 6.6e5 / 1.5e13, "waits_of_block": 4e-5}
    assert costs == pytest.approx({name: 2 * seconds for name, seconds in expected.items()})
    rounds = call._replace(blocks=132 * 8 + 1)
    assert call_costs(rounds, 132, [work])[COSTS.index("waits")] == pytest.approx(2 * 2 * 4e-5)
    operator = LaunchCall("operator", "mm", 1, 8_000_000, 10**10, 0, 4, 1.0)
    costs = dict(zip(COSTS, call_costs(operator, 132), strict=True))
    assert costs["total"] == costs["products"] == pytest.approx(5e-5)
    assert costs["memory"] == pytest.approx(2e-6)


def test_the_baseline_reads_the_launches(archive):
    """Where blocks alone say how fast a program is, it orders nearly every pair."""
    forecasts = make_baseline("dry-run", archive, "eval", seed=1)
    split = load_split(archive, "eval")
    order = {row_id: i for i, row_id in enumerate(forecasts.row_ids)}
    rows = [order[row_id] for row_id in split.row_ids]
    bins = forecasts.probabilities[rows] @ np.arange(8)
    for task_rows in split.task_rows.values():
        speedups = np.log(split.speedups[task_rows])
        assert np.corrcoef(bins[task_rows], speedups)[0, 1] > 0.8


def test_without_dry_runs_it_says_what_to_run(tmp_path):
    """An archive without the table names the command that makes it."""
    archive = write_archive(tmp_path)
    with pytest.raises(DataError, match="kernel-measure dry-run"):
        make_baseline("dry-run", archive)
