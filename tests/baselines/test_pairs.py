"""What a baseline learns from and forecasts."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_archive import write_archive

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.pairs import AskedPairs, load_asked_pairs, load_training_pairs
from kernel_archive.errors import ArchiveMismatchError, DataError, UsageError
from kernel_archive.ids import sha256_hex


def test_a_target_holds_no_label(archive):
    """What a baseline forecasts from has neither speedup nor bin."""
    target = load_asked_pairs(archive, "eval")
    assert not {"speedup", "speedups", "bin", "bins", "g"} & set(AskedPairs.__dataclass_fields__)
    assert len(target) == 48
    assert set(target.problems) == {"alpha", "beta"}


def test_discovery_rows_are_child_against_parent(archive):
    """The anchor is the parent's program."""
    target = load_asked_pairs(archive, "discovery")
    rows = archive.arrow("discovery_pairs").to_pylist()
    assert target.anchors[0] == rows[0]["parent_code"]
    assert target.candidates[0] == rows[0]["child_code"]


def test_training_pairs_are_of_training_searches(archive):
    """Nothing of a held-out search is learnt from."""
    pairs = load_training_pairs(archive)
    held = {
        r["search_id"] for r in archive.arrow("searches").to_pylist() if r["role"] == "held_out"
    }
    assert not held & set(pairs.searches)
    assert set(pairs.kinds) == {"seed", "parent_edit"}


def test_without_training_pairs_it_says_what_to_run(tmp_path):
    """An archive that has none yet names the command that makes them."""
    archive = write_archive(tmp_path, train_pairs=False)
    with pytest.raises(DataError, match="kernel-archive build-train"):
        load_training_pairs(archive)


def test_an_empty_training_table_is_refused(tmp_path):
    """No training search, nothing to learn: said so, with what works instead."""
    archive = write_archive(tmp_path, training_searches=0)
    with pytest.raises(DataError, match="role 'training'"):
        load_training_pairs(archive)


def test_a_held_out_search_in_the_training_table_is_refused(tmp_path):
    """A tampered table that would leak is not learnt from."""
    write_archive(tmp_path)
    path = next((tmp_path / "data/train_pairs").glob("*.parquet"))
    table = pq.read_table(path)
    held = next(
        r["search_id"]
        for r in open_archive(tmp_path).arrow("searches").to_pylist()
        if r["role"] == "held_out"
    )
    column = pa.array([held] * table.num_rows)
    pq.write_table(
        table.set_column(table.schema.get_field_index("search_id"), "search_id", column), path
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    shard = manifest["tables"]["train_pairs"]["splits"]["train"][0]
    shard |= {"bytes": path.stat().st_size, "sha256": sha256_hex(path.read_bytes())}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArchiveMismatchError, match="not a training search"):
        load_training_pairs(open_archive(tmp_path))


def test_unknown_split_is_a_usage_error(archive):
    """A name that is no split."""
    with pytest.raises(UsageError, match="Choose one of"):
        load_asked_pairs(archive, "train")
