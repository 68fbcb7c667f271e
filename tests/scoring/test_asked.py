"""What a split asks about."""

import numpy as np
import pytest

from kernel_archive.errors import UsageError
from kernel_archive.scoring.asked import AskedPairs, ProgramPairs, load_asked_pairs


def test_what_is_asked_holds_no_label(archive):
    """Neither speedup nor bin; an unknown split is named; in discovery the anchor is the parent."""
    asked = load_asked_pairs(archive, "eval")
    assert not {"speedup", "speedups", "bin", "bins", "g"} & set(AskedPairs.__dataclass_fields__)
    assert len(asked) == 48
    assert set(asked.problems) == {"alpha", "beta"}
    asked, rows = load_asked_pairs(archive, "discovery"), archive.arrow("discovery_pairs")
    assert list(asked.anchors) == rows["parent_code"].to_pylist()
    assert list(asked.candidates) == rows["child_code"].to_pylist()
    with pytest.raises(UsageError, match="Choose one of"):
        load_asked_pairs(archive, "train")


def test_pairs_of_two_archives_keep_the_launches_of_both():
    """Those asked about may be of another archive than those learnt from."""
    ours, theirs = (("a", "p"), np.zeros(2)), (("b", "p"), np.ones(2))
    one, other = (ProgramPairs(problems=("p",), launch_features={k: v}) for k, v in (ours, theirs))
    assert one.joined(other).launch_features == dict([ours, theirs])
