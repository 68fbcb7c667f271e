"""The template of a forecast file, and what explains it."""

import json

import pytest

from kernel_archive.scoring import load_split, read_forecasts, score
from kernel_archive.scoring.formats import TOOL_FIELDS, fields_of
from kernel_archive.scoring.template import explanation, template_lines


@pytest.mark.parametrize("name", ["eval", "discovery"])
def test_the_template_is_a_valid_file_that_can_be_scored(archive, tmp_path, name):
    """Every row and repeat, in the order of the split, uniform."""
    split = load_split(archive, name)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(template_lines(split, repeats=2)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["row_id"] for line in lines] == [*split.row_ids, *split.row_ids]
    forecasts = read_forecasts(path, split)
    assert forecasts.coverage == 1.0
    assert not forecasts.remarks
    record = score(split, forecasts, draws=0)
    assert {metric: m.mean for metric, m in record.metrics.items()} == pytest.approx(record.uniform)


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
