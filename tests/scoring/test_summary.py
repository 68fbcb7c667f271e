"""Tables and remarks for people."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split

from kernel_archive.cli.common import print_table
from kernel_archive.scoring import Forecasts, compare, score
from kernel_archive.scoring.summary import (
    comparison_sheet,
    score_remarks,
    score_sheets,
    several_sheet,
)


def text_of(sheets):
    """All cells and notes in one text."""
    return "\n".join(
        " | ".join(row) for s in sheets for row in [[s.title], s.columns, *s.rows, s.notes]
    )


def test_a_score_has_headline_metrics_pairs_and_tasks(split, forecasts):
    """Every figure with its interval and unit; one row per metric, distance and task."""
    record = score(split, forecasts, draws=50)
    whole, pairs, groups = score_sheets(record)
    assert [row[0] for row in whole.rows] == [
        *("CRPS skill", "Close pairs", "Speedup recovered", "ECE", "Forecast error"),
        "Pair accuracy",
    ]
    assert [len(pairs.rows), len(groups.rows)] == [6, 3]
    for sheet in (whole, pairs, groups):
        assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    assert whole.columns == ["metric", "value", "95 % interval", "best control", "oracle"]
    metric = record.metrics["speedup_recovered"]
    figures = f"{metric.mean:.1f} % | {metric.low:.1f} to {metric.high:.1f}"
    assert figures in text_of([whole])
    assert "2 repeats, coverage 100.0 %" in whole.notes[0]
    assert "Lower is better: ECE, Forecast error" in whole.notes


def test_few_rows_are_said_to_be_few(rng):
    """Under fifty rows no interval is to be trusted."""
    few = make_split(rng, sizes=(3, 3))
    remarks = score_remarks(score(few, make_forecasts(rng, few), draws=50))
    assert any(remark.startswith("6 rows: too few") for remark in remarks)
    many = make_split(rng, sizes=(30, 30))
    remarks = score_remarks(score(many, make_forecasts(rng, many), draws=50))
    assert not any("too few" in remark for remark in remarks)


def test_a_split_says_how_to_read_it(split, forecasts):
    """Its headline figure is the first row and orders several; its note stands below."""

    def on(table, forecasts):
        record = score(split, forecasts, draws=0)
        searched = msgspec.structs.replace(record.split, table=table)
        return msgspec.structs.replace(record, split=searched)

    assert score_sheets(on("eval", forecasts))[0].rows[0][0] == "CRPS skill"
    whole, *_, groups = score_sheets(on("eval_search", forecasts))
    assert (whole.rows[0][0], groups.columns[2]) == ("Pair accuracy", "Pair accuracy")
    # One orders every pair and says nothing of the bins; the other knows the bins alone.
    even, bins = np.full((len(split), 8), 1 / 8), np.eye(8)[split.bins - 1]
    stated = Forecasts.from_arrays(split, even, name="s", expected_speedups=split.speedups)
    records = {
        t: [on(t, stated), on(t, Forecasts.from_arrays(split, bins, name="b"))]
        for t in ("eval", "eval_search")
    }
    firsts = [several_sheet(list(r)).rows[0][0] for r in records.values()]
    assert firsts == ["b", "s"]
    assert several_sheet(records["eval_search"]).columns[1] == "Pair accuracy"
    assert "an honest forecast has not seen that split" in text_of(
        score_sheets(on("validity", forecasts))
    )


def test_a_score_without_draws_shows_no_interval(split, forecasts):
    """A dash, not a zero."""
    row = score_sheets(score(split, forecasts, draws=0))[0].rows[0]
    assert row[2] == "-"


def test_what_a_reader_should_know_is_said(rng):
    """Stated bins, deferral, a variant split."""
    split = make_split(rng, sizes=(30, 30))
    f = make_forecasts(rng, split, deferred=0.3)
    f = replace(f, present=f.present & (rng.random(f.present.shape) < 0.9))
    text = "\n".join(score_remarks(score(split, f, draws=50)))
    words = ("variant 'arrays'", "stated bins are not")
    for part in (*words, "Deferred:", "deferred that have a distribution: 0."):
        assert part in text
    relabelled = "\n".join(score_remarks(score(split.under("released"), f, draws=0)))
    assert "computed anew under released" in relabelled


def test_worse_than_even_odds_is_said(rng):
    """A forecast that is certain of the farthest bin knows less than nothing; even odds do not."""
    split = make_split(rng)
    worst = np.eye(8)[np.where(split.bins > 4, 0, 7)]
    for probabilities, is_worse in ((worst, True), (np.full((len(split), 8), 0.125), False)):
        forecasts = Forecasts.from_arrays(split, probabilities[None])
        said = "worse than that of even odds" in "\n".join(
            score_remarks(score(split, forecasts, draws=50))
        )
        assert said is is_worse


@pytest.mark.parametrize("kind", ["eval", "close", "discovery"])
def test_several_scores_stand_side_by_side(rng, kind, capsys):
    """Best first, in at most 100 columns."""
    name = {"close": "eval_close"}.get(kind, kind)
    split = make_split(rng, sizes=(60, 60), split=name)
    sure = np.eye(8)[split.bins - 1]
    good, poor = (
        Forecasts.from_arrays(split, p, name=name)
        for name, p in (("good", sure), ("poor", sure[::-1]))
    )
    sheet = several_sheet([score(split, f, draws=50) for f in (poor, good)])
    assert [row[0] for row in sheet.rows] == ["good", "poor"]
    assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    print_table(sheet.columns, sheet.rows, title=sheet.title, notes=sheet.notes)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_a_comparison_is_a_table(rng, kind, capsys):
    """A row per metric that fits 80 columns, signs on the differences, A and B with their names."""
    split = make_split(rng, split=kind)
    a, b = make_forecasts(rng, split, name="one"), make_forecasts(rng, split, noise=3, name="two")
    comparison = compare(a, b, split, draws=50)
    sheet = comparison_sheet(comparison)
    assert len(sheet.rows) == len(comparison.differences)
    assert sheet.notes[:2] == ["A: one", "B: two"]
    assert all(row[3][0] in "+-" for row in sheet.rows)
    sides = {"a": "A", "b": "B", "neither": "-"}
    assert [row[-1] for row in sheet.rows] == [
        sides[d.better] for d in comparison.differences.values()
    ]
    print_table(sheet.columns, sheet.rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(sheet.rows) + 2  # none is wrapped
    assert max(map(len, lines)) <= 80
    if kind == "eval":
        cells = {row[0]: row[3] for row in sheet.rows}
        d = comparison.differences["speedup_recovered"]
        assert (
            cells["Speedup recovered, %"] == f"{d.difference:+.1f} ({d.low:+.1f} to {d.high:+.1f})"
        )


def test_names_reach_no_table_raw(split, forecasts):
    """A forecaster's name may hold anything."""
    f = replace(forecasts, name="\x1b[31mred")
    sheet = comparison_sheet(compare(f, forecasts, split, draws=20))
    assert "\x1b" not in text_of([sheet])
    assert msgspec.json.encode(sheet.rows)
