"""Tables and remarks for people."""

import msgspec
import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import Forecasts, compare, score
from kernel_archive.scoring.summary import comparison_sheet, score_remarks, score_sheets, several_sheet


def text_of(sheets):
    """All cells and notes in one text."""
    return "\n".join(" | ".join(row) for s in sheets for row in [[s.title], s.columns, *s.rows, s.notes])


def test_a_score_has_headline_budgets_and_tasks(target, forecasts):
    """Every figure with its interval and unit; one row per metric, budget and task; rows as wide as their header."""
    record = score(target, forecasts, draws=50)
    sheets = score_sheets(record)
    assert [len(s.rows) for s in sheets] == [len(record.metrics) - 5, 5, 3]
    for sheet in sheets:
        assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    text = text_of(sheets)
    metric = record.metrics["speedup_recovered"]
    assert f"{metric.mean:.1f} % | {metric.low:.1f} to {metric.high:.1f}" in text
    assert "2 repeats, coverage 100.0 %" in text


def test_a_score_without_draws_shows_no_interval(target, forecasts):
    """A dash, not a zero; one repeat has no deviation."""
    f = Forecasts.from_arrays(target, forecasts.probabilities[0])
    row = score_sheets(score(target, f, draws=0))[0].rows[0]
    assert row[2] == "-"
    assert row[3] == "-"


def test_what_a_reader_should_know_is_said(rng):
    """Missing rows, stated bins, deferral, a variant split, the other scheme."""
    target = make_target(rng, sizes=(30, 30))
    f = make_forecasts(rng, target, deferred=0.3)
    f = msgspec_free_replace(f, present=f.present & (rng.random(f.present.shape) < 0.9))
    text = "\n".join(score_remarks(score(target, f, draws=50)))
    for words in (
        "variant 'arrays'",
        "are missing and count as uniform",
        "stated bins are not",
        "Deferred:",
        "labels differ",
    ):
        assert words in text
    relabelled = "\n".join(score_remarks(score(target.under("released"), f, draws=0)))
    assert "computed anew under released" in relabelled


def msgspec_free_replace(forecasts, **changes):
    """Forecasts with some arrays changed."""
    from dataclasses import replace

    return replace(forecasts, **changes)


def test_a_conclusion_that_turns_is_said(rng):
    """Sure of the other scheme's bins: the summary says which figures depend on the scheme."""
    target = make_target(rng, sizes=(60, 60))
    f = Forecasts.from_arrays(target, np.eye(8)[target.under("released").bins - 1])
    text = "\n".join(score_remarks(score(target, f, draws=50)))
    assert "whether it beats the uniform forecast by ECE" in text
    assert "by more than the interval" in text


def test_several_scores_stand_side_by_side(rng):
    """Best first; an order that the other scheme turns is said."""
    target = make_target(rng, sizes=(60, 60))
    here = Forecasts.from_arrays(target, np.eye(8)[target.bins - 1], name="here")
    there = Forecasts.from_arrays(target, np.eye(8)[target.under("released").bins - 1], name="there")
    sheet = several_sheet([score(target, f, draws=0) for f in (there, here)])
    assert [row[0] for row in sheet.rows] == ["here", "there"]
    assert "by CRPS the order under released bins is there, here" in "\n".join(sheet.notes)


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_a_comparison_is_a_table(rng, kind):
    """A row per metric, signs on the differences, names in place of A and B."""
    target = make_target(rng, split=kind)
    a, b = make_forecasts(rng, target, name="one"), make_forecasts(rng, target, noise=3, name="two")
    comparison = compare(target, a, b, draws=50)
    sheet = comparison_sheet(comparison)
    assert len(sheet.rows) == len(comparison.differences)
    assert sheet.columns[1:3] == ["one", "two"]
    assert all(row[3][0] in "+-" for row in sheet.rows)
    assert all(row[-1] in {"one", "two", "can't tell"} for row in sheet.rows)


def test_differences_of_percentages_are_percentage_points(rng):
    """And other differences have the unit of their metric."""
    target = make_target(rng)
    a, b = make_forecasts(rng, target), make_forecasts(rng, target, noise=3)
    comparison = compare(target, a, b, draws=50, both_schemes=False)
    cells = {row[0]: row[3] for row in comparison_sheet(comparison).rows}
    d = comparison.differences["speedup_recovered"].difference
    assert cells["Speedup recovered"] == f"{d:+.1f} pp"
    assert cells["Forecast error"].endswith("x")
    assert "%" not in "".join(cells.values())


def test_the_note_names_the_metrics_on_which_interval_and_test_disagree(rng, target):
    """Both ways round, once for all; none where they agree."""
    made = compare(target, make_forecasts(rng, target), make_forecasts(rng, target), draws=20, both_schemes=False)

    def notes(**changes):
        table = {
            name: msgspec.structs.replace(d, low=-1.0, high=1.0, better="neither")
            for name, d in made.differences.items()
        }
        for name, change in changes.items():
            table[name] = msgspec.structs.replace(table[name], **change)
        return [n for n in comparison_sheet(msgspec.structs.replace(made, differences=table)).notes if "disagree" in n]

    assert notes() == []
    assert notes(crps={"low": 0.1, "better": "a"}, brier={"low": None, "high": None}) == []
    (note,) = notes(crps={"low": 0.1}, brier={"better": "b"}, nll={"high": -0.1})
    assert ": Brier, CRPS, NLL. The test decides" in note


def test_the_table_says_what_uniform_is_and_the_deferral_what_it_covers(rng):
    """One sentence each."""
    target = make_target(rng)
    record = score(target, make_forecasts(rng, target, deferred=0.3), draws=0)
    assert "gives each of the eight bins 1/8" in text_of(score_sheets(record)[:1])
    (line,) = [remark for remark in score_remarks(record) if remark.startswith("Deferred:")]
    assert "of the forecasts; the tables hold all of them. On those not deferred alone: accuracy" in line
    assert f"on the {record.deferral.n_deferred_parsed} deferred that have a distribution: 0." in line


def test_names_reach_no_table_raw(target, forecasts):
    """A forecaster's name may hold anything; the remarks and tables that carry it are printed printable."""
    f = msgspec_free_replace(forecasts, name="\x1b[31mred")
    sheet = comparison_sheet(compare(target, f, forecasts, draws=20))
    assert "\x1b" not in text_of([sheet])
    assert msgspec.json.encode(sheet.rows)
