"""Withheld labels.

What is left in the public part, what is refused, and that scores come out as before.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.archives import Run, Search, kernel_ids, make_archive, replant
from support.launch_tables import with_launches
from support.programs import program

from kernel_archive.archive.manifest import read_manifest, write_manifest
from kernel_archive.archive.open import archives_here, default_directory, open_archive
from kernel_archive.errors import (
    ArchiveMismatchError,
    ArchiveNotFoundError,
    TargetExistsError,
    UsageError,
)
from kernel_archive.ids import program_id
from kernel_archive.pipeline import remake_split, validate, withhold_labels
from kernel_archive.publishing.card import write_card
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.scorer import score_file
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.selected import by_hash
from kernel_archive.selection.withheld import GOALS, LABELS, check_withheld

SEARCHES = [
    Search("held"),
    Search("other", "nbody_forces"),
    Search("aside", "histogram"),
    Search("train", role="training"),
    Search("again", role="archive", method="remeasurement"),
]
SPEEDUPS = (0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 5.0)
RUNS = [
    Run(s.search_id, program(f"{s.search_id}{i}"), speedup, parent=f"n{i - 1}" if i else None)
    for s in SEARCHES[:4]
    for i, speedup in enumerate(SPEEDUPS)
]
# The split of held-out problems takes programs that were measured three times.
RUNS += [
    Run("other", program(f"other{i}"), speedup, node=f"{i} again {k}")
    for i, speedup in enumerate(SPEEDUPS)
    for k in range(2)
]
# Programs of a held-out and of a training search, measured again in one search.
RUNS += [
    Run("again", program(f"{name}{i}"), 2.5 + i) for name in ("held", "train") for i in range(3)
]
RUNS += [Run("held", program("broken"), None)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with an archive ``a`` that has every split and its card; each test gets a copy."""
    folder = tmp_path_factory.mktemp("whole")
    directory = make_archive(folder / "a", SEARCHES, RUNS, version="1.0")
    make_splits(directory)
    write_card(directory)
    assert validate(directory).ok
    return folder


@pytest.fixture(scope="module")
def withheld(whole, tmp_path_factory):
    """A folder with its public part ``a`` and the labels; each test gets a copy."""
    folder = tmp_path_factory.mktemp("withheld")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    withhold_labels(folder / "a", folder / "labels")
    return folder


