"""Entries kept between builds: taken when nothing changed, and never from a stranger."""

import functools
import shutil

import numpy as np
import pytest
from support.boards import DRAWS

from kernel_archive.board import build as build_module
from kernel_archive.board import build_board, cache


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own for the key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "_user_key", functools.cache(cache._user_key.__wrapped__))
    return tmp_path / "home"


@pytest.fixture
def scored(monkeypatch):
    """The submissions that builds score anew."""
    names = []
    evaluate = build_module.evaluate

    def spy(folder, terms):
        names.append(folder.name)
        return evaluate(folder, terms)

    monkeypatch.setattr(build_module, "evaluate", spy)
    return names


def build(archive, board, **options):
    """Build in this process; return what is published."""
    build_board(archive, board, **({"draws": DRAWS, "jobs": 1} | options))
    return [(board / name).read_bytes() for name in ("standings.json", "index.html")]


def test_unchanged_entries_are_not_scored_again(archive, board, scored, home):
    """The same bytes without scoring; a new entry alone is scored, an old one's file goes."""
    first = build(archive, board)
    assert sorted(scored) == ["fair", "good", "good-discovery", "half", "prior", "uniform"]
    assert build(archive, board) == first
    assert len(scored) == 6
    assert (home / "kernel-archive/board.key").stat().st_mode & 0o077 == 0
    shutil.move(board / "submissions/fair", board / "submissions/fairer")
    build(archive, board)
    assert len(scored) == 6  # the folder's name changes no figure
    shutil.rmtree(board / "submissions/fairer")
    build(archive, board)
    assert len(list((board / "cache").glob("[0-9a-f]*"))) == 5


@pytest.mark.parametrize("options", [{"seed": 1}, {"draws": DRAWS + 1}, {"scheme": "released"}])
def test_other_terms_are_other_scores(archive, board, scored, options):
    """Seed, draws and scheme are part of what is kept."""
    build(archive, board)
    build(archive, board, **options)
    assert len(scored) == 12


def test_other_code_is_another_score(archive, board, scored, monkeypatch):
    """A change of the scorer within a version is seen."""
    build(archive, board)
    monkeypatch.setattr(cache, "_code_digest", lambda: "other")
    build(archive, board)
    assert len(scored) == 12


def test_a_strangers_cache_is_not_read(archive, board, scored, monkeypatch):
    """Sealed with another key, changed, copied to another name, or a link: scored anew."""
    first = build(archive, board)
    monkeypatch.setattr(cache, "_user_key", lambda: b"x" * 32)
    assert build(archive, board) == first
    assert len(scored) == 12
    one, two, three, *_ = sorted((board / "cache").glob("[0-9a-f]*"))
    data = bytearray(one.read_bytes())
    data[-30] ^= 1
    one.write_bytes(data)
    two.write_bytes(three.read_bytes())
    three.rename(board / "elsewhere")
    three.symlink_to(board / "elsewhere")
    assert build(archive, board) == first
    assert len(scored) == 15


def test_what_is_kept_comes_back_whole(archive, board):
    """Draws and what the page shows are those that were kept."""
    fresh = build_board(archive, board, draws=DRAWS, jobs=1).boards[0].entries[0].evaluated
    kept = build_board(archive, board, draws=DRAWS, jobs=1).boards[0].entries[0].evaluated
    assert (kept.record, kept.rationales, kept.replay) == (
        fresh.record,
        fresh.rationales,
        fresh.replay,
    )
    assert all(np.array_equal(kept.draws[name], fresh.draws[name]) for name in fresh.draws)
    assert np.array_equal(kept.shown.masses, fresh.shown.masses)
