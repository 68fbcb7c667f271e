"""The splits and their columns."""

import pytest

from kernel_archive.errors import UsageError
from kernel_archive.schema import TABLES
from kernel_archive.selection.inputs import INPUTS
from kernel_archive.splits import SPLITS, split_of


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_column_of_a_split_is_one_of_its_table(split):
    """A split names no column that the schema does not have."""
    columns = {column.name for column in TABLES[split.table].columns}
    named = {split.value, split.task, split.group, split.anchor, split.candidate, split.kernel}
    assert named <= columns


def test_every_derived_table_is_a_split():
    """Schema and splits agree on the derived tables; two tables repeat or add to others."""
    derived = {name for name, table in TABLES.items() if table.derived}
    assert {split.table for split in SPLITS.values()} == derived - {*INPUTS, "launches"}


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("evla", "Did you mean 'eval'"),
        ("discovery_pair", "Did you mean 'discovery_pairs'"),
        (
            "\x1b[31m",
            "Choose one of: eval, eval_problems, eval_cuda, eval_search, validity, eval_close,",
        ),
    ],
)
def test_an_unknown_split_gets_the_nearest_name_or_all(name, way_out):
    """Not a bare KeyError, but a suggestion."""
    with pytest.raises(UsageError, match=way_out):
        split_of(name)
