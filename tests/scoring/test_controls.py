"""Controls and bounds: how they are made, that they use no label of the row they forecast."""

import gzip
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.launch_tables import with_launches
from support.made_forecasts import make_forecasts, make_split, rows_of
from support.small_archive import write_archive

from kernel_archive.ids import program_id
from kernel_archive.scoring import Forecasts, load, load_split, score
from kernel_archive.scoring.controls import best_cue, controls_of, spread_ranks
from kernel_archive.scoring.cues import CUES, EDIT_CUES, read_cues
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.scorer import control_figures
from kernel_archive.scoring.split import RowFacts, Zero
from kernel_archive.scoring.summary import score_sheets, several_sheet
from kernel_archive.splits import SPLITS


def with_cue(rng, sizes=(40, 40, 40), strength=0.8, tail=None):
    """A split with one cue that goes with speed in every task."""
    split = make_split(rng, sizes=sizes)
    z = np.log2(split.speedups)
    cue = strength * z / z.std() + np.sqrt(1 - strength**2) * rng.normal(size=len(z))
    if tail is not None:
        cue[-sizes[-1] :] *= tail
    return replace(split, row_facts=replace(split.row_facts, cues={"code_length": cue}))


def by_name(split):
    """Name -> control."""
    return {c.name: c for c in controls_of(split)}


def test_the_copula_keeps_the_frequencies():
    """Averaged over evenly spread ranks the forecasts are the frequencies again."""
    from statistics import NormalDist

    n = 4001
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    cumulative = np.array([0.0, 0.1, 0.3, 0.3, 0.6, 0.9, 1.0])
    for strength in (-0.9, -0.3, 0.0, 0.5, 0.9):
        spread = spread_ranks(scores, cumulative, strength)
        assert (np.diff(spread, axis=1) >= 0).all()
        assert spread.mean(axis=0) == pytest.approx(cumulative, abs=2e-3)
    # By hand: at strength 0.6 the row in the middle has Phi(c / 0.8) below an edge c.
    assert spread_ranks(np.zeros(1), np.full(7, NormalDist().cdf(0.4)), 0.6)[0, 0] == pytest.approx(
        NormalDist().cdf(0.5), abs=1e-5
    )


def test_a_cue_that_tells_makes_a_better_control_and_one_that_does_not_makes_none(rng):
    """The first beats the frequencies by much; the second is the frequencies, or close to them."""
    for strength, better in ((0.8, True), (0.0, False)):
        split = with_cue(rng, sizes=(80, 80, 80), strength=strength)
        figures = {c.name: c.metrics["crps"] for c in split.cached(control_figures)}
        assert (figures["code_length"] < 0.85 * figures["frequencies"]) == better
        assert figures["code_length"] < 1.03 * figures["frequencies"]


def test_no_label_makes_the_forecast_of_its_own_task(rng):
    """Other labels in one task leave a control's order there as it was."""
    split = with_cue(rng)
    turned = with_cue(np.random.default_rng(7), tail=-1.0)
    p = by_name(turned)["code_length"].forecasts.probabilities[0]
    expected = p @ np.arange(8)
    last = np.arange(80, 120)
    # In the last task the cue points the other way; the control learnt it from the others.
    assert np.corrcoef(expected[:80], np.log2(turned.speedups[:80]))[0, 1] > 0.5
    assert np.corrcoef(expected[last], np.log2(turned.speedups[last]))[0, 1] < -0.5
    lone = with_cue(rng, sizes=(50,))
    counts = np.bincount(lone.bins, minlength=9)[1:] / 50
    np.testing.assert_allclose(
        by_name(lone)["code_length"].forecasts.probabilities[0], np.tile(counts, (50, 1)), atol=1e-5
    )
    names = ("uniform", "frequencies", "code_length", "oracle_bins", "oracle_speedups")
    assert tuple(by_name(split)) == names


