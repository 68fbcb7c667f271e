"""The paper's figures from a small copy of the published layout, against figures computed here row
by row, without the scorer.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from support.published_layout import REPEATS, SURROGATES, Published, write_published

from kernel_archive.bins import bin_of
from kernel_archive.errors import ArchiveNotFoundError, DataError
from kernel_archive.publishing.reproduce import EVAL_SET, PREDICTIONS, printed, reproduce

if TYPE_CHECKING:
    from support.fake_hub import FakeHub

CENTRES = {
    "paper": [None, math.sqrt(0.125), 2**-0.75, 2**-0.25, 2**0.25, 2**0.75, math.sqrt(8), None],
    "released": [None, 2**-0.75, 2**-0.25, 2**0.25, 2**0.75, 2**1.25, 2**1.75, None],
}
BUDGETS = (1, 5, 10, 25, 50)


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Published:
    """A copy of the published layout."""
    return write_published(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def result(published):
    """What reproduce computes from it."""
    return reproduce(published.root)


@pytest.fixture(scope="module")
def readings(result):
    """Metric, labels and choice -> reading."""
    return {(r.metric, r.labels, r.choice): r for r in result.readings}


def labelled(published, labels):
    """Row id -> (speedup, bin), and the eight centres, worked out here."""
    rows = {
        r["comparison_id"]: (
            r["aggregated_speedup"],
            bin_of(r["aggregated_speedup"]) if labels == "paper" else r["true_bin"],
        )
        for r in published.eval_set
    }
    centres = list(CENTRES["released" if labels == "released" else "paper"])
    fallback = {"paper": 0.25, "mixed": 0.25, "released": 0.5}[labels] / math.sqrt(2)
    for b, otherwise in ((1, fallback), (8, 4 * math.sqrt(2))):
        held = [s for s, y in rows.values() if y == b]
        centres[b - 1] = fmean(held) if held else otherwise
    return rows, centres


def recovered(expected, speedups):
    """Speedup recovered in %, by trying every order of tied candidates."""
    n = len(speedups)
    scores = []
    for c in BUDGETS:
        k = max(1, math.ceil(c * n / 100))
        cut = sorted(expected, reverse=True)[k - 1]
        above = [s for e, s in zip(expected, speedups, strict=True) if e > cut + 1e-12]
        tied = [s for e, s in zip(expected, speedups, strict=True) if abs(e - cut) <= 1e-12]
        picks = itertools.combinations(range(len(tied)), k - len(above))
        scores.append(
            fmean(max([*above, *(tied[i] for i in pick)]) / max(speedups) * 100 for pick in picks)
        )
    return fmean(scores)


def figures(published, surrogate, labels, predicted):
    """Mean and deviation over the repeats of each headline metric, by its definition, one row at a
    time.
    """
    rows, m = labelled(published, labels)
    packs = {r["comparison_id"]: r["pack"] for r in published.eval_set}
    out = {"macro": [], "pooled": [], "ece": [], "forecast_error": []}
    for repeat in range(REPEATS):
        expected, errors, hits = {}, [], []
        for row in (r for r in published.predictions[surrogate] if r["repeat"] == repeat):
            s, y = rows[row["comparison_id"]]
            if row["parse_failed"]:
                expected[row["comparison_id"]] = fmean(m)
                errors.append(fmean(abs(x - s) for x in m))
                continue
            p = [item["p"] for item in row["bin_probabilities"]]
            b = row["predicted_bin"] if predicted == "stated" else p.index(max(p)) + 1
            expected[row["comparison_id"]] = sum(x * c for x, c in zip(p, m, strict=True))
            errors.append(abs(m[b - 1] - s))
            hits.append((p[b - 1], b == y))
        buckets = {}
        for confidence, hit in hits:
            buckets.setdefault(min(int(10 * confidence + 1e-12), 9), []).append((confidence, hit))
        out["ece"].append(
            sum(
                len(held) / len(hits) * abs(fmean(h for _, h in held) - fmean(c for c, _ in held))
                for held in buckets.values()
            )
        )
        out["forecast_error"].append(fmean(errors))
        ids = list(rows)
        out["pooled"].append(recovered([expected[i] for i in ids], [rows[i][0] for i in ids]))
        per_task = [[i for i in ids if packs[i] == task] for task in dict.fromkeys(packs.values())]
        out["macro"].append(
            fmean(
                recovered([expected[i] for i in held], [rows[i][0] for i in held])
                for held in per_task
            )
        )
    return {name: (fmean(values), pstdev(values)) for name, values in out.items()}


@pytest.mark.parametrize("labels", ["released", "paper", "mixed"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_figures_are_those_of_the_definitions(published, readings, surrogate, labels):
    """Each figure of each forecaster under each reading is what the definitions give."""
    for predicted in ("argmax", "stated"):
        wanted = figures(published, surrogate, labels, predicted)
        for choice in ("macro", "pooled"):
            own = readings["speedup_recovered", labels, choice].figures[surrogate]
            assert own == pytest.approx(wanted[choice], abs=1e-9)
        for metric in ("ece", "forecast_error"):
            own = readings[metric, labels, predicted].figures[surrogate]
            assert own == pytest.approx(wanted[metric], abs=1e-9)


def test_hand_computed_figures(readings, result):
    """One forecaster is certain of the published bin, one always says bin 5: by hand."""
    assert readings["ece", "released", "argmax"].figures["gemini3_flash"] == (0.0, 0.0)
    recovery = readings["speedup_recovered", "released", "macro"].figures
    assert recovery["gemini3_flash"].mean == pytest.approx(100.0)
    assert recovery["random order"].mean == pytest.approx(recovery["gpt_oss_120b"].mean)
    # Of 14 speedups 10 have another bin under the paper's table: its certainty is wrong there.
    ece = readings["ece", "paper", "argmax"].figures["gemini3_flash"]
    assert ece.mean == pytest.approx(10 / 14)
    # Always bin 5, released centre 2^0.75: the error is the mean distance to it.
    speedups = (1.0, 0.2, 0.6, 0.9, 1.2, 1.71, 5.0, 1.0, 0.3, 0.8, 1.1, 1.3, 2.5, 4.0)
    by_hand = fmean(abs(2**0.75 - s) for s in speedups)
    error = readings["forecast_error", "released", "argmax"].figures["gpt_oss_120b"]
    assert error.mean == pytest.approx(by_hand)
    assert (result.rows, result.missing) == ({"cross_entropy": 7, "trimul": 7}, [])


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


def test_missing_forecasters_are_named(tmp_path):
    """What is not in the copy is listed; the rest is computed."""
    write_published(tmp_path, card=False)
    shutil.rmtree(tmp_path / PREDICTIONS / "deepseek_v4")
    result = reproduce(tmp_path)
    assert result.missing == ["deepseek_v4"]
    assert "gemini3_flash" in result.readings[0].figures


def test_wrong_folders_are_refused(tmp_path):
    """A folder that isn't there, isn't the layout, or lacks a column: one clear error each."""
    with pytest.raises(ArchiveNotFoundError, match=EVAL_SET):
        reproduce(tmp_path)
    write_published(tmp_path)
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
    """Without a folder the tables are fetched from the Hub and give the same figures; offline is
    an error.
    """
    for repository in (EVAL_SET, PREDICTIONS):
        folder = published.root / repository
        files = {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }
        hub.create(f"codezakh/{repository}", files)
    done = client.cli("reproduce", "--json")
    assert done.status == 0, done.err
    shown = json.loads(done.out)["readings"][0]["figures"]["gemini3_flash"]
    assert tuple(shown) == result.readings[0].figures["gemini3_flash"]
    hub.clear()
    shutil.rmtree(client.process.home)
    done = client.cli("reproduce")
    assert done.status == 1
    assert "there is no dataset codezakh/gpu-forecasters-eval-set" in done.err
    assert "local copy" in done.err
