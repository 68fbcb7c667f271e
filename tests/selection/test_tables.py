"""Texts read by row group, whole or as needed."""

from __future__ import annotations

import random

import pytest
from support.archives import Run, Search, make_archive, program, reference

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import ArchiveMismatchError
from kernel_archive.ids import program_id
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.tables import ArchiveTexts

SEARCHES = [Search("h"), Search("t", role="training")]
RUNS = [Run("ht"[i % 2], program(i), 1.0 + i) for i in range(700)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An archive with several row groups per split."""
    return open_archive(make_archive(tmp_path_factory.mktemp("texts") / "a", SEARCHES, RUNS))


@pytest.mark.parametrize("held", [1 << 30, 0])
def test_texts_come_in_the_order_asked(archive, held, monkeypatch):
    """Any keys in any order, repeats included, from memory or from the row groups that hold
    them.
    """
    monkeypatch.setattr("kernel_archive.selection.tables.TEXT_BYTES", held)
    texts = ArchiveTexts(archive)
    by_id = {program_id(code): code for code in (*(r.code for r in RUNS), reference("trimul"))}
    keys = random.Random(0).choices(list(by_id), k=300)
    assert texts.fetch(keys).to_pylist() == [by_id[k] for k in keys]
    assert texts.fetch([]).to_pylist() == []
    assert len(texts._groups) > 2


def test_a_small_allowance_gives_the_same_split(tmp_path, monkeypatch):
    """An archive that is too large to hold gives the same bytes as one that is held."""
    places = []
    for name, held in (("whole", 1 << 30), ("little", 0)):
        place = make_archive(tmp_path / name, SEARCHES, RUNS)
        monkeypatch.setattr("kernel_archive.selection.tables.TEXT_BYTES", held)
        make_splits(place)
        places.append(
            {p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()}
        )
    assert places[0] == places[1]


def test_contradicting_size_statistics_are_an_error_not_an_abort(tmp_path):
    """Of every byte of a footer that is changed: texts, or one error that names the file."""
    place = make_archive(tmp_path / "a", SEARCHES[:1], RUNS[:6:2])
    (path,) = (place / "data/kernels").glob("test-*.parquet")
    data, archive = path.read_bytes(), open_archive(place)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    outcomes = set()
    for at in range(start, len(data) - 8, 7):
        raw = bytearray(data)
        raw[at] ^= 16
        path.write_bytes(raw)
        try:
            ArchiveTexts(archive)
        except ArchiveMismatchError as error:
            outcomes.add(str(path) in str(error))
    assert outcomes == {True}
