"""One path for several files that differ in one part of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernel_archive.archive.seen import common_pattern

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("names", "pattern", "values"),
    [
        (["r_H100.csv", "r_H200.csv"], "r_{x}.csv", ["H100", "H200"]),
        (["H100.csv", "RTX4090.csv"], "{x}.csv", ["H100", "RTX4090"]),
        (["gelu/out/r.csv", "softmax/out/r.csv"], "{x}/out/r.csv", ["gelu", "softmax"]),
        (["a/r.csv", "b/s.csv"], None, []),
        (["r.csv", "deep/r.csv"], None, []),
        (["r.csv", "r_1.csv"], "{x}.csv", ["r", "r_1"]),
        (["[a].csv", "[b].csv"], None, []),
    ],
)
def test_where_names_differ(tmp_path: Path, names: list[str], pattern: str | None, values: list[str]) -> None:
    """Names are cut where words end; names that differ in several parts have no common path."""
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = common_pattern(paths, "x")
    assert found == (None if pattern is None else (str(tmp_path / pattern), dict(zip(paths, values, strict=True))))


def test_a_path_that_matches_more(tmp_path: Path) -> None:
    """It is not proposed."""
    for name in ("r_a.csv", "r_b.csv", "r_c.csv"):
        (tmp_path / name).touch()
    assert common_pattern([tmp_path / "r_a.csv", tmp_path / "r_b.csv"], "x") is None
