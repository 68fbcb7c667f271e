"""Baselines by name, and the files they write."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest

from kernel_archive.baselines import BASELINES, forecast_lines, make_baseline, write_forecasts
from kernel_archive.baselines import trees as trees_module
from kernel_archive.errors import TargetExistsError, UsageError


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch):
    """Fewer trees, for speed."""
    monkeypatch.setattr(trees_module, "N_TREES", 10)


@pytest.mark.parametrize("split", ["eval", "discovery"])
@pytest.mark.parametrize("name", [n for n, b in BASELINES.items() if not b.reads_launches])
def test_every_baseline_forecasts_every_row(archive, name, split):
    """Eight probabilities that sum to 1 for every row of both splits."""
    made = make_baseline(name, archive, split)
    n = archive.manifest.splits["eval" if split == "eval" else "discovery_pairs"].rows
    assert made.probabilities.shape == (n, 8)
    assert made.probabilities.sum(axis=1) == pytest.approx(1.0)
    assert np.isfinite(made.probabilities).all()
    assert (made.n_training > 0) == BASELINES[name].learns


def test_unknown_name_lists_the_known(archive):
    """A typo is answered with the nearest name, anything else with the list."""
    with pytest.raises(UsageError, match="Did you mean 'prior'"):
        make_baseline("prio", archive)
    with pytest.raises(UsageError, match="uniform, prior, trees"):
        make_baseline("zzz", archive)
    with pytest.raises(UsageError, match="boosted-order has been replaced by trees"):
        make_baseline("boosted-order", archive)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_files_hold_the_same_lines_whatever_the_compression(archive, tmp_path, suffix):
    """Plain, gzip and zstd by the suffix; same bytes for the same archive and seed."""
    made = make_baseline("prior", archive)
    path = tmp_path / f"f.jsonl{suffix}"
    write_forecasts(made, path)
    first = path.read_bytes()
    write_forecasts(make_baseline("prior", archive), path, force=True)
    assert path.read_bytes() == first
    plain = {
        "": lambda b: b,
        ".gz": gzip.decompress,
        ".zst": lambda b: pa.input_stream(pa.BufferReader(b), compression="zstd").read(),
    }
    lines = [json.loads(line) for line in plain[suffix](first).splitlines()]
    assert [line["row_id"] for line in lines] == list(made.row_ids)
    assert np.array([line["probabilities"] for line in lines]) == pytest.approx(
        made.probabilities, abs=1e-6
    )
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_kept_unless_forced(archive, tmp_path):
    """Nothing is overwritten by accident."""
    made = make_baseline("uniform", archive)
    path = tmp_path / "f.jsonl"
    path.write_text("old")
    with pytest.raises(TargetExistsError, match="--force"):
        write_forecasts(made, path)
    assert path.read_text() == "old"
    write_forecasts(made, path, force=True)
    assert path.read_text().startswith('{"row_id"')


def test_lines_are_ordinary_forecast_lines(archive):
    """Row id, repeat and eight probabilities, nothing else."""
    line = json.loads(next(iter(forecast_lines(make_baseline("prior", archive)))))
    assert set(line) == {"row_id", "repeat", "probabilities"}
    assert len(line["probabilities"]) == 8
