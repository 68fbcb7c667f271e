"""Tests of selection and admission, against figures computed by hand."""

from __future__ import annotations

import pytest

from kernel_measure.strategies import Puct, SearchNode, State


def node(ulid, reward, ancestors=(), *, seed=False):
    """A node whose program is its name."""
    return SearchNode(
        ulid=ulid, code=f"code {ulid}", ancestors=list(ancestors), reward=reward, is_seed=seed
    )


def test_score_is_the_stated_formula():
    """Q + c sigma P sqrt(1 + T) / (1 + n), by hand for three nodes."""
    state = State(
        archive=[node("a", 1.0, seed=True), node("b", 3.0, ["a"]), node("c", 2.0, ["a"])],
        visits={"a": 4, "b": 1},
        best_child={"a": 3.0, "b": 2.5},
        expansions=8,
    )
    scores = {n.ulid: s for s, n in Puct(c_puct=0.5).scores(state)}
    # Ranks by reward: b 3, c 2, a 1 of 6; sigma = 3 - 2 = 1, without the seed; sqrt(1 + 8) = 3.
    assert scores["a"] == pytest.approx(3.0 + 0.5 * 1 * (1 / 6) * 3 / 5)
    assert scores["b"] == pytest.approx(2.5 + 0.5 * 1 * (3 / 6) * 3 / 2)
    assert scores["c"] == pytest.approx(2.0 + 0.5 * 1 * (2 / 6) * 3 / 1)


def test_selection_blocks_the_lineage():
    """Neither an ancestor nor a descendant of a chosen node is chosen in the same batch."""
    state = State(
        archive=[
            node("a", 1.0, seed=True),
            node("b", 9.0, ["a"]),
            node("c", 8.0, ["b", "a"]),
            node("d", 2.0),
        ]
    )
    assert [n.ulid for n in Puct(batch_size=3, c_puct=0.0).select(state)] == ["b", "d"]


def test_best_children_enter_and_the_lineage_is_counted():
    """Of three children the best two enter."""
    state = State(archive=[node("a", 1.0, seed=True), node("b", 2.0, ["a"])])
    kids = [node("x", 1.5, ["b", "a"]), node("y", 4.0, ["b", "a"]), node("z", 3.0, ["b", "a"])]
    Puct(k_per_parent=2).settle(state, {"b": kids})
    assert [n.ulid for n in state.archive] == ["a", "b", "y", "z"]
    assert state.visits == {"b": 1, "a": 1}
    assert state.best_child == {"b": 4.0}
    assert state.expansions == 1


def test_failed_parent_decays():
    """A parent without a successful child keeps its Q and loses exploration."""
    state = State(archive=[node("a", 2.0, seed=True), node("b", 1.99), node("c", 0.99)])
    puct = Puct(batch_size=1, c_puct=4.0)
    before = {n.ulid: s for s, n in puct.scores(state)}
    assert puct.select(state)[0].ulid == "a"
    for _ in range(3):
        puct.settle(state, {"a": []})
    after = {n.ulid: s for s, n in puct.scores(state)}
    assert "a" not in state.best_child
    assert after["a"] - 2.0 < before["a"] - 2.0
    assert puct.select(state)[0].ulid == "b"


def test_same_program_enters_once():
    """A text that is in the archive already does not enter again."""
    state = State(archive=[node("a", 1.0, seed=True)])
    twin = SearchNode(ulid="t", code="code a", ancestors=["a"], reward=5.0)
    Puct().settle(state, {"a": [twin]})
    assert [n.ulid for n in state.archive] == ["a"]


def test_capacity_keeps_seeds_and_the_best():
    """Beyond the capacity the worst go, the seed never."""
    state = State(archive=[node("a", 0.1, seed=True), node("b", 2.0), node("c", 3.0)])
    Puct(archive_capacity=3, k_per_parent=2).settle(
        state, {"c": [node("d", 4.0, ["c"]), node("e", 1.0, ["c"])]}
    )
    assert [n.ulid for n in state.archive] == ["a", "c", "d"]
