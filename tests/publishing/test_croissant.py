"""The Croissant file is valid and gives the rows."""

from __future__ import annotations

import json

import pytest
from publishing.conftest import NAME
from support.archives import make_archive, six_tasks

from kernel_archive.archive import shards
from kernel_archive.archive.open import open_archive
from kernel_archive.publishing.card import write_card
from kernel_archive.schema import TABLES

# The library under test here is ours, not mlcroissant with its dependencies' deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def load(path):
    """The dataset as mlcroissant sees it, refused on any error and on every warning but one."""
    import mlcroissant

    dataset = mlcroissant.Dataset(path / "croissant.json")
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    # Nothing in a card says when: the date of publication is the Hub's.
    assert all("datePublished" in warning for warning in issues.warnings), issues.report()
    return dataset


def records(dataset, name):
    """All records of a record set, their fields by column, text decoded."""

    def plain(value):
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list):
            return [plain(v) for v in value]
        return {k.rsplit("/", 1)[-1]: plain(v) for k, v in value.items()} if isinstance(value, dict) else value

    return [plain(record) for record in dataset.records(name)]


def test_croissant_is_valid_and_loads_every_table(archive_path):
    """Every table and split is a record set whose records are the rows, in their order."""
    dataset = load(archive_path)
    archive = open_archive(archive_path)
    names = {f"{t}_{s}" for t in TABLES for s, n in archive.manifest.tables[t].rows.items() if n}
    assert {r.id for r in dataset.metadata.record_sets} == names
    for table in ("kernels", "eval", "searches"):
        for split in TABLES[table].splits:
            rows = archive.arrow(table, split).to_pylist()
            found = records(dataset, f"{table}_{split}")
            assert len(found) == len(rows)
            for column in ("speedup", "bin", "flags", "cases", "code", TABLES[table].key):
                if rows and column in rows[0]:
                    assert [r[column] for r in found] == [r[column] for r in rows], column


def test_croissant_names_every_file_with_its_digest(archive_path):
    """Each file object has the path, size and sha256 that the manifest has."""
    archive = open_archive(archive_path)
    shards_ = {
        s.path: s for f in archive.manifest.tables.values() for part in f.splits.values() for s in part if s.rows
    }
    made = json.loads((archive_path / "croissant.json").read_text())
    objects = {d["contentUrl"]: d for d in made["distribution"] if d["@type"] == "cr:FileObject"}
    assert {p: (d["sha256"], d["contentSize"]) for p, d in objects.items()} == {
        p: (s.sha256, f"{s.bytes} B") for p, s in shards_.items()
    }
    assert made["url"] == f"https://huggingface.co/datasets/{NAME}"
    assert made["license"] == "https://spdx.org/licenses/CC-BY-4.0.html"


def test_several_shards_are_read_together(tmp_path, monkeypatch):
    """A split of several files is one record set with all rows."""
    monkeypatch.setattr(shards, "SHARD_ROWS", 64)
    path = make_archive(tmp_path / "a" / "b", *six_tasks(40), version="1.0.0")
    write_card(path)
    archive = open_archive(path)
    assert len(archive.files("gpus")) == 1
    assert len(archive.files("kernels", "train")) > 1
    found = records(load(path), "kernels_train")
    assert [r["kernel_id"] for r in found] == archive.arrow("kernels", "train")["kernel_id"].to_pylist()
