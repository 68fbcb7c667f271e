"""What a baseline learns from."""

import pytest
from support.small_archive import write_archive

from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.errors import DataError
from kernel_archive.splits import SPLITS


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