@pytest.fixture
def place(whole, tmp_path):
    """An archive with every split and its card, before anything is withheld."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a"


@pytest.fixture
def public(withheld, tmp_path):
    """Its public part; the labels are in ``labels``."""
    shutil.copytree(withheld, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a"


def test_the_public_part_is_a_valid_archive_without_the_labels(place, tmp_path):
    """Rows and programs stay.

    Nothing that was measured of them, or of their searches' other programs, is anywhere.
    """
    before = open_archive(place)
    rows, training = before.arrow("eval").to_pylist(), before.arrow("kernels", "train")
    assert training["goal_bin"].null_count == 0
    withhold_labels(place, tmp_path / "labels")
    moved = read_manifest(tmp_path / "labels").tables
    assert set(moved) == {"eval", "eval_cuda", "eval_problems", "eval_search"}
    assert [f.render() for f in validate(place).findings] == []
    archive = open_archive(place)
    assert archive.manifest.version == "1.0-withheld"
    kept = archive.arrow("eval").to_pylist()
    assert [r["candidate_code"] for r in kept] == [r["candidate_code"] for r in rows]
    assert all(row[name] == value for row in kept for name, value in LABELS.items())
    assert archive.arrow("kernels", "test").num_rows == archive.arrow("failures").num_rows == 0
    for table in ("kernels", "evaluations"):
        for name in GOALS:
            assert archive.arrow(table)[name].null_count == archive.arrow(table).num_rows
    assert set(archive.arrow("searches")["search_id"].to_pylist()) == {"train", "again"}
    assert not {run.search_id for run in archive.manifest.inputs} & {"held", "other"}
    # The measurements of training programs, and what follows from them, are as they were.
    shown = [name for name in training.column_names if name not in GOALS]
    assert archive.arrow("kernels", "train").select(shown).equals(training.select(shown))
    (again,) = (row for row in archive.arrow("searches").to_pylist() if row["search_id"] == "again")
    assert (again["n_evaluations"], again["n_successes"], again["best_speedup"]) == (3, 3, 4.5)
    assert archive.arrow("train_pairs").num_rows == before.arrow("train_pairs").num_rows > 0
    assert archive.arrow("eval_inputs", "eval").num_rows == len(rows)


def test_rows_that_stood_by_their_bins_do_so_no_more(place, tmp_path):
    """An archive whose rows are sorted by bin, as once, gives a public part in another order."""
    replant(place, "eval", lambda rows: sorted(rows, key=lambda row: row["bin"]))
    withhold_labels(place, tmp_path / "labels")
    rows = open_archive(place).polars("eval", columns=["row_id"])
    assert rows.equals(by_hash(rows))
    assert len(load_split(place, "eval", labels=tmp_path / "labels")) == len(rows)


def test_scores_with_the_labels_are_those_of_the_open_archive(place, tmp_path):
    """The same figures from public part and labels as before, under both schemes."""
    open_target = load_split(place, "eval")
    forecasts = [
        {"row_id": row, "probabilities": [0.3 if b == i % 8 else 0.1 for b in range(8)]}
        for i, row in enumerate(open_target.row_ids)
    ]

    def metrics(labels=None):
        targets = [load_split(place, "eval", s, labels=labels) for s in ("paper", "released")]
        return [score_file(forecasts, target, draws=50).metrics for target in targets]

    before = metrics()
    withhold_labels(place, tmp_path / "labels")
    assert metrics(tmp_path / "labels") == before


def test_without_labels_rows_can_be_listed_but_not_scored(public):
    """A template needs no labels; a score says who has them."""
    assert len(load_split(public, "eval", blind=True)) == 8
    with pytest.raises(UsageError, match="score FILE --labels DIR"):
        load_split(public, "eval")
    with pytest.raises(UsageError, match="are withheld"):
        remake_split(public, "eval", cap=1)


def test_labels_of_another_archive_or_changed_ones_are_refused(public, tmp_path):
    """What is not asked must agree with the public part, and labels with the facts of the split."""
    labels = tmp_path / "labels"
    with pytest.raises(ArchiveNotFoundError):
        load_split(public, "eval", labels=tmp_path)
    manifest = read_manifest(labels)
    replant(labels, "eval", lambda rows: [{**rows[0], "speedup": 9.0}, *rows[1:]])
    write_manifest(labels, manifest)
    with pytest.raises(ArchiveMismatchError, match="belong to another archive, or were changed"):
        load_split(public, "eval", labels=labels)
    replant(labels, "eval", lambda rows: [{**rows[0], "candidate_code": "x = 1"}, *rows[1:]])
    with pytest.raises(ArchiveMismatchError, match="belong to another archive"):
        load_split(public, "eval", labels=labels)


def test_labels_are_not_taken_for_an_archive(public, tmp_path, monkeypatch):
    """They are refused where an archive is named, and passed over where none is."""
    assert '"kind"' not in (public / "manifest.json").read_text()
    for read in (open_archive, validate, lambda path: load_split(path, "eval")):
        with pytest.raises(UsageError, match="labels, not an archive: name it with --labels"):
            read(tmp_path / "labels")
    (tmp_path / "here/me").mkdir(parents=True)
    for name in ("a", "labels"):
        (tmp_path / name).rename(tmp_path / "here/me" / name)
    monkeypatch.chdir(tmp_path / "here")
    assert archives_here() == [Path("me/a")] == [default_directory()]


def test_where_labels_can_not_go(place, tmp_path):
    """Not into the archive, not over anything; and not twice."""
    with pytest.raises(UsageError, match="inside the archive"):
        withhold_labels(place, place / "labels")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    with pytest.raises(TargetExistsError):
        withhold_labels(place, tmp_path / "full")
    withhold_labels(place, tmp_path / "labels")
    with pytest.raises(UsageError, match="eval is withheld"):
        withhold_labels(place, tmp_path / "more")


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("eval", {"speedup": 3.0}),
        ("eval", {"bin": 7}),
        ("eval", {"search_id": "held"}),
        ("kernels", {"kernel_id": "planted"}),
        ("evaluations", {"kernel_id": kernel_ids(SEARCHES, RUNS)[0]}),
    ],
)
def test_a_label_left_in_any_table_is_found(public, table, change):
    """One planted row or value of each kind is an error of validate that names the table."""
    archive = open_archive(public)
    assert list(check_withheld(archive)) == []
    part = "train" if table == "evaluations" else "test"
    planted = archive.arrow("kernels", "train").to_pylist()[:1] if table == "kernels" else []
    replant(public, table, lambda rows: [{**row, **change} for row in rows + planted], part=part)
    found = list(check_withheld(open_archive(public)))
    assert {(f.code, f.field, f.severity) for f in found} == {("withheld-label", table, "error")}
    assert not validate(public).ok


def test_facts_of_the_labels_are_found(public):
    """Cells and representatives of the hidden labels in the manifest are a leak like any other."""
    replant(public, "eval", lambda rows: rows, facts={"m_8": 5.0})
    (finding,) = check_withheld(open_archive(public))
    assert (finding.code, finding.value) == ("withheld-label", "m_8")


def test_the_audit_of_order_needs_no_label(public, monkeypatch):
    """Rows without labels have no rank correlation, whatever their number."""
    monkeypatch.setattr("kernel_archive.selection.label_order.LEAST_ROWS", 2)
    assert validate(public).ok


def test_what_other_held_out_programs_launch_is_not_shown(place, tmp_path):
    """Launches of the asked programs and of training kernels stay, and no others."""
    archive = open_archive(place)
    programs = set(archive.arrow("evaluations")["program_id"].to_pylist())
    row = {"problem": "softmax", "kind": "launch", "name": "k"}
    launches = [row | {"launch_id": p, "program_id": p} for p in sorted(programs)]
    with_launches(archive, launches)
    withhold_labels(place, tmp_path / "own labels")
    public = open_archive(place)
    shown = set(public.arrow("launches")["program_id"].to_pylist())
    asked = {program_id(code) for code in public.arrow("eval")["candidate_code"].to_pylist()}
    assert asked <= shown < programs
    assert program_id(program("broken")) not in shown
    assert program_id(program("train1")) in shown
    assert not list(check_withheld(public))
    found = check_withheld(with_launches(public, launches))
    assert [finding.field for finding in found] == ["launches"]
