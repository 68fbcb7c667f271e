"""Texts of an archive, by the ids of the programs."""

from __future__ import annotations

import polars as pl
from support.archives import Run, Search, make_archive, reference
from support.folders import contents
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.ids import program_id
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.tables import ArchiveTables

SEARCHES = [Search("h"), Search("t", role="training")]
RUNS = [Run("ht"[i % 2], program(i), 1.0 + i) for i in range(300)]


def test_texts_of_kernels_and_references(tmp_path):
    """Each asked text comes once; what the archive does not know is left out."""
    tables = ArchiveTables(open_archive(make_archive(tmp_path / "a", SEARCHES, RUNS)))
    codes = [*(run.code for run in RUNS[::7]), reference("trimul")]
    asked = pl.Series([program_id(code) for code in codes] * 2 + ["unknown", ""])
    texts = dict(tables.texts(asked).iter_rows())
    assert texts == {program_id(code): code for code in codes}


def test_rows_written_in_small_parts_give_the_same_split(tmp_path, monkeypatch):
    """An archive that is too large to hold gives the same bytes as one that is held."""
    places = []
    for rows in (20_000, 64):
        place = make_archive(tmp_path / str(rows), SEARCHES, RUNS)
        monkeypatch.setattr("kernel_archive.selection.selected.PART_ROWS", rows)
        make_splits(place)
        places.append(contents(place))
    assert places[0] == places[1]
