"""The splits and their columns."""

import pytest

from kernel_archive.errors import UsageError
from kernel_archive.schema import TABLES
from kernel_archive.splits import FORECAST_SPLITS, SPLITS, split_of


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_column_of_a_split_is_one_of_its_table(split):
    """A split names no column that the schema does not have."""
    columns = {column.name for column in TABLES[split.table].columns}
    assert {split.value, split.task, split.group, split.anchor, split.candidate, split.kernel} <= columns
    assert set(split.programs) <= columns


def test_every_derived_table_is_a_split():
    """The schema and the splits agree on which tables are cut from others; ``eval_inputs`` repeats splits without labels."""
    derived = {name for name, table in TABLES.items() if table.derived}
    assert {split.table for split in SPLITS.values()} == derived - {"eval_inputs"}


def test_a_split_is_found_by_its_name_and_by_its_table():
    """Both names lead to the same split."""
    for name, split in SPLITS.items():
        assert split_of(name) is split_of(split.table) is split


@pytest.mark.parametrize(("name", "near"), [("evla", "eval"), ("discovery_pair", "discovery_pairs")])
def test_a_misspelt_split_gets_the_nearest_name(name, near):
    """Not a bare KeyError, but a suggestion."""
    with pytest.raises(UsageError, match=f"Did you mean '{near}'"):
        split_of(name)


def test_a_strange_split_gets_the_list():
    """Where nothing is near, all names are given."""
    with pytest.raises(
        UsageError, match="Choose one of: eval, eval_problems, eval_cuda, discovery, discovery_pairs, train"
    ):
        split_of("\x1b[31m")


def test_nobody_forecasts_training_pairs():
    """They are a split, and none to forecast."""
    assert list(FORECAST_SPLITS) == ["eval", "eval_problems", "eval_cuda", "discovery"]
