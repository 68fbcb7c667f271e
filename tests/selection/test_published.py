"""Splits that others published: kept as they are, and counted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archives import Run, Search, kernel_ids, make_archive, program, reference
from support.published_rows import ROWS, SPEEDUPS, row, staged

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.open import open_archive
from kernel_archive.bins import bin_of
from kernel_archive.errors import DataError
from kernel_archive.schema import TABLES
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.make import Rules, make_splits, remake_splits, store_published
from kernel_archive.selection.published import published_labels, published_rows, published_split, relabelled
from kernel_archive.splits import SPLIT_TABLES, SPLITS


def test_ids_order_texts_and_labels_stay():
    """The 424 rows keep their ids, order, programs and labels under the released scheme."""
    table = published_split(SPLITS["eval"], ROWS).table
    assert table.schema == TABLES["eval"].schema
    rows = table.to_pylist()
    assert [r["row_id"] for r in rows] == [r.row_id for r in ROWS]
    assert [r["bin"] for r in rows] == [r.label for r in ROWS]
    assert [(r["reference_code"], r["candidate_code"]) for r in rows] == [
        (r.anchor_code, r.candidate_code) for r in ROWS
    ]
    assert {(r["bin_scheme"], r["gpu"]) for r in rows} == {("released", "A100-80GB")}


def test_report_says_what_the_papers_table_changes():
    """The facts count labels that change under the paper's table, and the cells of the published labels."""
    facts = published_split(SPLITS["eval"], ROWS).facts
    changing = {s for s in SPEEDUPS if bin_of(s) != bin_of(s, "released")}
    assert changing == {0.3, 0.6, 0.8, 1.2, 1.71, 2.5, 4.0}
    assert facts.facts["changes_under_paper"] == sum(r.speedup in changing for r in ROWS)
    assert facts.facts["label_differences"] == facts.facts["changes_under_paper"]
    assert (facts.name, facts.origin, facts.scheme, facts.rows) == ("canonical", "published", "released", 424)
    assert sum(map(sum, facts.facts["cells"].values())) == 424
    low = [r.speedup for r in ROWS if r.label == 1]
    assert facts.facts["m_1"] == pytest.approx(sum(low) / len(low), rel=1e-12)


def test_published_rows_of_two_references_are_counted():
    """A published task with two references is kept, and the facts warn of it; one with one reference is not named."""
    rows = [row(0), row(6, anchor_code=reference("other")), row(12), row(1)]
    (found,) = published_split(SPLITS["eval"], rows).facts.facts["several_references"].items()
    assert (found[0], sorted(found[1].values())) == (rows[0].problem, [1, 2])
    assert "several_references" not in published_split(SPLITS["eval"], ROWS).facts.facts


def test_labels_that_break_the_rule_are_named():
    """A published label that is not that of its own rule stays, and is named with the label that the rule gives."""
    rows = [row(0), row(7, label=8), row(2)]
    selection = published_split(SPLITS["eval"], rows)
    assert selection.rows["bin"].to_pylist() == [1, 8, 2]
    odd = selection.facts.facts["disagree_with_rule"]
    assert (odd["rows"], odd["first"]) == (1, [{"row_id": rows[1].row_id, "speedup": 1.71, "label": 8, "rule": 5}])


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"row_id": ROWS[0].row_id}, "duplicate-row"), ({"speedup": 0.0}, "bad-speedup"), ({"label": 9}, "bad-label")],
)
def test_faults_name_file_and_line(changes, code):
    """A repeated id, an impossible speedup or label is refused with file and line; all are listed."""
    with pytest.raises(DataError) as error:
        published_split(SPLITS["eval"], [ROWS[0], row(1, **changes)])
    last = error.value.findings[-1]
    assert (last.code, last.file, last.line) == (code, "eval.parquet", 2)


def test_discovery_and_training_rows():
    """Pairs keep their ids and labels too; families, cutoffs and kinds are counted."""
    pairs = [row(i, "discovery_pairs", anchor_code=program(f"parent{i}")) for i in range(12)]
    pairs.append(row(12, "discovery_pairs", problem="level3/48_Mamba2ReturnY", anchor_code=program("p")))
    selection = published_split(SPLITS["discovery"], pairs)
    assert selection.table.schema == TABLES["discovery_pairs"].schema
    assert selection.facts.facts["cutoffs"]["all"]["2"] == sum(r.speedup >= 2 for r in pairs)
    assert selection.facts.facts["cutoffs"]["kernelbench"]["rows"] == 1
    kinds = ("seed", "parent_edit", "pair")
    pool = [row(i, "train_pairs", pair_type=kinds[i % 3]) for i in range(9)]
    selection = published_split(SPLITS["train"], [*pairs, *pool])
    assert selection.table.schema == TABLES["train_pairs"].schema
    assert selection.facts.facts["kinds"] == {"pair": 3, "parent_edit": 3, "seed": 3}
    assert selection.members["pair_type"].to_pylist() == [kinds[i % 3] for i in range(9)]