def test_crps_skill_is_over_the_best_control(rng):
    """0 for that control itself, 1 for the oracle, 1 - ratio for anybody."""
    split = with_cue(rng)
    name, rows = split.cached(best_cue)
    assert name == "code_length"
    for control, skill in ((name, 0.0), ("oracle_bins", 1.0)):
        record = score(split, by_name(split)[control].forecasts, draws=0)
        assert record.metrics["crps_skill"].mean == skill
    record = score(split, make_forecasts(rng, split, repeats=2), draws=200)
    assert record.metrics["crps_skill"].mean == pytest.approx(
        1 - record.metrics["crps"].mean / rows.mean()
    )
    for task, at in split.task_rows.items():
        own = record.groups[task]["crps"].mean
        assert record.groups[task]["crps_skill"].mean == pytest.approx(1 - own / rows[at].mean())
    assert record.control("crps_skill") == 0.0
    assert record.best_controls["crps"] == name


def test_a_figure_that_does_not_beat_the_best_control_is_marked(rng):
    """By its interval, in the record and in the table; the best control itself beats nothing."""
    split = with_cue(rng, sizes=(80, 80, 80))
    good = score(split, make_forecasts(rng, split, noise=0.2), draws=200)
    assert good.beats_control["crps"]
    assert good.beats_control["pair_accuracy"]
    assert not good.beats_control["ece"]  # the frequencies are perfectly calibrated
    assert not good.is_weak("ece")
    template = score(split, Forecasts.from_arrays(split, np.full((240, 8), 0.125)), draws=200)
    assert not any(template.beats_control.values())
    assert template.is_weak("crps")
    shown = {row[0]: row for row in score_sheets(template)[0].rows}
    assert shown["CRPS skill"][1].endswith("*")
    assert shown["CRPS skill"][3:5] == ["0.000", "1.000"]
    notes = score_sheets(template)[0].notes
    assert any(note.startswith("*") for note in notes)
    assert score(split, make_forecasts(rng, split), draws=0).beats_control == {}


RANKING = [name for name, metric in METRICS.items() if metric.ranks]


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_the_oracle_ranks_first_by_every_ranking(rng, kind):
    """And a forecaster that knows something above every control."""
    split = make_split(rng, sizes=(60, 60, 60), split=kind)
    knowing = [make_forecasts(rng, split, noise=noise, repeats=1) for noise in (0.3, 0.8)]
    oracle = by_name(split)["oracle_speedups"].forecasts
    records = [score(split, f, draws=0) for f in (oracle, *knowing)]
    for name in set(RANKING) & metrics_of(kind).keys():
        sign = METRICS[name].sign
        best_to_worst = [sign * record.metrics[name].mean for record in records]
        assert best_to_worst == sorted(best_to_worst), name
        controls = [c.metrics[name] for c in split.cached(control_figures) if not c.bound]
        assert best_to_worst[-1] < min(sign * value for value in controls), name
    assert several_sheet(records[::-1]).rows[0][0] == "oracle_speedups"


def test_the_surface_of_an_archives_rows(archive):
    """Every cue has a value for every row."""
    split = load_split(archive, "eval")
    assert set(split.row_facts.cues) == set(CUES)
    assert set(split.row_facts.languages) == {"triton"}
    pairs = load_split(archive, "discovery")
    assert set(pairs.row_facts.cues) == {*CUES, *EDIT_CUES}
    kernels = {r["kernel_id"]: r["speedup"] for r in archive.arrow("kernels").to_pylist()}
    rows = archive.arrow("discovery_pairs").to_pylist()
    parents = pairs.row_facts.cues["parent_speedup"]
    assert parents.tolist() == [-kernels[r["parent_kernel_id"]] for r in rows]
    assert pairs.take(np.array([3, 1])).row_facts.cues["parent_speedup"].tolist() == [
        parents[3],
        parents[1],
    ]


@pytest.mark.parametrize(
    "code", ["", "\ud800", "\x00" * 99, "[" * 5000, '"""' * 333, "/*" * 999, "#" * 9999, "é" * 99]
)
def test_no_text_stops_a_cue(code):
    """Whatever a stranger writes into a program."""
    assert all(np.isfinite(rule(code)) for _, rule in CUES.values())


