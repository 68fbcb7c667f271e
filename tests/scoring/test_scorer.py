"""Score records: figures worked out by hand, invariances, identity, what each part holds."""

import json

import msgspec
import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split, rows_of

from kernel_archive import __version__
from kernel_archive.errors import UsageError
from kernel_archive.scoring import (
    HEADLINE,
    Forecasts,
    Split,
    compare,
    load_split,
    score,
    score_file,
)
from kernel_archive.scoring.record import METRIC_VERSION


@pytest.fixture
def small():
    """Two tasks, four rows: bins 4, 6 / 1, 8."""
    return rows_of([0.9, 1.5, 0.2, 5.0], tasks=list("ttuu"))


def test_a_record_by_hand(small):
    """Every headline figure of four forecasts, worked out on paper."""
    p = np.zeros((4, 8))
    p[0, [3, 4]] = [0.75, 0.25]  # right: bin 4, confidence 0.75
    p[1, [4, 5]] = [0.6, 0.4]  # wrong by one: bin 5, confidence 0.6
    p[2, [0, 7]] = [0.5, 0.5]  # tie: mean bin 4.5, the lower one, right: bin 1, confidence 0.5
    p[3, 0] = 1.0  # wrong: bin 1, confidence 1
    record = score(small, Forecasts.from_arrays(small, p), draws=0)
    m = {name: metric.mean for name, metric in record.metrics.items()}
    assert m["accuracy"] == 0.5
    assert m["within_one"] == 0.75
    # Buckets 7, 6, 5 and 9 hold one forecast each: |1 - 0.75|, |0 - 0.6|, |1 - 0.5|, |0 - 1|.
    assert m["ece"] == pytest.approx((0.25 + 0.6 + 0.5 + 1.0) / 4)
    # Representatives: m_1 = 0.2 and m_8 = 5 (empirical), m_4 = 2^-0.25, m_5 = 2^0.25.
    errors = [abs(2**-0.25 - 0.9), abs(2**0.25 - 1.5), 0.0, 4.8]
    assert m["forecast_error"] == pytest.approx(sum(errors) / 4)
    # Task t: S^ of a is 0.93, of b 1.19 + 0.4 * (1.68 - 1.19): b first, the best.
    # Task u: S^ of c is 2.6, of d 0.2:
    # c first, 0.2 of 5. k = 1 at every budget (of two rows, 50 % is one).
    assert m["speedup_recovered"] == pytest.approx((100 + 4) / 2)
    assert m["simple_regret"] == pytest.approx((0 + 96) / 2)
    assert m["average_precision_tenth"] == pytest.approx((1 + 1 / 2) / 2)  # d comes last
    # b against d: right order a < b: pooled order is c (2.6), b, a, d: k = 1, 1, 1, 1, 2 of four.
    assert m["speedup_recovered_pooled"] == pytest.approx((4 * 0.2 / 5 + 1.5 / 5) / 5 * 100)
    assert m["brier"] == pytest.approx((0.0625 + 0.36 + 0.25 + 1.0) / 4)
    assert m["nll"] == pytest.approx(
        (-np.log(0.75) - np.log(0.4) - np.log(0.5) + 12 * np.log(10)) / 4
    )
    assert m["crps"] == pytest.approx((0.25**2 + 0.6**2 + 7 * 0.25 + 7) / 7 / 4)
    assert record.groups["t"]["speedup_recovered"].mean == 100.0
    assert record.groups["u"]["speedup_recovered"].mean == pytest.approx(4.0)
    assert record.groups["u"]["accuracy"].mean == 0.5
    assert record.group_rows == {"t": 2, "u": 2}
    confusion = [record.confusion[row][column] for row, column in ((3, 3), (5, 4), (0, 0), (7, 0))]
    assert confusion == [1, 1, 1, 1]


