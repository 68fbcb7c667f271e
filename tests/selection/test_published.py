"""Splits that others published: kept as they are, and counted."""

from __future__ import annotations

import polars as pl
import pytest
from support.archives import Run, Search, kernel_ids, make_archive, program, reference
from support.published_rows import ROWS, SPEEDUPS, row, staged

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.open import open_archive
from kernel_archive.bins import bin_of
from kernel_archive.errors import DataError
from kernel_archive.ids import sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.make import make_splits, store_published
from kernel_archive.selection.published import check_published, published_split
from kernel_archive.splits import SPLIT_TABLES, SPLITS


def in_order(rows):
    """Published rows as the table has them: by a hash of their ids."""
    return sorted(rows, key=lambda r: sha256_hex(f"order:{r.row_id}".encode()))


def test_ids_texts_and_labels_stay():
    """The 424 rows keep their ids, programs and labels under the released scheme."""
    table = published_split(SPLITS["eval"], ROWS).table
    assert table.schema == TABLES["eval"].schema
    rows = table.to_pylist()
    names = ("row_id", "bin", "reference_code", "candidate_code")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (r.row_id, r.label, r.anchor_code, r.candidate_code) for r in in_order(ROWS)
    ]
    assert {(r["bin_scheme"], r["gpu"]) for r in rows} == {("released", "A100-80GB")}


def test_report_says_what_the_papers_table_changes():
    """The facts count labels that change under the paper's table."""
    facts = published_split(SPLITS["eval"], ROWS).facts
    changing = {s for s in SPEEDUPS if bin_of(s) != bin_of(s, "released")}
    assert changing == {0.3, 0.6, 0.8, 1.2, 1.71, 2.5, 4.0}
    assert facts.facts["changes_under_paper"] == sum(r.speedup in changing for r in ROWS)
    assert facts.facts["label_differences"] == facts.facts["changes_under_paper"]
    assert (facts.name, facts.origin, facts.scheme, facts.rows) == (
        "canonical",
        "published",
        "released",
        424,
    )
    assert sum(map(sum, facts.facts["cells"].values())) == 424
    low = [r.speedup for r in ROWS if r.label == 1]
    assert facts.facts["m_1"] == pytest.approx(sum(low) / len(low), rel=1e-12)


def test_published_rows_of_two_references_are_counted():
    """A published task with two references is kept, and the facts warn of it."""
    rows = [row(0), row(6, anchor_code=reference("other")), row(12), row(1)]
    (found,) = published_split(SPLITS["eval"], rows).facts.facts["several_references"].items()
    assert (found[0], sorted(found[1].values())) == (rows[0].problem, [1, 2])
    assert "several_references" not in published_split(SPLITS["eval"], ROWS).facts.facts


def test_labels_that_break_the_rule_are_named():
    """A published label that is not that of its own rule stays."""
    rows = [row(0), row(7, label=8), row(2)]
    selection = published_split(SPLITS["eval"], rows)
    assert sorted(selection.rows["bin"].to_list()) == [1, 2, 8]
    odd = selection.facts.facts["disagree_with_rule"]
    assert (odd["rows"], odd["first"]) == (
        1,
        [{"row_id": rows[1].row_id, "speedup": 1.71, "label": 8, "rule": 5}],
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"row_id": ROWS[0].row_id}, "duplicate-row"),
        ({"speedup": 0.0}, "bad-speedup"),
        ({"label": 9}, "bad-label"),
    ],
)
def test_faults_name_file_and_line(changes, code):
    """A repeated id, an impossible speedup or label is refused with file and line."""
    with pytest.raises(DataError) as error:
        published_split(SPLITS["eval"], [ROWS[0], row(1, **changes)])
    last = error.value.findings[-1]
    assert (last.code, last.file, last.line) == (code, "eval.parquet", 2)


