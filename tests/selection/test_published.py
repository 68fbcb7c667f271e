"""Splits that others published: kept as they are, and counted."""

from __future__ import annotations

import polars as pl
import pytest
from support.archives import Run, Search, kernel_ids, make_archive, reference
from support.programs import program
from support.published_rows import ROWS, SPEEDUPS, row, staged

from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.bins import bin_of
from kernel_archive.errors import DataError, UsageError
from kernel_archive.ids import sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.make import make_splits, remade_split, store_published
from kernel_archive.selection.published import read_published
from kernel_archive.splits import SPLIT_TABLES

KINDS = ("seed", "parent_edit", "pair")
PAIRS = [row(i, "discovery_pairs", anchor_code=program(f"parent{i}")) for i in range(12)]
POOL = [row(i, "train_pairs", pair_type=KINDS[i % 3]) for i in range(9)]
SEARCHES = [Search("held", "cross_entropy", gpu="A100-80GB"), Search("train", role="training")]
RUNS = [
    Run("held", ROWS[0].candidate_code, 0.1),
    *(Run("train", program(f"own{i}"), 1.0 + i) for i in range(6)),
]


def in_order(rows):
    """Published rows as the table has them: by a hash of their ids."""
    return sorted(rows, key=lambda r: sha256_hex(f"order:{r.row_id}".encode()))


@pytest.fixture
def plain(tmp_path):
    """A hand-made archive without splits."""
    return make_archive(tmp_path / "a", SEARCHES, RUNS)


@pytest.fixture
def selections(tmp_path):
    """The published splits of three tables, by table."""
    path = staged(tmp_path, [*reversed(ROWS), *PAIRS, *POOL])
    return {s.split.table: s for s in read_published([path])}


def store(place, tmp_path, rows):
    """Store published rows in an archive directory, and make the other splits."""
    manifest = open_archive(place).manifest
    stored = store_published(place, [staged(tmp_path, rows)], manifest)
    others = [name for name in SPLIT_TABLES if name not in stored.splits]
    return write_manifest(place, make_splits(place, stored, split_tables=others))


def test_ids_texts_and_labels_stay(selections):
    """The rows keep their ids, programs and labels under the released scheme."""
    for table, published in (("eval", ROWS), ("discovery_pairs", PAIRS), ("train_pairs", POOL)):
        selection, split = selections[table], SPLIT_TABLES[table]
        assert selection.table.schema == TABLES[table].schema
        columns = ["row_id", "bin", split.anchor, split.candidate, "bin_scheme", "gpu"]
        ordered = published if table == "train_pairs" else in_order(published)
        assert pl.DataFrame(selection.table).select(columns).rows() == [
            (r.row_id, r.label, r.anchor_code, r.candidate_code, "released", "A100-80GB")
            for r in ordered
        ]
    assert selections["train_pairs"].rows["pair_type"].to_list() == [*KINDS] * 3


def test_facts_count_what_the_papers_table_changes(selections):
    """Labels that change under the paper's table, and the positives and kinds of pairs."""
    facts = selections["eval"].facts
    assert (facts.name, facts.origin, facts.scheme) == ("canonical", "published", "released")
    changing = {s for s in SPEEDUPS if bin_of(s) != bin_of(s, "released")}
    assert changing == {0.3, 0.6, 0.8, 1.2, 1.71, 2.5, 4.0}
    assert facts.facts["label_differences"] == sum(r.speedup in changing for r in ROWS)
    assert sum(map(sum, facts.facts["cells"].values())) == facts.rows == 424
    low = [r.speedup for r in ROWS if r.label == 1]
    assert facts.facts["m_1"] == pytest.approx(sum(low) / len(low), rel=1e-12)
    cutoffs = selections["discovery_pairs"].facts.facts["cutoffs"]
    assert cutoffs["all"]["2"] == sum(r.speedup >= 2 for r in PAIRS)
    kinds = selections["train_pairs"].facts.facts["kinds"]
    assert kinds == dict.fromkeys(KINDS, 3)


def test_a_row_id_that_stands_twice_is_refused(tmp_path):
    """Two files of one split may not have a row of one id."""
    path = staged(tmp_path, [ROWS[0], row(1, row_id=ROWS[0].row_id)])
    with pytest.raises(DataError, match=ROWS[0].row_id) as error:
        read_published([path])
    assert error.value.findings[0].code == "duplicate-row"


def test_the_same_program_has_the_archives_kernel_id(selections):
    """A published program that the archive has measured is named by the same kernel id."""
    rows = selections["eval"].rows
    name = rows.filter(pl.col("row_id") == ROWS[0].row_id)["kernel_id"].to_list()
    assert name == kernel_ids(SEARCHES[:1], RUNS[:1])


def test_build_keeps_published_splits(plain, tmp_path):
    """Staged rows are stored, the rest is selected, and they are not made again."""
    manifest = store(plain, tmp_path, [*reversed(ROWS), *PAIRS])
    opened = open_archive(plain)
    assert opened.arrow("eval")["row_id"].to_pylist() == [r.row_id for r in in_order(ROWS)]
    published = {name for name, s in manifest.splits.items() if s.origin == "published"}
    assert published == {"eval", "discovery_pairs"}
    assert {*manifest.splits} == {*SPLIT_TABLES} - {"eval_transfer"}
    assert check_splits(opened) == []
    refused = pytest.raises(UsageError, match="it was published by others")
    with refused, remade_split(plain, "eval"):
        pass


def test_published_seed_pair_with_an_eval_program_is_named(tmp_path):
    """A program of eval as the anchor of a published seed pair is a warning of validate."""
    place = make_archive(tmp_path / "a", [Search("held")], [Run("held", program("h"), 2.0)])
    anchors = (reference("trimul"), program("h"))
    seeds = [
        row(i, "train_pairs", pair_type="seed", problem="trimul", anchor_code=anchor)
        for i, anchor in enumerate(anchors)
    ]
    store(place, tmp_path, seeds)
    warning = next(f for f in check_splits(open_archive(place)) if f.code == "program-leak")
    assert warning.severity == "warning"
    assert seeds[1].row_id in warning.message