def test_missing_forecasts_count_as_the_definitions_say(small):
    """Uniform in Brier, CRPS, NLL, S^; never right; the mean error."""
    p = np.eye(8)[[3, 5, 0, 7]]
    forecasts = Forecasts.from_arrays(small, p, parsed=[True, False, True, True])
    record = score(small, forecasts, draws=0)
    m = {name: metric.mean for name, metric in record.metrics.items()}
    assert m["accuracy"] == 0.75
    assert m["within_one"] == 0.75
    assert m["brier"] == pytest.approx(0.4375 / 4)
    assert m["nll"] == pytest.approx(np.log(8) / 4)
    assert m["entropy"] == pytest.approx(np.log(8) / 4)
    assert m["ece"] == 0.0
    centres = small.representatives
    expected = np.abs(centres - 1.5).mean() + abs(centres[3] - 0.9)
    assert m["forecast_error"] == pytest.approx(expected / 4)
    assert sum(map(sum, record.confusion)) == 3
    assert sum(b.count for b in record.buckets) == 3
    assert (record.forecasts.n_parsed, record.forecasts.parse_rate) == (3, 0.75)
    assert record.forecasts.coverage == 1.0


def test_nothing_parsed_is_a_record_with_holes(small):
    """Metrics of parsed rows only are not defined, and so is their interval."""
    nothing = Forecasts.from_arrays(small, np.zeros((4, 8)), parsed=np.zeros(4, bool))
    record = score(small, nothing, draws=50)
    for name in ("ece", "aurc", "confidence_monotonicity"):
        assert (record.metrics[name].mean, record.metrics[name].low) == (None, None), name
    assert record.metrics["accuracy"].mean == 0.0
    assert record.metrics["brier"].mean == pytest.approx(0.4375)
    name = "speedup_recovered"
    assert record.metrics[name].mean == pytest.approx(record.uniform[name])
    assert record.risk is None


def test_the_stated_bin_can_be_scored(small):
    """With its own confidence, which may be 0: the edge case of the first bucket."""
    p = np.eye(8)[[3, 5, 0, 7]]
    f = Forecasts.from_arrays(small, p, stated_bins=[5, 6, 0, 8])
    record = score(small, f, draws=0, predicted_bin="stated")
    assert record.metrics["accuracy"].mean == 0.75
    assert record.buckets[0].count == 1
    assert record.buckets[0].accuracy == 0.0
    assert record.metrics["ece"].mean == 0.0
    assert (record.forecasts.n_stated, record.forecasts.n_stated_differs) == (3, 1)
    assert score(small, f, draws=0).metrics["accuracy"].mean == 1.0


def test_repeats_have_mean_and_population_deviation(small):
    """Accuracy 1 and 0.5: mean 0.75, deviation 0.25 (over 2, not over 1)."""
    p = np.stack([np.eye(8)[[3, 5, 0, 7]], np.eye(8)[[3, 5, 7, 0]]])
    metric = score(small, Forecasts.from_arrays(small, p), draws=0).metrics["accuracy"]
    assert (metric.mean, metric.std, metric.repeats) == (0.75, 0.25, (1.0, 0.5))


def strip(record):
    """What must not change when names or orders do."""
    return msgspec.structs.replace(record, split=None, forecasts=None)


def test_neither_row_order_nor_repeat_order_nor_ids_matter(rng):
    """Rows shuffled, ids renamed: equal to the last bit. Repeats turned round: equal means."""
    split = make_split(rng)
    f = make_forecasts(rng, split, places=1, missing=0.1, deferred=0.2)
    first = score(split, f, draws=40)
    order = rng.permutation(len(split))
    shuffled = Split.from_arrays(
        row_ids=[f"x{split.row_ids[i]}" for i in order],
        tasks=[split.tasks[i] for i in order],
        speedups=split.speedups[order],
    )
    second = score(shuffled, f.take(order), draws=40)
    assert strip(first) == strip(second)
    names = ("parsed", "deferred", "stated_bins")
    arrays = {name: getattr(f, name)[::-1] for name in names}
    turned = Forecasts.from_arrays(split, f.probabilities[::-1], **arrays)
    third = score(split, turned, draws=40)
    for name, metric in first.metrics.items():
        assert third.metrics[name].mean == pytest.approx(metric.mean, rel=1e-12)
        assert third.metrics[name].low == pytest.approx(metric.low, rel=1e-9)


