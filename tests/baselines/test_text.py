"""The text model: what follows from the words is found, and nothing else changes its forecasts."""

import numpy as np
import pytest

from kernel_archive.baselines.pairs import load_asked_pairs, load_training_pairs
from kernel_archive.baselines.text import nearest, text, token_vectors
from kernel_archive.bins import assign_bins
from kernel_archive.scoring import forecasts as metrics


def test_it_learns_what_follows_from_the_text(archive):
    """Where speedup follows from tile, warps and passes, it orders programs of searches that it has
    not seen.
    """
    asked, training = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    p = text(asked, training)
    assert p.sum(axis=1) == pytest.approx(1.0)
    rows = archive.arrow("eval")
    bins = assign_bins(rows["speedup"].to_numpy())
    even = metrics.crps(probabilities=np.full((len(bins), 8), 0.125), bins=bins).mean()
    assert metrics.crps(probabilities=p, bins=bins).mean() < 0.8 * even
    problems = np.array(asked.problems)
    for problem in set(problems):
        at = problems == problem
        assert (
            np.corrcoef(p[at] @ np.arange(8), np.log2(rows["speedup"].to_numpy()[at]))[0, 1] > 0.7
        )


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_neither_order_nor_company_of_the_training_rows_matters(archive, split):
    """Turned round, the rows give the same forecasts."""
    asked, training = load_asked_pairs(archive, split), load_training_pairs(archive)
    turned = training.take(np.arange(len(training))[::-1])
    assert text(asked, turned) == pytest.approx(text(asked, training), abs=1e-5)
    assert (text(asked, training) == text(asked, training)).all()


def test_one_training_row_is_no_crash(archive):
    """Nothing can be left out: the bins alone."""
    asked, training = load_asked_pairs(archive, "eval"), load_training_pairs(archive)
    lone = training.take(np.flatnonzero(training.native(asked.split))[:1])
    assert text(asked, lone) == pytest.approx(np.full((len(asked), 8), 0.125), abs=1e-5)


def test_vectors_have_unit_length_and_empty_programs_none():
    """A program's cosine with itself is 1; a program without tokens is like nothing."""
    v = token_vectors(["import a\nx = 1", "import b\ny = 2", ""])
    assert np.linalg.norm(v, axis=1) == pytest.approx([1, 1, 0], abs=1e-6)


def test_a_known_program_is_its_own_nearest(archive):
    """Asked for training pairs themselves, the forecast leans to what was measured, far more than
    chance.
    """
    pairs = load_training_pairs(archive)
    target = load_asked_pairs(archive, "eval")
    rows = np.flatnonzero(pairs.native(target.split))[:40]
    asked = type(target)(
        split=target.split,
        scheme="paper",
        row_ids=tuple(map(str, rows)),
        problems=tuple(pairs.problems[i] for i in rows),
        gpus=("H200",) * len(rows),
        anchors=tuple(pairs.anchors[i] for i in rows),
        candidates=tuple(pairs.candidates[i] for i in rows),
    )
    p = nearest(asked, pairs)
    assert p.sum(axis=1) == pytest.approx(1.0)
    expected = (p * np.arange(1, 9)).sum(axis=1)
    assert np.corrcoef(expected, pairs.log_speedups[rows])[0, 1] > 0.5


def test_a_problem_without_training_pairs_looks_among_all(archive):
    """An unknown problem still has a forecast."""
    target = load_asked_pairs(archive, "eval")
    strange = type(target)(
        split=target.split,
        scheme="paper",
        row_ids=("x",),
        problems=("new",),
        gpus=("H200",),
        anchors=("import a",),
        candidates=("import b",),
    )
    assert nearest(strange, load_training_pairs(archive)).sum() == pytest.approx(1.0)
