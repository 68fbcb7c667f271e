"""What a baseline learns from."""

import json

import pyarrow.parquet as pq
import pytest
from support.archives import with_column
from support.small_archive import write_archive

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.errors import ArchiveMismatchError, DataError
from kernel_archive.ids import sha256_hex
from kernel_archive.splits import SPLITS


def held_out(archive):
    """The searches that nobody learns from."""
    query = "SELECT search_id FROM searches WHERE role = 'held_out'"
    return archive.sql(query)["search_id"].to_pylist()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"train_pairs": False}, "kernel-archive build-train"),
        ({"training_searches": 0}, "role 'training'"),
    ],
)
def test_nothing_to_learn_from_is_said(tmp_path, made, message):
    """Without the table the command that makes it; without training searches what works instead."""
    with pytest.raises(DataError, match=message):
        load_training_pairs(write_archive(tmp_path, **made))


def test_a_held_out_search_in_the_training_table_is_refused(tmp_path):
    """A tampered table that would leak is not learnt from."""
    write_archive(tmp_path)
    path = next((tmp_path / "data/train_pairs").glob("*.parquet"))
    table = pq.read_table(path)
    search = held_out(open_archive(tmp_path))[0]
    pq.write_table(with_column(table, "search_id", [search] * len(table)), path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    shard = manifest["tables"]["train_pairs"]["splits"]["train"][0]
    shard |= {"bytes": path.stat().st_size, "sha256": sha256_hex(path.read_bytes())}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArchiveMismatchError, match="not a training search"):
        load_training_pairs(open_archive(tmp_path))


def test_a_baseline_learns_from_programs_of_the_splits_kind(training_pairs):
    """Searches teach about searches, all others about the rest; where there is none, all do."""
    search, other = "h200-search-2026-12", "h200-lm-2026-11"
    pairs = training_pairs([1.0, 2.0, 3.0], ["p"] * 3, builders=[search, other, search])
    assert pairs.of_builders(SPLITS["eval_search"]).speedups.tolist() == [1.0, 3.0]
    assert pairs.of_builders(SPLITS["discovery_search"]).speedups.tolist() == [1.0, 3.0]
    assert pairs.of_builders(SPLITS["eval"]).speedups.tolist() == [2.0]
    alone = training_pairs([1.0, 2.0], ["p"] * 2, builders=["mine", other])
    assert len(alone.of_builders(SPLITS["eval_search"])) == 2
    assert len(alone.of_builders(SPLITS["eval_cuda"])) == 2