def test_a_record_names_everything_that_it_depends_on(archive, tmp_path):
    """Archive, digests, split, scheme, versions, seed, draws."""
    split = load_split(archive)
    path = tmp_path / "forecaster.jsonl"
    lines = [{"row_id": r, "probabilities": [0.125] * 8} for r in split.row_ids[:-1]]
    path.write_text("\n".join(map(json.dumps, lines)))
    record = score_file(path, archive.path, seed=9, draws=20)
    assert record.split == split.identity
    assert (record.metric_version, record.package) == (METRIC_VERSION, __version__)
    assert (record.scheme, record.relabelled, record.predicted_bin) == ("paper", False, "argmax")
    assert (record.seed, record.draws) == (9, 20)
    assert record.forecasts.name == "forecaster"
    assert record.forecasts.coverage == (len(split) - 1) / len(split)
    other = score_file(path, archive.path, bins="released", draws=0, name="named")
    assert (other.scheme, other.relabelled, other.forecasts.name) == ("released", True, "named")
    both = compare(path, path, archive.path, bins="released", draws=2)
    assert (both.scheme, both.a.name, both.split) == ("released", "forecaster", split.identity)


def test_discovery_pairs_have_their_own_headline(rng):
    """Average precision and base rate at three cutoffs; no budgets, no curve."""
    split = make_split(rng, sizes=(30, 20), split="discovery")
    f = make_forecasts(rng, split, repeats=3)
    record = score(split, f, draws=50)
    assert record.recovery is None
    assert not any(name.startswith("speedup_recovered") for name in record.metrics)
    for curve, name in zip(record.discovery, HEADLINE["discovery"], strict=True):
        metric = record.metrics[name]
        positive = split.speedups >= curve.cutoff
        assert curve.n_positive == positive.sum()
        assert curve.base_rate == positive.mean()
        assert metric.low <= metric.mean <= metric.high
        assert curve.precision[-1] >= curve.base_rate - 1e-12
        assert record.uniform[name] == pytest.approx(curve.base_rate)
    assert set(record.groups) == {"left", "right"}


def test_discovery_at_the_edge_of_a_cutoff():
    """A g exactly at it is positive; without a positive there is no figure and no curve."""
    split = rows_of([1.25, 1.0], split="discovery")
    record = score(split, Forecasts.from_arrays(split, np.eye(8)[[5, 3]]), draws=20)
    assert record.discovery[0].n_positive == 1
    assert record.metrics["average_precision_1.25"].mean == 1.0
    assert record.metrics["average_precision_1.5"].mean is None
    assert record.discovery[1].precision == ()


def test_groups_may_cut_through_tasks():
    """A group's candidate sets are what it holds of the tasks."""
    split = rows_of([0.5, 1.0, 2.0, 4.0], tasks=list("ttuu"), groups=list("xyyy"))
    record = score(split, Forecasts.from_arrays(split, np.eye(8)[split.bins - 1]), draws=20)
    x, y = record.groups["x"], record.groups["y"]
    within = ("speedup_recovered", "pair_accuracy")
    assert [x[name].mean for name in within] == [100.0, None]
    assert [y[name].mean for name in within] == [100.0, 1.0]
    assert [x["accuracy"].mean, y["accuracy"].mean] == [1.0, 1.0]


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (2,)])
def test_tiny_splits_are_scored(rng, sizes):
    """One row, one row per task, two rows."""
    split = make_split(rng, sizes=sizes)
    record = score(split, make_forecasts(rng, split, repeats=1), draws=20)
    assert record.metrics["speedup_recovered"].mean is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"draws": -1}, "negative"), ({"seed": -1}, "negative"), ({"predicted_bin": "x"}, "rule 'x'")],
)
def test_wrong_calls_are_refused(small, options, message):
    """With what can be chosen; forecasts of another split by their number of rows."""
    forecasts = Forecasts.from_arrays(small, np.full((4, 8), 0.125))
    with pytest.raises(UsageError, match=message):
        score(small, forecasts, **options)
    with pytest.raises(UsageError, match="rows of the forecasts: 4, of the split: 2"):
        score(small.take(np.arange(2)), forecasts)


def test_the_fastest_tenth_is_the_same_in_every_draw(rng):
    """A constant forecast has the base rate, and its interval lies around it."""
    speedups = rng.lognormal(size=200)
    split = Split.from_arrays(
        row_ids=[str(i) for i in range(200)], tasks=["t", "u"] * 100, speedups=speedups
    )
    constant = Forecasts.from_arrays(split, np.full((200, 8), 1 / 8))
    figure = score(split, constant, draws=500).metrics["average_precision_tenth"]
    assert figure.mean == 0.1
    assert figure.low < 0.08 < 0.1 < figure.high < 0.16
