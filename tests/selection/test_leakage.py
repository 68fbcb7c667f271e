"""Planted leaks of each kind are caught and named; clean archives have none."""

from __future__ import annotations

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from support.archives import Run, Search, kernel_ids, make_archive, program, reference
from support.programs import jaccard

from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import LeakageError
from kernel_archive.ids import program_id, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.leakage import (
    leakage_findings,
    present_members,
)
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.selected import IDS, MEMBER, members_of, with_ids
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import SPLITS

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


def train_row(rows, code, **changes):
    """Add a row to kernels/train that looks like a training kernel but for the changes."""
    template = rows["kernels", "train"][-1]
    text = {
        "code": code,
        "program_id": program_id(code),
        "token_id": token_id(code),
        "kernel_id": f"planted-{len(rows['kernels', 'train'])}",
    }
    rows["kernels", "train"].append({**template, **text, **changes})


def findings(tmp_path, plant=None, searches=SEARCHES):
    """What make_splits refuses, the first finding of each kind, or nothing."""
    place = make_archive(tmp_path / "a", searches, RUNS, plant=plant)
    try:
        make_splits(place)
    except LeakageError as error:
        assert "eval" not in open_archive(place).manifest.tables
        return {f.code: f for f in reversed(error.findings)}
    return {}


def test_clean_archive_passes(tmp_path):
    """Nothing is found where nothing was planted, before and after writing."""
    assert findings(tmp_path) == {}
    tables = ArchiveTables(open_archive(tmp_path / "a"))
    assert leakage_findings(tables, present_members(tables)) == []


def test_held_out_search_in_training(tmp_path):
    """A training kernel that names a held-out search is refused, with the search and the row."""
    found = findings(tmp_path, lambda rows: train_row(rows, program("other"), search_id="held"))
    assert set(found) == {"held-out-search"}
    assert "held (kernels/train row planted-4)" in found["held-out-search"].message
    assert found["held-out-search"].field == "kernels/train"


def test_held_out_log_under_another_name(tmp_path):
    """The log of a held-out search as a training search of another name is refused."""
    searches = [
        Search("held", source_digest="d" * 64),
        Search("old", role="archive"),
        Search("train", role="training", source_digest="d" * 64),
    ]
    found = findings(tmp_path, searches=searches)
    assert set(found) == {"held-out-search"}
    assert "under another name" in found["held-out-search"].message
    assert "train (kernels/train row" in found["held-out-search"].message


def test_kernel_that_a_held_out_search_measured(tmp_path):
    """A kernel moved from test to train is refused, though its row names a training search."""

    def plant(rows):
        (moved,) = (r for r in rows["kernels", "test"] if r["code"] == B)
        rows["kernels", "test"].remove(moved)
        rows["kernels", "train"].append({**moved, "search_id": "train"})

    found = findings(tmp_path, plant)
    assert f"{KERNEL['B']} (measured in held)" in found["held-out-search"].message


def test_same_program_under_another_search(tmp_path):
    """A program of eval that stands in kernels/train, for another GPU, is refused with both
    rows.
    """
    found = findings(tmp_path, lambda rows: train_row(rows, B, gpu="L40S"))
    assert set(found) == {"program-leak"}
    assert found["program-leak"].field == "kernels/train"
    assert f"{KERNEL['B']} (is kernels/train row planted-4)" in found["program-leak"].message


def test_near_duplicate_with_other_comments(tmp_path):
    """A program of eval with other comments and white space in kernels/train is refused."""
    copy = program("B", comment="renamed comment").replace("    v1", "    # more\n\n    v1")
    found = findings(tmp_path, lambda rows: train_row(rows, copy))
    assert set(found) == {"near-duplicate-leak"}
    assert (
        f"{KERNEL['B']} (has the tokens of kernels/train row planted-4)"
        in found["near-duplicate-leak"].message
    )


def row(row_id, search, *codes, seed=False):
    """A row of a split with these programs: the candidate, or anchor and candidate."""
    programs, tokens = (
        [f(c) for c in (reference("trimul"), *codes)[-2:]] for f in (program_id, token_id)
    )
    place = {
        "row_id": row_id,
        "search_id": search,
        "problem": "trimul",
        "pair_type": "seed" if seed else "pair",
    }
    ids = zip(IDS, (programs[0], tokens[0], programs[1], tokens[1]), strict=True)
    return pl.DataFrame([{**place, **dict(ids)}], schema=MEMBER)


@pytest.fixture
def tables(tmp_path):
    """Narrow tables of the clean archive."""
    return ArchiveTables(open_archive(make_archive(tmp_path / "a", SEARCHES, RUNS)))


def check(tables, **splits):
    """Findings by code, of splits given as one row each."""
    names = {"evaluation": "eval", "discovery": "discovery_pairs", "train": "train_pairs"}
    members = {names[name]: member for name, member in splits.items()}
    return {f.code: f for f in leakage_findings(tables, members)}