def test_discovery_shortcuts_and_lift(rng):
    """The lift is over the better shortcut; by hand on eight pairs."""
    g = np.array([3.0, 2.5, 1.1, 0.9, 2.2, 0.5, 1.0, 0.7])
    parents = np.array([0.2, 0.9, 0.3, 1.5, 2.0, 1.0, 0.8, 0.4])
    changed = np.array([True, True, False, False, False, False, False, False])
    cues = {"parent_speedup": -parents, "language_change": changed.astype(float)}
    row_facts = replace(RowFacts.plain(8), cues=cues)
    split = rows_of(g, split="discovery", row_facts=row_facts)
    record = score(split, Forecasts.from_arrays(split, np.eye(8)[split.bins - 1]), draws=50)
    # By change: a and b at once (1), then e in a tie of six (3/8); by parents it is less.
    assert record.metrics["lift_1.25"].mean == pytest.approx(1 - (2 + 3 / 8) / 3)
    unknown = rows_of([3.0, 0.5], split="discovery")
    none = score(unknown, Forecasts.from_arrays(unknown, np.eye(8)[[6, 2]]), draws=10).metrics
    assert none["lift_1.25"].mean is None


def test_the_zero_of_skill_is_the_fixed_forecast(rng):
    """It has a skill of 0 and stands among the controls."""
    split = with_cue(rng)
    p = make_forecasts(rng, split, repeats=1).probabilities[0]
    fixed = replace(split, zero=Zero(name="dry-run", probabilities=p))
    record = score(fixed, Forecasts.from_arrays(split, p), draws=0)
    assert record.metrics["crps_skill"].mean == 0.0
    assert record.best_controls["crps"] == "dry_run"
    assert fixed.under("released").zero is None


def test_a_fixed_zero_is_of_these_very_rows(tmp_path, monkeypatch):
    """Of other rows, or where none is stored, there is none; withheld labels change no row."""
    monkeypatch.setattr(load, "content_path", lambda name: tmp_path / name)
    path = tmp_path / "splits/zero/1.0/eval.json.gz"
    path.parent.mkdir(parents=True)
    rows = {"b": [0, 0, 0, 1, 0, 0, 0, 0], "a": [2, 2, 0, 0, 0, 0, 0, 0]}
    stored = {"split_digest": "sha256:1", "forecast": "dry-run", "probabilities": rows}
    path.write_bytes(gzip.compress(json.dumps(stored).encode()))
    read = partial(load.read_zero, spec=SPLITS["eval"], row_ids=["a", "b"])
    assert read("sha256:1", "1.0").probabilities[:, [0, 3]].tolist() == [[0.5, 0], [0, 1]]
    assert read("sha256:2", "1.0") is None
    assert read("sha256:1", "2.0") is None
    assert read("sha256:1", "1.0-withheld").name == "dry-run"


def test_goals_are_a_bound(rng):
    """The goal knows more than a forecaster may."""
    split = with_cue(rng)
    goals = split.bins.astype(float)
    told = by_name(replace(split, row_facts=replace(split.row_facts, goals=goals)))
    assert told["goal"].bound


def test_idle_processors_are_those_of_the_gpu(tmp_path):
    """Two launches of half the processors and one of all; one block; a program not followed."""
    grids = [("one", 0, 2, 66, 1), ("one", 0, 1, 264, None), ("one", 1, 1, 1, None)]
    launches = [
        {"program_id": program_id(code), "problem": "p", "case": case, "n": n}
        | {"kind": "launch", "name": "k", "grid_x": x, "grid_y": y}
        for code, case, n, x, y in (*grids, ("two", 0, 1, 33, 2))
    ]
    archive = with_launches(write_archive(tmp_path), launches)
    codes = ["one", "two", "three"]
    for gpu, idle in (
        ("H200", [(2 * 2 + 1 + 132) / 2, 2.0, 35.25]),
        ("A100-80GB", [56.136, 1.636]),
    ):
        found = read_cues(archive, codes, ["p"] * 3, [gpu] * 3)["launch_idle"]
        assert found[: len(idle)] == pytest.approx(idle, abs=1e-3)
