"""Training pairs on archives whose right rows are known."""

from __future__ import annotations

import random
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import Run, Search, kernel_ids, make_tables, memory_tables, reference
from support.programs import program

from kernel_archive.ids import program_id, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.make import select_split
from kernel_archive.selection.selected import LEAK_IDS
from kernel_archive.selection.training import find_forbidden
from kernel_archive.splits import SPLITS

DEFINITION = load_definition("train")
CODES = [program(f"t{i}") for i in range(48)]
A, B, C, D = CODES[:4]
TRAIN = Search("t", role="training", method="local_search")
REFERENCE = reference("trimul")


def select(searches, runs, definition=DEFINITION, members=None):
    """The pairs of a hand-made archive; ``members`` are rows of other splits, by table."""
    tables = memory_tables(make_tables(searches, runs))
    return select_split(SPLITS["train"], tables, members or {}, definition)


def member(programs, tokens):
    """A row of another split with these ids of anchor and candidate."""
    names = ("anchor_program", "anchor_token", "candidate_program", "candidate_token")
    ids = zip(names, (programs[0], tokens[0], programs[1], tokens[1]), strict=True)
    return {"row_id": "d", "search_id": "h", "problem": "trimul", **dict(ids)}


def kinds(selection):
    """pair_type -> set of (anchor program, candidate program)."""
    found = {"seed": set(), "parent_edit": set(), "pair": set()}
    for row in selection.table.to_pylist():
        found[row["pair_type"]].add((row["anchor_code"], row["candidate_code"]))
    return found


def test_three_kinds_with_their_programs_and_speedups():
    """Reference to candidate, parent to child, and what is left of the pairs."""
    runs = [Run("t", A, 1.0), Run("t", B, 3.0, parent="n0"), Run("t", C, 1.5, parent="n0")]
    got = select([TRAIN], runs)
    assert got.table.schema == TABLES["train_pairs"].schema
    found = kinds(got)
    assert found["seed"] == {(REFERENCE, A), (REFERENCE, B), (REFERENCE, C)}
    assert found["parent_edit"] == {(A, B), (A, C)}
    assert [set(p) for p in found["pair"]] == [{B, C}]
    by_programs = {(r["anchor_code"], r["candidate_code"]): r for r in got.table.to_pylist()}
    assert by_programs[REFERENCE, B]["speedup"] == 3.0
    assert by_programs[A, C]["speedup"] == 1.5
    (pair,) = found["pair"]
    assert by_programs[pair]["speedup"] == (2.0 if pair == (C, B) else 0.5)
    assert by_programs[REFERENCE, B]["anchor_program_id"] == program_id(REFERENCE)
    assert by_programs[A, B]["candidate_kernel_id"] == kernel_ids([TRAIN], runs)[1]


def test_seed_wins_over_parent_edit():
    """Where the parent is the reference itself, one row stands, as a seed pair."""
    runs = [Run("t", REFERENCE, 1.0), Run("t", A, 2.0, parent="n0")]
    found = kinds(select([TRAIN], runs))
    assert found == {"seed": {(REFERENCE, A)}, "parent_edit": set(), "pair": set()}


def test_only_training_searches_successes_and_what_no_flag_keeps_out():
    """Held-out and archive searches give nothing, neither do failures, nor listed flags."""
    searches = [TRAIN, Search("h"), Search("o", role="archive")]
    runs = [
        Run("t", A),
        Run("t", B, None, parent="n0"),
        Run("t", CODES[4], parent="n0", flags=("unstable",)),
        Run("h", C),
        Run("o", D),
    ]
    found = kinds(select(searches, runs, with_changes(DEFINITION, exclude_flags=["unstable"])))
    assert found == {"seed": {(REFERENCE, A)}, "parent_edit": set(), "pair": set()}


def test_programs_of_held_out_searches_are_never_touched():
    """A program that a held-out search ran, also where it failed or was excluded, gives no pair;
    nor does a near duplicate.
    """
    searches = [TRAIN, Search("t2", role="training", gpu="L40S"), Search("h")]
    runs = [
        Run("t", A),
        Run("t", B),
        Run("t2", program("t2", comment="one"), 2.0),
        Run("t2", C, 2.0),
        Run("h", A, None),
        Run("h", program("t2", comment="another"), None),
        Run("h", C, 2.0, excluded="wrong"),
    ]
    found = find_forbidden(memory_tables(make_tables(searches, runs)), {})
    assert {*found.programs} == {program_id(code) for code in (A, C, program("t2", comment="one"))}
    got = select(searches, runs)
    assert kinds(got)["seed"] == {(REFERENCE, B)}
    assert got.facts.facts["excluded"]["held_out"] == 3