def test_train_pairs_are_checked_by_themselves(tables):
    """Searches, programs and near duplicates in train_pairs are caught whatever kernels/train
    holds.
    """
    evaluation = row("e", "published", B)
    for train, code in (
        (row("t", "held", E, F), "held-out-search"),
        (row("t", "published", E, F), "held-out-search"),
        (row("t", "train", E, B), "program-leak"),
        (row("t", "train", B, E), "program-leak"),
        (row("t", "train", E, program("B", comment="x")), "near-duplicate-leak"),
    ):
        found = check(tables, evaluation=evaluation, train=train)
        assert set(found) == {code}
        assert found[code].field == "train_pairs"
        assert "row t" in found[code].message


def test_rows_of_one_id_hide_nothing(tables, tmp_path):
    """A leak is found though another row of the evaluation, itself a leak of another kind, is
    called the same.
    """
    evaluation = pl.concat([row("e", "held", A), row("e", "held", B)])
    train = pl.concat([row("t", "train", E, A), row("u", "train", E, program("B", comment="x"))])
    assert set(check(tables, evaluation=evaluation, train=train)) == {
        "program-leak",
        "near-duplicate-leak",
    }

    big = program("B", size=12)
    place = make_archive(tmp_path / "b", SEARCHES, [*RUNS[:1], Run("held", big, 3.0), *RUNS[2:]])
    make_splits(place)
    replant(
        place,
        "kernels",
        lambda rows: train_row({("kernels", "train"): rows["train"]}, near_copy_of(big)),
    )

    def plant(rows):
        (near,) = (r for r in rows["test"] if r["candidate_code"] == big)
        rows["test"].append({**near, "candidate_code": E})

    replant(place, "eval", plant)
    tables = ArchiveTables(open_archive(place))
    codes = {f.code for f in leakage_findings(tables, present_members(tables))}
    assert codes == {"program-leak", "near-copy-leak"}


def test_the_reference_as_anchor_is_no_leak(tables):
    """A seed pair shares the reference with every row of eval, which shows it to everybody."""
    evaluation = row("e", "held", reference("trimul"))
    pair = ("t", "train", reference("trimul"), F)
    assert check(tables, evaluation=evaluation, train=row(*pair, seed=True)) == {}
    assert set(check(tables, evaluation=evaluation, train=row(*pair))) == {"program-leak"}


@pytest.mark.parametrize("anchor", [B, reference("fp8_quant")])
def test_a_seed_label_opens_no_other_program(tables, anchor):
    """A program of eval, or the reference of another problem."""
    train = row("t", "train", anchor, F, seed=True)
    found = check(tables, evaluation=row("e", "held", anchor), train=train)
    assert set(found) == {"program-leak"}
    assert "row t" in found["program-leak"].message


def test_discovery_pairs_in_training(tables):
    """A search or a program pair of discovery_pairs in train_pairs is caught."""
    discovery = row("d", "old", C, D)
    for train, code in (
        (row("t", "old", E, F), "discovery-search"),
        (row("t", "train", C, D), "discovery-pair"),
        (row("t", "train", D, C), "discovery-pair"),
        (row("t", "train", program("D", comment="x"), program("C", comment="y")), "discovery-pair"),
    ):
        assert set(check(tables, discovery=discovery, train=train)) == {code}
    assert check(tables, discovery=discovery, train=row("t", "train", C, F)) == {}


def test_members_come_from_the_texts(tmp_path):
    """Whatever ids a table states, who is in it is found from its programs."""
    place = make_archive(tmp_path / "a", SEARCHES, RUNS)
    make_splits(place)
    tables = ArchiveTables(open_archive(place))
    found = present_members(tables)
    codes = tables.archive.arrow("eval")["candidate_code"].to_pylist()
    assert found["eval"]["candidate_program"].to_list() == [program_id(c) for c in codes]
    train = tables.archive.arrow("train_pairs")
    assert found["train_pairs"]["pair_type"].to_list() == train["pair_type"].to_pylist()
    split = SPLITS["train"]
    again = members_of(split, with_ids(split, pl.DataFrame(train), {}))
    assert again.equals(found["train_pairs"])


def near_copy_of(code):
    """The same program with one constant changed: other tokens, the same idea."""
    changed = code.replace("pid + 5)", "pid + 55)")
    assert token_id(changed) != token_id(code)
    assert jaccard(changed, code) >= 0.7
    return changed


