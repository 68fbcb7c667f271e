"""The template, its explanation, and the published JSON Schema."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.scoring import load_split, read_forecasts, score
from kernel_archive.scoring.faults import LineFaults
from kernel_archive.scoring.formats import FIELDS, TOOL_FIELDS, read_line
from kernel_archive.scoring.template import explanation, json_schema, template_lines
from kernel_archive.storage import content_path

VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_the_template_is_a_valid_file_that_can_be_scored(archive, tmp_path, split):
    """Every row and repeat, in the order of the split, uniform."""
    target = load_split(archive, split)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(template_lines(target, repeats=2)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["row_id"] for line in lines] == [*target.row_ids, *target.row_ids]
    for line in lines:
        VALIDATOR.validate(line)
    forecasts = read_forecasts(path, target)
    assert forecasts.coverage == 1.0
    assert not forecasts.remarks
    record = score(target, forecasts, draws=0)
    assert {name: m.mean for name, m in record.metrics.items()} == pytest.approx(record.uniform)


def test_the_explanation_names_every_field_and_bin(target):
    """And the intervals of the scheme that the labels follow."""
    text = "\n".join(explanation(target))
    for word in (*FIELDS, "minor_speedup", "1 < S <= 1.414", "S > 4", TOOL_FIELDS[0]):
        assert word in text
    assert "S >= 4" in "\n".join(explanation(target.under("released")))


def test_the_published_schema_is_the_one_of_this_version():
    """leaderboard/forecast.schema.json is made from the code; write it anew when this fails."""
    published = json.loads((content_path("leaderboard") / "forecast.schema.json").read_text())
    assert published == json_schema()
    jsonschema.Draft202012Validator.check_schema(published)


P = [0.125] * 8
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 101),
    st.floats(-1, 2),
    st.text(max_size=3),
    st.lists(st.floats(-1, 2), max_size=9),
)
rows = st.one_of(
    st.fixed_dictionaries(
        {"row_id": st.just("a")},
        optional={name: values for name in FIELDS if name not in {"row_id", "probabilities"}}
        | {"probabilities": st.one_of(st.just(P), st.just([0.0] * 8), values)},
    ),
    st.fixed_dictionaries(
        {"row_id": st.just("a"), **dict.fromkeys(TOOL_FIELDS, st.sampled_from([0.0, 0.5, 1.0]))}
    ),
    st.fixed_dictionaries({"row_id": values, "probabilities": st.just(P)}),
)


@given(rows)
def test_schema_and_reader_agree(row):
    """A line is valid under the schema exactly when the reader takes it."""
    faults = LineFaults("f", 1)
    line = read_line(row, faults)
    assert VALIDATOR.is_valid(row) == (line is not None), faults.findings


@pytest.mark.parametrize(
    "row",
    [
        {"row_id": "a", "probabilities": P},
        {
            "row_id": "a",
            "repeat": 2,
            "probabilities": P,
            "predicted_bin": 4,
            "rationale": "why",
            "latency_s": 1.5,
        },
        {"row_id": "a", **dict.fromkeys(TOOL_FIELDS, 0.125)},
        {"row_id": "a", "defer": True},
        {"row_id": "a", "parse_failed": True, "probabilities": None},
    ],
)
def test_what_the_documentation_shows_is_valid(row):
    """Canonical, tool call, deferred, unparsed."""
    VALIDATOR.validate(row)
