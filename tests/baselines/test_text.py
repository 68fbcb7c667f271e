"""Nearest neighbours on tokens."""

import numpy as np
import pytest

from kernel_archive.baselines.pairs import load_asked_pairs, load_training_pairs
from kernel_archive.baselines.text import nearest, token_vectors


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
