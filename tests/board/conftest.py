"""A small archive, and boards on it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from support.boards import DRAWS, informed, write_lines
from support.small_archive import write_archive

from kernel_archive.baselines.registry import make_baseline
from kernel_archive.board import add_submission
from kernel_archive.scoring import load_split


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """An archive of two problems, 12 held-out kernels each."""
    return write_archive(tmp_path_factory.mktemp("archive"), per_search=12)


@pytest.fixture(scope="session")
def split(archive):
    """Its evaluation split."""
    return load_split(archive, "eval")


@pytest.fixture(scope="session")
def pairs(archive):
    """Its discovery split."""
    return load_split(archive, "discovery")


@pytest.fixture(scope="session")
def files(archive, split, pairs, tmp_path_factory):
    """Forecast files: name -> path."""
    folder = tmp_path_factory.mktemp("files")
    cost = {"input_tokens": 100, "output_tokens": 20, "latency_s": 1.5}
    three = np.stack([informed(split, 0.3, seed) for seed in range(3)])
    contents = {
        "uniform": (split, make_baseline("uniform", archive).probabilities, {}),
        "prior": (split, make_baseline("prior", archive).probabilities, {}),
        "good": (
            split,
            informed(split, 9.0),
            {"rationale": "it halves the loads", "input_tokens": 900},
        ),
        "fair": (split, three, cost),
        "pairs": (pairs, informed(pairs, 2.0), {}),
    }
    out = {
        name: write_lines(folder / f"{name}.jsonl", rows, p, **fields)
        for name, (rows, p, fields) in contents.items()
    }
    half = folder / "half.jsonl"
    half.write_text("".join(out["prior"].read_text().splitlines(keepends=True)[:10]))
    out["half"] = half
    return out


@pytest.fixture(scope="session")
def made_board(split, pairs, files, tmp_path_factory):
    """The board that each test gets a copy of."""
    where = tmp_path_factory.mktemp("made") / "leaderboard"
    for name in ("uniform", "prior", "good", "fair", "half"):
        add_submission(files[name], split, name=name, board=where, draws=DRAWS)
    add_submission(files["pairs"], pairs, name="good", board=where, draws=DRAWS)
    return where


@pytest.fixture
def board(made_board, tmp_path):
    """A board with five entries of the evaluation split, one partial, and one of discovery."""
    shutil.copytree(made_board, tmp_path / "leaderboard")
    return tmp_path / "leaderboard"
