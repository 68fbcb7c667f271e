"""The paper's figures from a small copy of the published layout, against figures by hand."""

from __future__ import annotations

import json
import shutil
from statistics import fmean

import pyarrow.parquet as pq
import pytest
from support.fake_hub import FakeHub
from support.folders import contents

from kernel_archive.bins import bin_of
from kernel_archive.errors import ArchiveNotFoundError, DataError
from kernel_archive.publishing.reproduce import EVAL_SET, PREDICTIONS, printed, reproduce


@pytest.fixture(scope="module")
def result(published):
    """What reproduce computes from it."""
    return reproduce(published.root)


@pytest.fixture(scope="module")
def readings(result):
    """Metric, labels and choice -> reading."""
    return {(r.metric, r.labels, r.choice): r for r in result.readings}


def test_hand_computed_figures(readings, result):
    """One forecaster is certain of the published bin, one always says bin 5: by hand."""
    assert readings["ece", "released", "argmax"].figures["gemini3_flash"] == (0.0, 0.0)
    recovery = readings["speedup_recovered", "released", "macro"].figures
    assert recovery["gemini3_flash"].mean == pytest.approx(100.0)
    assert recovery["random order"].mean == pytest.approx(recovery["gpt_oss_120b"].mean)
    # Always bin 5, released centre 2^0.75: the error is the mean distance to it.
    speedups = (1.0, 0.2, 0.6, 0.9, 1.2, 1.71, 5.0, 1.0, 0.3, 0.8, 1.1, 1.3, 2.5, 4.0)
    by_hand = fmean(abs(2**0.75 - s) for s in speedups)
    error = readings["forecast_error", "released", "argmax"].figures["gpt_oss_120b"]
    assert error.mean == pytest.approx(by_hand)
    # It states no bin of its own: the stated one is the most probable one.
    stated = readings["forecast_error", "released", "stated"].figures["gpt_oss_120b"]
    assert stated == error
    assert (result.rows, result.missing) == ({"cross_entropy": 7, "trimul": 7}, [])


@pytest.mark.parametrize("labels", ["released", "paper", "mixed"])
def test_labels_and_centres_of_a_reading(published, readings, labels):
    """The error of whoever always says bin 5 is the mean distance to that bin's centre."""
    centre = {"released": 2**0.75, "paper": 2**0.25, "mixed": 2**0.25}[labels]
    error = readings["forecast_error", labels, "argmax"].figures["gpt_oss_120b"]
    distances = [abs(centre - row["aggregated_speedup"]) for row in published.eval_set]
    assert error == pytest.approx((fmean(distances), 0.0))
    # Whoever is certain of the published bin is right where the labels are the published ones.
    hits = [bin_of(r["aggregated_speedup"]) == r["true_bin"] for r in published.eval_set]
    ece = readings["ece", labels, "argmax"].figures["gemini3_flash"].mean
    assert ece == pytest.approx(1 - fmean(hits) if labels == "paper" else 0.0)


def test_the_nearest_reading_stands_first(result):
    """Readings of a metric are ordered by their mean distance from the printed means."""
    for metric in ("speedup_recovered", "ece", "forecast_error"):
        distances = [r.distance for r in result.readings if r.metric == metric]
        assert len(distances) == 6
        assert distances == sorted(distances)
    reading = result.readings[0]
    names = ("gemini3_flash", "gpt_oss_120b", "gpt_oss_20b_untrained", "deepseek_v4")
    off = [abs(reading.figures[n].mean - printed(n, reading.metric).mean) for n in names]
    assert reading.distance == pytest.approx(fmean(off))


def test_missing_forecasters_are_named(published, tmp_path):
    """What is not in the copy is listed; the rest is computed."""
    copy = shutil.copytree(published.root, tmp_path / "copy")
    shutil.rmtree(copy / PREDICTIONS / "deepseek_v4")
    result = reproduce(copy)
    assert result.missing == ["deepseek_v4"]
    assert "gemini3_flash" in result.readings[0].figures


def test_wrong_folders_are_refused(published, tmp_path):
    """A folder that isn't there, isn't the layout, or lacks a column: one clear error each."""
    with pytest.raises(ArchiveNotFoundError, match=EVAL_SET):
        reproduce(tmp_path)
    shutil.copytree(published.root, tmp_path, dirs_exist_ok=True)
    combined = tmp_path / EVAL_SET / "combined"
    for path in combined.iterdir():
        pq.write_table(pq.read_table(path).drop_columns(["true_bin"]), path)
    with pytest.raises(DataError, match="true_bin"):
        reproduce(tmp_path)
    path.write_bytes(b"PAR1 broken")
    with pytest.raises(DataError, match="cannot be read"):
        reproduce(tmp_path)
    shutil.rmtree(combined)
    with pytest.raises(DataError, match="configuration 'combined'"):
        reproduce(tmp_path)


def test_reproduce_from_the_hub(client, hub: FakeHub, published, result):
    """The Hub gives the same figures as a folder; offline is an error."""
    for repository in (EVAL_SET, PREDICTIONS):
        hub.add(f"codezakh/{repository}", contents(published.root / repository))
    done = client.cli("reproduce", "--json")
    assert done.status == 0, done.err
    shown = json.loads(done.out)["readings"][0]["figures"]["gemini3_flash"]
    assert tuple(shown) == result.readings[0].figures["gemini3_flash"]
    assert "93.12 ± 0.97" in client.cli("reproduce", str(published.root)).out
    hub.clear()
    shutil.rmtree(client.home)
    done = client.cli("reproduce")
    assert done.status == 1
    assert "fetching codezakh/gpu-forecasters-eval-set" in done.err
    assert "local copy" in done.err