def test_near_copy_in_training_gives_no_row(tmp_path):
    """A held-out program that is a near copy of a training kernel is left out of the evaluation,
    not of training.
    """
    big = program("B", size=12)
    runs = [*RUNS[:1], Run("held", big, 3.0), *RUNS[2:], Run("train", near_copy_of(big), 3.0)]
    place = make_archive(tmp_path / "a", SEARCHES, runs)
    facts = make_splits(place).splits["eval"]
    assert (facts.rows, facts.facts["excluded"]["near_training"]) == (1, 1)
    assert check_splits(open_archive(place)) == []


def replant(place, table, change):
    """Change the rows of a table, with a manifest that names the new files."""
    archive = open_archive(place)
    rows = {
        split: archive.arrow(table, split).to_pylist()
        for split in archive.manifest.tables[table].splits
    }
    change(rows)
    schema = TABLES[table].schema
    written = write_table(
        place, table, {n: pa.Table.from_pylist(part, schema=schema) for n, part in rows.items()}
    )
    tables = {**archive.manifest.tables, table: written}
    write_manifest(place, msgspec.structs.replace(archive.manifest, tables=tables))


@pytest.mark.parametrize(
    ("table", "where"), [("kernels", "kernels/train"), ("train_pairs", "train_pairs")]
)
def test_near_copy_planted_in_training(tmp_path, table, where):
    """A near copy of an evaluation row, written into training after the splits were made, is
    refused with both rows.
    """
    big = program("B", size=12)
    place = make_archive(tmp_path / "a", SEARCHES, [*RUNS[:1], Run("held", big, 3.0), *RUNS[2:]])
    make_splits(place)
    copy = near_copy_of(big)

    def plant(rows):
        name, column = ("kernel_id", "code") if table == "kernels" else ("row_id", "candidate_code")
        ids = (
            {"program_id": program_id(copy), "token_id": token_id(copy)}
            if table == "kernels"
            else {}
        )
        rows["train"].append({**rows["train"][-1], name: "planted", column: copy, **ids})

    replant(place, table, plant)
    tables = ArchiveTables(open_archive(place))
    (finding,) = leakage_findings(tables, present_members(tables))
    assert (finding.code, finding.field, finding.severity) == ("near-copy-leak", where, "error")
    (row,) = (
        r for r in open_archive(place).arrow("eval").to_pylist() if r["candidate_code"] == big
    )
    assert row["row_id"] in finding.message
    assert f"{where} row planted" in finding.message


@pytest.mark.parametrize("role", ["training", "archive"])
def test_a_wholly_held_out_problem_in_training(tmp_path, role):
    """A program of a wholly held-out problem that a trainer would get is refused, whatever its
    search is called.
    """
    searches = [
        *SEARCHES,
        Search("other", "histogram", role="training"),
        Search("topk", "topk_rows", role=role),
    ]
    runs = [*RUNS, Run("other", program("x"), 2.0), Run("topk", program("y"), 2.0)]
    place = make_archive(tmp_path / "a", searches, runs)
    with pytest.raises(LeakageError) as error:
        make_splits(place)
    found = {f.field: f for f in error.value.findings}
    assert {f.code for f in found.values()} == {"held-out-problem"}
    assert set(found) == {
        "kernels/train",
        *(["searches", "train_pairs"] if role == "training" else []),
    }
    assert "topk_rows" in found["kernels/train"].message


def test_a_training_pair_of_a_wholly_held_out_problem(tmp_path):
    """A training pair that was changed to name such a problem is refused."""
    place = make_archive(tmp_path / "a", SEARCHES, RUNS)
    make_splits(place)
    replant(place, "train_pairs", lambda rows: rows["train"][0].update(problem="nbody_forces"))
    tables = ArchiveTables(open_archive(place))
    codes = {f.code: f.field for f in leakage_findings(tables, present_members(tables))}
    assert codes == {"held-out-problem": "train_pairs"}


def test_a_training_search_of_a_wholly_held_out_problem_that_only_failed(tmp_path):
    """A training search is refused even where none of its programs passed."""
    searches, runs = (
        [*SEARCHES, Search("t", "hadamard_rows", role="training")],
        [*RUNS, Run("t", program("y"), None)],
    )
    place = make_archive(tmp_path / "a", searches, runs)
    with pytest.raises(
        LeakageError, match="searches has rows of a problem that nobody may train on"
    ):
        make_splits(place)


def test_a_near_copy_that_is_no_number_is_a_finding(tmp_path):
    """Parameters that nothing can be selected by are said, whatever training holds."""
    place = make_archive(tmp_path / "a", SEARCHES, RUNS)
    make_splits(place)
    manifest = open_archive(place).manifest
    facts = manifest.splits["eval"]
    stated = msgspec.structs.replace(facts, parameters={**facts.parameters, "near_copy": "0.1"})
    write_manifest(
        place, msgspec.structs.replace(manifest, splits={**manifest.splits, "eval": stated})
    )
    assert "split-parameters" in {f.code for f in check_splits(open_archive(place))}