def test_the_same_program_has_the_archives_kernel_id():
    """A published program that the archive has measured is named by the same kernel id, so that tables join."""
    search = Search("s", "cross_entropy", gpu="A100-80GB", reference=reference("cross_entropy", 4))
    runs = [Run("s", ROWS[0].candidate_code, 0.1)]
    kernels = pa.table(
        {
            "problem": ["cross_entropy"],
            "gpu": ["A100-80GB"],
            "program_id": published_split(SPLITS["eval"], ROWS[:1]).members["candidate_program"],
            "kernel_id": kernel_ids([search], runs),
        }
    )
    assert published_split(SPLITS["eval"], ROWS[:1], kernels=kernels).rows["kernel_id"].to_pylist() == kernel_ids(
        [search], runs
    )


def test_relabelling_is_a_variant():
    """Labels under the paper's scheme change as counted, ids and order stay, and the name says that it is no original."""
    selection = published_split(SPLITS["eval"], ROWS)
    changed = relabelled(SPLITS["eval"], selection.table, "paper", selection.facts)
    assert changed.variant == "published-paper"
    assert changed.table["row_id"].to_pylist() == [r.row_id for r in ROWS]
    assert changed.rows["bin"].to_pylist() == [bin_of(r.speedup) for r in ROWS]
    assert changed.table["candidate_code"].to_pylist() == [r.candidate_code for r in ROWS]
    back = relabelled(SPLITS["eval"], changed.table, "released", changed.facts)
    assert (back.variant, back.table.equals(selection.table)) == ("canonical", True)


@pytest.fixture
def archive(tmp_path):
    """An archive with a published eval and discovery split, and training of its own."""
    searches = [Search("held"), Search("train", role="training")]
    runs = [Run("held", program("h"), 2.0), *(Run("train", program(f"own{i}"), 1.0 + i) for i in range(6))]
    place = make_archive(tmp_path / "a", searches, runs)
    pairs = [row(i, "discovery_pairs", anchor_code=program(f"parent{i}")) for i in range(5)]
    path = staged(tmp_path, [*reversed(ROWS), *pairs])
    assert published_rows(pq.read_table(path))[0] == ROWS[-1]
    kept = store_published(place, [path])
    assert kept == ["eval", "discovery_pairs"]
    make_splits(place, [name for name in SPLIT_TABLES if name not in kept])
    return place


def test_build_keeps_published_splits(archive):
    """Staged rows are stored in their published order, the rest is selected, and every check passes."""
    opened = open_archive(archive)
    assert opened.arrow("eval")["row_id"].to_pylist() == [r.row_id for r in ROWS]
    assert {n: s.origin for n, s in opened.manifest.splits.items()} == {
        "eval": "published",
        "eval_problems": "selected",
        "eval_cuda": "selected",
        "discovery_pairs": "published",
        "train_pairs": "selected",
    }
    assert check_splits(opened) == []


def test_published_split_is_left_alone(archive):
    """Making eval again without a word changes nothing."""
    before = open_archive(archive).manifest
    made = remake_splits(archive, ["eval"])
    assert (made.kept, made.changed) == (["eval"], [])
    assert open_archive(archive).manifest == before


def test_relabel_reselect_and_back(archive):
    """A scheme makes a relabelled variant, reselecting makes a selected one; neither is called canonical."""
    made = remake_splits(archive, ["eval"], scheme="paper")
    assert (made.changed, made.facts["eval"].name, made.facts["eval"].rows) == (["eval"], "published-paper", 424)
    assert check_splits(open_archive(archive)) == []
    made = remake_splits(archive, ["eval"], scheme="released")
    assert made.facts["eval"].name == "canonical"
    made = remake_splits(archive, ["eval"], rules=Rules(), reselect=True)
    assert (made.facts["eval"].name, made.facts["eval"].origin, made.facts["eval"].rows) == (
        "eval-reselected",
        "selected",
        1,
    )
    assert open_archive(archive).manifest.reports["published_splits"]["eval"]["rows"] == 424
    assert check_splits(open_archive(archive)) == []


def test_published_seed_pair_with_an_eval_program_is_named(tmp_path):
    """Published training pairs that show a program of eval as the anchor of a 'seed' are named in the manifest's report."""
    place = make_archive(tmp_path / "a", [Search("held")], [Run("held", program("h"), 2.0)])
    seeds = [
        row(0, "train_pairs", pair_type="seed", problem="trimul", anchor_code=reference("trimul")),
        row(1, "train_pairs", pair_type="seed", problem="trimul", anchor_code=program("h")),
    ]
    store_published(place, [staged(tmp_path, seeds)])
    made = make_splits(place, ["eval", "discovery_pairs"])
    (warning,) = made.leakage["warnings"]
    assert warning["code"] == "program-leak"
    assert seeds[1].row_id in warning["message"]


def test_changed_labels_of_a_published_split_are_found():
    """Labels that are neither as published nor by the rule are an error, and so are facts of other rows."""
    selection = published_split(SPLITS["eval"], ROWS[:20])
    facts = selection.facts
    assert list(published_labels(SPLITS["eval"], selection.table, facts)) == []
    at = selection.table.schema.get_field_index("bin")
    odd = selection.table.set_column(at, selection.table.schema.field(at), pa.array([8] * 20, pa.int8()))
    assert {f.code for f in published_labels(SPLITS["eval"], odd, facts)} == {"wrong-label", "split-facts"}
    assert isinstance(facts, SplitFacts)


def test_nothing_published(tmp_path):
    """Without published rows nothing is stored."""
    assert store_published(tmp_path, []) == []
