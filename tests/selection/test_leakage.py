"""Planted leaks of each kind are caught and named; clean archives have none."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from support.archives import Run, Search, kernel_ids, make_archive, reference, replant
from support.folders import contents
from support.programs import jaccard, program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import LeakageError
from kernel_archive.ids import program_id, token_id
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.leakage import leakage_findings, read_leak_ids
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.selected import LEAK_IDS
from kernel_archive.selection.tables import ArchiveTables

A, B, C, D, E, F = (program(x) for x in "ABCDEF")
SEARCHES = [Search("held"), Search("old", role="archive"), Search("train", role="training")]
RUNS = [
    Run("held", A, 1.0),
    Run("held", B, 3.0, parent="n0"),
    Run("old", C, 1.0),
    Run("old", D, 2.0, parent="n0"),
    Run("train", E, 1.0),
    Run("train", F, 0.5, parent="n0"),
]
KERNEL = dict(zip("ABCDEF", kernel_ids(SEARCHES, RUNS), strict=True))


def ids_of(code):
    """Text and ids of a program, as columns of kernels."""
    return {"code": code, "program_id": program_id(code), "token_id": token_id(code)}


def train_row(rows, code, **changes):
    """Add a row to kernels/train that looks like a training kernel but for the changes."""
    row = {**rows["kernels", "train"][-1], **ids_of(code), "kernel_id": "planted", **changes}
    rows["kernels", "train"].append(row)


def moved(rows):
    """Move a kernel from test to train; its row names a training search."""
    (row,) = (r for r in rows["kernels", "test"] if r["code"] == B)
    rows["kernels", "test"].remove(row)
    rows["kernels", "train"].append({**row, "search_id": "train"})


def refused(tmp_path, plant=None, searches=SEARCHES, runs=RUNS):
    """What make_splits refuses; no file is then written, removed or changed."""
    place = make_archive(tmp_path / "a", searches, runs, plant=plant)
    before = contents(place)
    with pytest.raises(LeakageError) as caught:
        make_splits(place)
    assert contents(place) == before
    return caught.value.findings


def found(tables, members):
    """Codes and tables of what is found where splits have these rows."""
    return {(f.code, f.field) for f in leakage_findings(tables, members)}


COPY = program("B", comment="another").replace("    v1", "    # more\n\n    v1")


@pytest.mark.parametrize(
    ("plant", "code", "text"),
    [
        (
            lambda rows: train_row(rows, program("x"), search_id="held"),
            "held-out-search",
            "held (kernels/train row planted)",
        ),
        (moved, "held-out-search", f"{KERNEL['B']} (measured in held)"),
        (
            lambda rows: train_row(rows, B, gpu="L40S"),
            "program-leak",
            f"{KERNEL['B']} (is kernels/train row planted)",
        ),
        (
            lambda rows: train_row(rows, COPY),
            "near-duplicate-leak",
            f"{KERNEL['B']} (is kernels/train row planted)",
        ),
    ],
)
def test_what_is_planted_in_training_kernels_is_refused(tmp_path, plant, code, text):
    """A held-out search, what it measured, a program of eval and a near duplicate, each named."""
    (finding,) = refused(tmp_path, plant)
    assert (finding.code, finding.field) == (code, "kernels/train")
    assert text in finding.message


def test_held_out_log_under_another_name(tmp_path):
    """The log of a held-out search as a training search of another name is refused."""
    searches = [dataclasses.replace(s, source_digest="d" * 64) for s in (SEARCHES[0], SEARCHES[2])]
    findings = refused(tmp_path, searches=[*searches, SEARCHES[1]])
    assert {f.code for f in findings} == {"held-out-search"}
    assert "train, under another name (kernels/train row" in findings[0].message


def row(row_id, search, *codes, seed=False):
    """A row of a split with these programs: the candidate, or anchor and candidate."""
    anchor, candidate = (reference("trimul"), *codes)[-2:]
    ids = [make_id(code) for code in (anchor, candidate) for make_id in (program_id, token_id)]
    values = (row_id, "trimul", search, "seed" if seed else "pair", *ids)
    return pl.DataFrame([values], schema=LEAK_IDS, orient="row")


@pytest.fixture
def tables(tmp_path):
    """Narrow tables of the clean archive, with its splits."""
    place = make_archive(tmp_path / "a", SEARCHES, RUNS)
    make_splits(place)
    return ArchiveTables(open_archive(place))


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        (("held", E, F), "held-out-search"),
        (("published", E, F), "held-out-search"),
        (("train", E, B), "program-leak"),
        (("train", B, E), "program-leak"),
        (("train", E, program("B", comment="x")), "near-duplicate-leak"),
        (("old", E, F), "discovery-search"),
        (("train", C, D), "discovery-pair"),
        (("train", D, C), "discovery-pair"),
        (("train", program("D", comment="x"), program("C", comment="y")), "discovery-pair"),
        (("train", C, F), None),
        (("train", reference("trimul"), F), None),
    ],
)
def test_train_pairs_are_checked_by_themselves(tables, pair, code):
    """Searches, programs and pairs in train_pairs are caught whatever kernels/train holds."""
    members = {
        "eval": row("e", "published", B),
        "discovery_pairs": row("d", "old", C, D),
        "train_pairs": row("t", *pair),
    }
    assert found(tables, members) == ({(code, "train_pairs")} if code else set())


@pytest.mark.parametrize("anchor", [B, reference("trimul"), reference("fp8_quant")])
def test_only_the_reference_of_the_problem_is_shared_by_a_seed_pair(tables, anchor):
    """A seed label opens no other program; without it not even the reference is shared."""
    evaluation, shared = row("e", "held", anchor), anchor == reference("trimul")
    for seed in (True, False):
        members = {"eval": evaluation, "train_pairs": row("t", "train", anchor, F, seed=seed)}
        leak = set() if seed and shared else {("program-leak", "train_pairs")}
        assert found(tables, members) == leak


def test_rows_of_one_id_hide_nothing(tables):
    """A leak is found though another row of the evaluation, itself a leak, is called the same."""
    evaluation = pl.concat([row("e", "held", A), row("e", "held", B)])
    copy = program("B", comment="x")
    train = pl.concat([row("t", "train", E, A), row("u", "train", E, copy)])
    codes = {code for code, _ in found(tables, {"eval": evaluation, "train_pairs": train})}
    assert codes == {"program-leak", "near-duplicate-leak"}


BIG = program("B", size=12)
NEAR = BIG.replace("pid + 5)", "pid + 55)")
BIG_RUNS = [*RUNS[:1], Run("held", BIG, 3.0), *RUNS[2:]]


def test_near_copy_in_training_gives_no_row(tmp_path):
    """A held-out near copy of a training kernel is left out of the evaluation, not of training."""
    assert jaccard(NEAR, BIG) >= 0.7
    place = make_archive(tmp_path / "a", SEARCHES, [*BIG_RUNS, Run("train", NEAR, 3.0)])
    facts = make_splits(place).splits["eval"]
    assert (facts.rows, facts.facts["excluded"]["near_training"]) == (1, 1)
    assert check_splits(open_archive(place)) == []


@pytest.mark.parametrize(
    ("table", "where", "values"),
    [
        ("kernels", "kernels/train", {**ids_of(NEAR), "kernel_id": "planted"}),
        ("train_pairs", "train_pairs", {"candidate_code": NEAR, "row_id": "planted"}),
    ],
)
def test_near_copy_planted_in_training(tmp_path, table, where, values):
    """A near copy of an evaluation row, written into training after the splits were made."""
    place = make_archive(tmp_path / "a", SEARCHES, BIG_RUNS)
    make_splits(place)
    replant(place, table, lambda rows: [*rows, {**rows[-1], **values}], part="train")
    tables = ArchiveTables(open_archive(place))
    (finding,) = leakage_findings(tables, read_leak_ids(tables))
    assert (finding.code, finding.field) == ("near-copy-leak", where)
    assert finding.value.startswith(KERNEL_OF_BIG)
    assert "row planted" in finding.message


KERNEL_OF_BIG = kernel_ids(SEARCHES, BIG_RUNS)[1]


@pytest.mark.parametrize("role", ["training", "archive"])
def test_a_wholly_held_out_problem_in_training(tmp_path, role):
    """Kernels, searches and pairs of a problem that nobody may train on are refused."""
    searches = [*SEARCHES, Search("topk", "topk_rows", role=role)]
    runs = [*RUNS, Run("topk", program("y"), 2.0)]
    findings = refused(tmp_path, searches=searches, runs=runs)
    assert {f.code for f in findings} == {"held-out-problem"}
    more = ["searches", "train_pairs"] if role == "training" else []
    assert {f.field for f in findings} == {"kernels/train", *more}


def test_a_training_search_of_a_wholly_held_out_problem_that_only_failed(tmp_path):
    """A training search is refused even where none of its programs passed."""
    searches = [*SEARCHES, Search("t", "hadamard_rows", role="training")]
    (finding,) = refused(tmp_path, searches=searches, runs=[*RUNS, Run("t", program("y"), None)])
    assert (finding.code, finding.field) == ("held-out-problem", "searches")
