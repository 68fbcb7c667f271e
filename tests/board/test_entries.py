"""Entries read and scored anew."""

import numpy as np
import pytest
from support.boards import DRAWS

from kernel_archive.board import entries as module
from kernel_archive.board.entries import RATIONALE_CHARACTERS, ScoringTerms, evaluate
from kernel_archive.board.store import add_submission
from kernel_archive.board.submissions import Identity
from kernel_archive.scoring import read_record
from kernel_archive.scoring.metrics import COMPARED


@pytest.fixture
def evaluated(archive, target, board):
    """Evaluates a submission of the board."""
    rows = {Identity.of(target).rows: None}
    terms = ScoringTerms(archive=archive.path, splits=rows, draws=DRAWS, seed=0)
    return lambda name, where=board: evaluate(where / "submissions" / name, terms)


def test_a_score_and_its_draws_are_those_that_were_stored(evaluated, board):
    """The record is the stored one, and its interval that of the draws."""
    entry = evaluated("fair")
    assert entry.record == read_record(board / "submissions/fair/score.json")
    crps = entry.record.metrics["crps"]
    ends = np.quantile(entry.draws["crps"], (0.025, 0.975))
    assert ends == pytest.approx((crps.low, crps.high))
    assert set(entry.draws) == set(COMPARED["eval"])


def test_what_is_shown_is_what_was_forecast(evaluated, target):
    """Masses, states and rationales of a complete, a three-repeat and a partial entry."""
    fair, good, half = map(evaluated, ("fair", "good", "half"))
    n = len(target)
    assert fair.masses.shape == (3, n, 8)
    assert abs(fair.masses.astype(int).sum(axis=-1) - 255).max() <= 4
    assert set(good.rationales) == set(range(n))
    assert good.rationales[0] == "it halves the loads"
    assert (half.states > 0).sum() == 10
    assert ((half.predicted == 0) == (half.states == 0)).all()


def test_long_rationales_are_cut(tmp_path, target, files, evaluated):
    """Five megabytes of reasons don't reach the page."""
    path = tmp_path / "f.jsonl"
    path.write_text(files["good"].read_text().replace("it halves the loads", "x" * 100_000))
    add_submission(path, target, name="x", board=tmp_path / "b", draws=DRAWS)
    assert len(evaluated("x", tmp_path / "b").rationales[0]) == RATIONALE_CHARACTERS + 1


def test_an_error_of_ours_costs_one_entry(evaluated, monkeypatch):
    """A fault that reading one submission brings to light is a finding of it."""

    def failing(*_, **__):
        raise ZeroDivisionError("nobody thought of that")

    monkeypatch.setattr(module, "score_with_draws", failing)
    assert "ZeroDivisionError: nobody thought of that" in evaluated("fair")[0].message