def test_discovery_and_training_rows():
    """Pairs keep their ids and labels too; families, cutoffs and kinds are counted."""
    pairs = [row(i, "discovery_pairs", anchor_code=program(f"parent{i}")) for i in range(12)]
    pairs.append(
        row(12, "discovery_pairs", problem="level3/48_Mamba2ReturnY", anchor_code=program("p"))
    )
    selection = published_split(SPLITS["discovery"], pairs)
    assert selection.table.schema == TABLES["discovery_pairs"].schema
    assert selection.facts.facts["cutoffs"]["all"]["2"] == sum(r.speedup >= 2 for r in pairs)
    assert selection.facts.facts["cutoffs"]["kernelbench"]["rows"] == 1
    kinds = ("seed", "parent_edit", "pair")
    pool = [row(i, "train_pairs", pair_type=kinds[i % 3]) for i in range(9)]
    selection = published_split(SPLITS["train"], [*pairs, *pool])
    assert selection.table.schema == TABLES["train_pairs"].schema
    assert selection.facts.facts["kinds"] == {"pair": 3, "parent_edit": 3, "seed": 3}
    assert selection.members["pair_type"].to_list() == [kinds[i % 3] for i in range(9)]


def test_the_same_program_has_the_archives_kernel_id():
    """A published program that the archive has measured is named by the same kernel id."""
    search = Search("s", "cross_entropy", gpu="A100-80GB", reference=reference("cross_entropy", 4))
    runs = [Run("s", ROWS[0].candidate_code, 0.1)]
    kernels = pl.DataFrame(
        {
            "problem": ["cross_entropy"],
            "gpu": ["A100-80GB"],
            "program_id": published_split(SPLITS["eval"], ROWS[:1]).members["candidate_program"],
            "kernel_id": kernel_ids([search], runs),
        }
    )
    assert published_split(SPLITS["eval"], ROWS[:1], kernels=kernels).rows[
        "kernel_id"
    ].to_list() == kernel_ids([search], runs)


@pytest.fixture
def archive(tmp_path):
    """An archive with a published eval and discovery split, and training of its own."""
    searches = [Search("held"), Search("train", role="training")]
    runs = [
        Run("held", program("h"), 2.0),
        *(Run("train", program(f"own{i}"), 1.0 + i) for i in range(6)),
    ]
    place = make_archive(tmp_path / "a", searches, runs)
    pairs = [row(i, "discovery_pairs", anchor_code=program(f"parent{i}")) for i in range(5)]
    path = staged(tmp_path, [*reversed(ROWS), *pairs])
    kept = store_published(place, [path]).splits
    assert list(kept) == ["eval", "discovery_pairs"]
    make_splits(place, names=[name for name in SPLIT_TABLES if name not in kept])
    return place


def test_build_keeps_published_splits(archive):
    """Staged rows are stored, the rest is selected and every check passes."""
    opened = open_archive(archive)
    assert opened.arrow("eval")["row_id"].to_pylist() == [r.row_id for r in in_order(ROWS)]
    assert {n: s.origin for n, s in opened.manifest.splits.items()} == {
        "eval": "published",
        "eval_problems": "selected",
        "eval_cuda": "selected",
        "eval_close": "selected",
        "discovery_pairs": "published",
        "train_pairs": "selected",
    }
    assert check_splits(opened) == []


def test_published_seed_pair_with_an_eval_program_is_named(tmp_path):
    """Published training pairs that show a program of eval as the anchor of a 'seed' are named
    in the manifest's report.
    """
    place = make_archive(tmp_path / "a", [Search("held")], [Run("held", program("h"), 2.0)])
    seeds = [
        row(0, "train_pairs", pair_type="seed", problem="trimul", anchor_code=reference("trimul")),
        row(1, "train_pairs", pair_type="seed", problem="trimul", anchor_code=program("h")),
    ]
    store_published(place, [staged(tmp_path, seeds)])
    made = make_splits(place, names=["eval", "discovery_pairs"])
    (warning,) = made.reports["leakage"]["warnings"]
    assert warning["code"] == "program-leak"
    assert seeds[1].row_id in warning["message"]


def test_changed_labels_of_a_published_split_are_found():
    """Labels that are neither as published nor by the rule are an error."""
    selection = published_split(SPLITS["eval"], ROWS[:20])
    facts = selection.facts
    table = pl.DataFrame(selection.table)
    assert list(check_published(SPLITS["eval"], table, facts)) == []
    odd = table.with_columns(bin=pl.lit(8, pl.Int8))
    assert {f.code for f in check_published(SPLITS["eval"], odd, facts)} == {
        "wrong-label",
        "split-facts",
    }
    assert isinstance(facts, SplitFacts)
