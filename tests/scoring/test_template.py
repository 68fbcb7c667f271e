"""The template of a forecast file, and what explains it."""

from kernel_archive.scoring import load_split
from kernel_archive.scoring.formats import TOOL_FIELDS, fields_of
from kernel_archive.scoring.template import explanation


def test_the_explanation_names_every_field_and_bin(split):
    """And the intervals of the scheme that the labels follow."""
    text = "\n".join(explanation(split))
    assert "p_passes" not in text
    fields = fields_of(split.spec)
    for word in (*fields, "minor_speedup", "1 < S <= 1.414", "S > 4", TOOL_FIELDS[0]):
        assert word in text
    assert "S >= 4" in "\n".join(explanation(split.under("released")))


def test_the_texts_are_shown_without_their_answers(archive, split):
    """From the rows without labels, where a split has them."""
    assert "SELECT * FROM eval_inputs WHERE split = 'eval' LIMIT 1" in explanation(split)[-1]
    assert "parent_code, child_code FROM" in explanation(load_split(archive, "discovery"))[-1]