def test_programs_of_a_published_eval_are_never_touched():
    """Rows of an evaluation split that no search here explains are held out too."""
    published = pl.DataFrame([member(("reference", program_id(A)), ("y", "x"))], schema=LEAK_IDS)
    got = select([TRAIN], [Run("t", A), Run("t", B)], members={"eval": published})
    assert kinds(got)["seed"] == {(REFERENCE, B)}


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("near", [False, True])
def test_discovery_pairs_are_never_trained_on(swap, near):
    """Two programs that are a discovery pair are no training pair."""

    def pair(*codes):
        ids = [tuple(f(c) for c in codes) for f in (program_id, token_id)]
        programs, tokens = (tuple(reversed(x)) if swap else x for x in ids)
        elsewhere = ("elsewhere", "unknown")
        return member(elsewhere if near else programs, tokens if near else elsewhere)

    runs = [Run("t", A), Run("t", B, 3.0, parent="n0"), Run("t", C, 5.0)]
    rows = [pair(A, B), pair(A, C), pair(REFERENCE, C)]
    splits = {"discovery_pairs": pl.DataFrame(rows, schema=LEAK_IDS)}
    found = kinds(select([TRAIN], runs, members=splits))
    assert found["seed"] == {(REFERENCE, A), (REFERENCE, B)}
    assert found["parent_edit"] == set()
    assert [set(p) for p in found["pair"]] == [{B, C}]


def test_only_what_is_comparable_is_paired():
    """Programs of another reference, GPU or problem are not paired."""
    searches = [
        TRAIN,
        Search("t2", role="training", gpu="L40S"),
        Search("t3", role="training", reference=reference("trimul", 5)),
        Search("t4", "fp8_quant", role="training"),
        Search("t5", role="training", reference=None),
    ]
    together = [CODES[2 * i : 2 * i + 2] for i in range(5)]
    runs = [Run(s.search_id, c) for s, both in zip(searches, together, strict=True) for c in both]
    got = select(searches, runs)
    assert sorted(sorted(p) for p in kinds(got)["pair"]) == sorted(map(sorted, together[:4]))
    assert got.facts.facts["excluded"]["unknown_reference"] == 2


def test_quota_and_strata():
    """So many pairs per task, evenly over the strata."""
    runs = [Run("t", c, 2.0 ** (0.11 * i)) for i, c in enumerate(CODES)]
    got = select([TRAIN], runs, with_changes(DEFINITION, pairs_per_task=50))
    assert got.facts.facts["kinds"] == {"pair": 50, "seed": 48}
    ratios = got.rows.filter(pl.col("pair_type") == "pair")["speedup"].log(2).abs()
    # Programs that are 1 to 4, 5 to 9, 10 to 18 and more places apart.
    edges = [0.0, 0.1, 0.5, 1.0, 2.0, 99.0]
    counts = [ratios.is_between(low, high, closed="left").sum() for low, high in pairwise(edges)]
    assert counts == [0, 13, 13, 12, 12]


def test_seed_changes_the_sample_and_its_name():
    """Another seed draws other pairs and is a variant; the same seed draws the same."""
    runs = [Run("t", c, 2.0 ** (i / 8)) for i, c in enumerate(CODES)]
    small = with_changes(DEFINITION, pairs_per_task=20)
    first, again, other = (
        select([TRAIN], runs, d) for d in (small, small, with_changes(small, seed=1))
    )
    assert first.table.equals(again.table)
    assert kinds(first)["pair"] != kinds(other)["pair"]
    assert first.facts.name != other.facts.name


@settings(max_examples=20, deadline=None)
@given(
    speedups=st.lists(st.sampled_from([0.5, 1.0, 1.02, 1.3, 2.0, 5.0]), min_size=1, max_size=14),
    seed=st.integers(0, 99),
)
def test_any_row_order_gives_the_same_pairs(speedups, seed):
    """Shuffled tables give the same table and facts, and no (anchor, candidate) twice."""
    runs = [
        Run("t", c, s, parent=None if i < 2 else f"n{i // 2}")
        for i, (c, s) in enumerate(zip(CODES, speedups, strict=False))
    ]
    tables = make_tables([TRAIN], runs)
    small = with_changes(DEFINITION, pairs_per_task=8)
    first, second = (
        select_split(SPLITS["train"], rows, {}, small)
        for rows in (memory_tables(tables), memory_tables(tables, rng=random.Random(seed)))
    )
    assert first.table.equals(second.table)
    assert first.facts == second.facts
    assert not first.rows.select("anchor_program_id", "candidate_kernel_id").is_duplicated().any()


def test_another_task_does_not_change_a_tasks_pairs():
    """The sample of a task depends on that task alone."""
    runs = [Run("t", c, 2.0 ** (i / 8)) for i, c in enumerate(CODES[:30])]
    other = [Run("u", c, 2.0 ** (i / 8)) for i, c in enumerate(CODES[30:])]
    small = with_changes(DEFINITION, pairs_per_task=20)
    searches = [TRAIN, Search("u", "fp8_quant", role="training")]
    alone = kinds(select([TRAIN], runs, small))["pair"]
    both = kinds(select(searches, [*runs, *other], small))["pair"]
    assert {p for p in both if p[0] in CODES[:30]} == alone
