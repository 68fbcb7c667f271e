"""Checking splits: what was changed after they were made is found."""

from __future__ import annotations

import msgspec
import pytest
from support.archives import remake, replant

from kernel_archive.archive.manifest import write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.definitions import load_definition
from kernel_archive.splits import REFERENCE_SPLITS


def codes(place):
    """Codes of the errors and warnings."""
    return [f.code for f in check_splits(open_archive(place))]


@pytest.mark.parametrize("table", ["eval", "discovery_pairs", "train_pairs"])
def test_missing_rows_are_found(place, table):
    """A row that the definition selects and the table lacks is named."""
    gone = open_archive(place).arrow(table)["row_id"][0].as_py()
    replant(place, table, lambda rows: rows[1:])
    (finding,) = check_splits(open_archive(place))
    assert (finding.code, finding.field, finding.value) == ("split-row-missing", table, gone)


def first_row(**changes):
    """Change the first row."""
    return lambda rows: [{**rows[0], **changes}, *rows[1:]]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda rows: rows[::-1], "split-order"),
        (first_row(candidate_code="x = 1"), "split-content"),
        (first_row(bin=8), "split-relabelled"),
        (first_row(speedup=3.3), "split-remeasured"),
    ],
)
def test_changed_order_text_and_label_are_found(place, change, code):
    """Rows in another order, a changed program, a changed label: each is found as what it is."""
    replant(place, "eval", change)
    assert codes(place) == [code]


def test_changed_facts_are_found(place):
    """Facts that are not those of the rows are named; those of another version are let be."""
    facts = open_archive(place).manifest.splits["eval"].facts
    replant(place, "eval", lambda rows: rows, facts={**facts, "of_old": 1})
    assert codes(place) == []
    replant(place, "eval", lambda rows: rows, facts={**facts, "m_8": 7.0})
    (finding,) = check_splits(open_archive(place))
    assert finding.code == "split-facts"
    assert finding.message == "facts differ from those of its definition: m_8"


def test_a_variant_called_canonical_is_found(place):
    """A split that was selected otherwise and calls itself canonical is found by its parameters."""
    remake(place, "eval", cap=1)
    assert codes(place) == []
    replant(place, "eval", lambda rows: rows, name="canonical")
    (finding,) = check_splits(open_archive(place))
    assert finding.code == "split-name"
    assert "says 'eval-" in finding.message


@pytest.mark.parametrize("broken", [{}, {"cap": "many"}, {"near_copy": "0.1"}, {"gpu": "nowhere"}])
def test_parameters_that_select_nothing(place, broken):
    """Parameters that are no definition are a finding, not a traceback."""
    whole = msgspec.to_builtins(load_definition("eval"))
    parameters = {**whole, **broken} if broken else {}
    replant(place, "eval", lambda rows: rows, parameters=parameters)
    assert codes(place) == ["split-parameters"]


def test_tables_without_facts_and_facts_without_tables(place):
    """A derived table and its facts come together."""
    manifest = open_archive(place).manifest
    others = dict(manifest.splits)
    del others["eval"]
    write_manifest(place, msgspec.structs.replace(manifest, splits=others))
    (finding,) = (f for f in check_splits(open_archive(place)) if f.severity == "error")
    assert (finding.code, finding.field) == ("split-missing", "eval")


def test_rows_without_labels_are_those_of_the_evaluation_splits(place):
    """Every evaluation split stands in eval_inputs, in its order; changes and gaps are found."""
    archive = open_archive(place)
    names = archive.arrow("eval_inputs").column_names
    assert not {"speedup", "bin", "n_measurements", "search_id", "kernel_id"} & set(names)
    for table in (n for n in REFERENCE_SPLITS if n != "eval_transfer"):
        assert archive.arrow("eval_inputs", table).equals(archive.arrow(table, columns=names))
    assert archive.arrow("eval_inputs", "eval").num_rows > 0
    replant(place, "eval_inputs", first_row(candidate_code="x = 1"), part="eval")
    (finding,) = check_splits(open_archive(place))
    assert (finding.code, finding.field) == ("inputs-differ", "eval_inputs.eval")
    manifest = open_archive(place).manifest
    del manifest.tables["eval_inputs"]
    write_manifest(place, manifest)
    findings = check_splits(open_archive(place))
    assert {(f.code, f.severity) for f in findings} == {("inputs-missing", "warning")}
