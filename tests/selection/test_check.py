"""Checking splits: what was changed after they were made is found."""

from __future__ import annotations

import shutil

import msgspec
import pyarrow as pa
import pytest
from support.archives import Run, Search, make_archive, program, remake

from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.schema import TABLES
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.definitions import (
    canonical_definition,
    load_definition,
    recorded_definition,
)
from kernel_archive.selection.inputs import write_inputs
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import SPLIT_TABLES

SEARCHES = [Search("held"), Search("train", role="training")]
RUNS = [
    Run(s.search_id, program(f"{s.search_id}{i}"), 0.2 * 1.5**i, parent=None if i == 0 else "n0")
    for s in SEARCHES
    for i in range(8)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A hand-made archive with its splits."""
    directory = make_archive(tmp_path_factory.mktemp("made") / "a", SEARCHES, RUNS)
    make_splits(directory)
    return directory


@pytest.fixture
def place(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "a")


def rewrite(place, table, change, *, facts=None):
    """Change a derived table's rows, with a manifest that agrees with the new files."""
    archive = open_archive(place)
    rows = change(archive.arrow(table).to_pylist())
    (split,) = TABLES[table].splits
    written = write_table(
        place, table, {split: pa.Table.from_pylist(rows, schema=TABLES[table].schema)}
    )
    manifest = archive.manifest
    stated = msgspec.structs.replace(
        manifest.splits[table],
        logical_digest=written.logical_digest,
        rows=len(rows),
        **(facts or {}),
    )
    changed = msgspec.structs.replace(
        manifest,
        tables={**manifest.tables, table: written},
        splits={**manifest.splits, table: stated},
    )
    write_manifest(place, write_inputs(place, changed))


def codes(place):
    """Codes of the errors and warnings."""
    return [f.code for f in check_splits(open_archive(place))]


@pytest.mark.parametrize("table", ["eval", "discovery_pairs", "train_pairs"])
def test_missing_rows_are_found(place, table):
    """A row that the definition selects and the table lacks is named, though digest and facts
    agree with the table.
    """
    gone = open_archive(place).arrow(table)["row_id"][0].as_py()
    rewrite(place, table, lambda rows: rows[1:])
    (finding,) = check_splits(open_archive(place))
    assert (finding.code, finding.field, finding.value) == ("split-row-missing", table, gone)


def test_changed_order_text_and_label_are_found(place):
    """Rows in another order, a changed program, a changed label: each is found as what it is."""
    rewrite(place, "eval", lambda rows: rows[::-1])
    assert codes(place) == ["split-order"]
    make_splits(place)
    rewrite(place, "eval", lambda rows: [{**rows[0], "candidate_code": "x = 1"}, *rows[1:]])
    assert codes(place) == ["split-content"]
    make_splits(place)
    rewrite(place, "eval", lambda rows: [{**rows[0], "bin": 8}, *rows[1:]])
    assert codes(place) == ["split-relabelled"]


def test_changed_facts_are_found(place):
    """Facts that are not those of the rows are named."""
    facts = open_archive(place).manifest.splits["eval"].facts
    rewrite(place, "eval", lambda rows: rows, facts={"facts": {**facts, "m_8": 7.0}})
    (finding,) = check_splits(open_archive(place))
    assert (finding.code, finding.message) == (
        "split-facts",
        "facts differ from those of the rows: m_8",
    )


def test_a_variant_called_canonical_is_found(place):
    """A split that was selected otherwise and calls itself canonical is found by its parameters."""
    remake(place, "eval", cap=1)
    assert codes(place) == []
    rewrite(place, "eval", lambda rows: rows, facts={"name": "canonical"})
    (finding,) = check_splits(open_archive(place))
    assert finding.code == "split-name"
    assert "'eval-cap1'" in finding.message


def test_parameters_that_select_nothing(place):
    """Parameters that are no definition are a finding, not a traceback."""
    for broken in (
        {},
        {"cap": "many"},
        {**msgspec.to_builtins(load_definition("eval")), "gpu": "nowhere"},
    ):
        rewrite(place, "eval", lambda rows: rows, facts={"parameters": broken})
        assert codes(place) == ["split-parameters"]


def test_planted_program_is_a_leak_whatever_its_ids_say(place):
    """A program of eval written into train_pairs under the ids of another row is found from its
    text.
    """
    archive = open_archive(place)
    code = archive.arrow("eval")["candidate_code"][0].as_py()
    rewrite(place, "train_pairs", lambda rows: [{**rows[0], "candidate_code": code}, *rows[1:]])
    assert set(codes(place)) == {
        "split-content",
        "program-leak",
        "near-copy-leak",
        "split-row-added",
    }


def test_tables_without_facts_and_facts_without_tables(place):
    """A derived table and its facts come together."""
    manifest = open_archive(place).manifest
    splits = {n: f for n, f in manifest.splits.items() if n != "eval"}
    write_manifest(place, msgspec.structs.replace(manifest, splits=splits))
    (finding,) = (f for f in check_splits(open_archive(place)) if f.severity == "error")
    assert (finding.code, finding.field) == ("split-missing", "eval")
    wrong = {**manifest.splits, "eval": msgspec.structs.replace(manifest.splits["eval"], rows=99)}
    write_manifest(
        place, msgspec.structs.replace(manifest, splits={**wrong, "mine": manifest.splits["eval"]})
    )
    assert set(codes(place)) == {"wrong-rows", "unknown-split"}


def test_recorded_definitions_come_back(place):
    """The definition that a split was made by can be read from its facts."""
    tables = ArchiveTables(open_archive(place))
    facts = tables.archive.manifest.splits
    for table, split in SPLIT_TABLES.items():
        wanted = canonical_definition(split, tables)
        assert recorded_definition(split, facts[table].parameters) == wanted
    assert facts["eval"].parameters["gpu"] == "H200"


def test_rows_without_labels_are_those_of_the_evaluation_splits(place):
    """Every evaluation split stands in eval_inputs, in its order."""
    archive = open_archive(place)
    names = archive.arrow("eval_inputs").column_names
    assert not {
        "speedup",
        "bin",
        "n_measurements",
        "speedup_min",
        "speedup_max",
        "search_id",
        "kernel_id",
    } & set(names)
    for table in ("eval", "eval_problems", "eval_cuda"):
        assert archive.arrow("eval_inputs", table).equals(archive.arrow(table, columns=names))
    assert archive.arrow("eval_inputs", "eval").num_rows > 0


def test_other_rows_without_labels_are_found(place):
    """A changed text and a missing table are each said."""
    archive = open_archive(place)
    rows = {
        split: archive.arrow("eval_inputs", split).to_pylist()
        for split in ("eval", "eval_problems", "eval_cuda")
    }
    rows["eval"][0]["candidate_code"] = "x = 1"
    schema = TABLES["eval_inputs"].schema
    written = write_table(
        place, "eval_inputs", {n: pa.Table.from_pylist(r, schema=schema) for n, r in rows.items()}
    )
    tables = {**archive.manifest.tables, "eval_inputs": written}
    write_manifest(place, msgspec.structs.replace(archive.manifest, tables=tables))
    (finding,) = check_splits(open_archive(place))
    assert (finding.code, finding.field) == ("inputs-differ", "eval_inputs.eval")
    del tables["eval_inputs"]
    write_manifest(place, msgspec.structs.replace(archive.manifest, tables=tables))
    assert {f.code: f.severity for f in check_splits(open_archive(place))} == {
        "inputs-missing": "warning"
    }
