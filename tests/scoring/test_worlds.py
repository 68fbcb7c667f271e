"""Recorded searches as worlds."""

import numpy as np
import pytest
from support.archives import Run, Search, make_archive, program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError
from kernel_archive.scoring.replay import load_worlds, replay_texts


def chain(tmp_path):
    """Two authors of one problem: x -> y (failed) -> z, and w; a search over the same problem that
    learns; another problem.
    """
    make_archive(
        tmp_path / "a",
        [
            Search("s/1", "trimul", method="agentic"),
            Search("s/2", "trimul", method="agentic"),
            Search("s/3", "trimul", role="training", method="agentic"),
            Search("s/4", "fp8_quant", method="agentic"),
        ],
        [
            Run("s/1", program("x"), 2.0),
            Run("s/1", program("y"), None, parent="n0"),
            Run("s/1", program("z"), 3.0, parent="n1"),
            Run("s/2", program("w"), 0.5),
            Run("s/2", program("x"), 2.0, parent="n0"),
            Run("s/3", program("t"), 9.0),
            Run("s/4", program("q"), 1.5),
        ],
    )
    return open_archive(tmp_path / "a")


def test_chains_of_a_problem_are_one_world_below_the_reference(tmp_path):
    """Every author starts anew from the reference; a program that two of them had is there once;
    failures have no speedup.
    """
    worlds = load_worlds(chain(tmp_path))
    assert [w.name.split()[0] for w in worlds.worlds] == ["fp8_quant", "trimul"]
    trimul = worlds.worlds[1]
    assert trimul.parents == [-1, 0, 1, 2, 0]
    np.testing.assert_array_equal(trimul.speedups, [1.0, 2.0, np.nan, 3.0, 0.5])
    assert trimul.rows[0] == -1
    assert len(worlds.target.row_ids) == 5
    assert 9.0 not in worlds.target.speedups
    texts = dict(
        zip(worlds.target.row_ids, replay_texts(chain(tmp_path / "again"), worlds), strict=True)
    )
    assert texts[worlds.target.row_ids[trimul.rows[1]]][1] == program("x")
    assert all("def reference" in reference for reference, _ in texts.values())


def test_natural_searches_come_first(tmp_path):
    """Without natural ones others are replayed; training searches and bin filling never are."""
    searches = [
        Search("t/1", "trimul", role="training"),
        Search("b/1", "trimul", method="bin_filling"),
    ]
    runs = [Run(s.search_id, program(s.search_id), 2.0) for s in searches]
    make_archive(tmp_path / "none", searches, runs)
    with pytest.raises(UsageError, match="no held-out searches to replay"):
        load_worlds(open_archive(tmp_path / "none"))
    more = Search("h/1", "trimul", method="agentic")
    make_archive(tmp_path / "one", [*searches, more], [*runs, Run("h/1", program("h"), 3.0)])
    assert load_worlds(open_archive(tmp_path / "one")).target.speedups.tolist() == [3.0]
