"""What models answer, in all the forms that they find."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_forecasts import rows_of

from kernel_archive.scoring import check_forecasts
from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.formats import TOOL_FIELDS

P = [0, 0, 0, 0.1, 0.2, 0.6, 0.1, 0]
TOOL = dict(zip(TOOL_FIELDS, P, strict=True))
FULL = {**TOOL, "rationale": "less traffic", "predicted_bin": 6, "expected_speedup": 1.6}


@pytest.mark.parametrize(
    "answer",
    [
        {"tool_calls": [{"function": {"arguments": json.dumps(FULL)}}], "content": "calling"},
        {"content": [{"type": "text", "text": json.dumps(FULL)}]},
        f"```json\n{json.dumps(FULL, indent=1)}\n```",
        f'<think>{{maybe}} "probabilities"?</think> First 0.3, then more.\n\n{json.dumps(FULL)}',
        json.dumps({**FULL, "row_id": "another", "repeat": 7, "input_tokens": 1}),
        json.dumps({**FULL, **{key: f"{100 * p:g} %" for key, p in TOOL.items()}}),
        json.dumps({**FULL, **{key: 100 * p for key, p in TOOL.items()}}),
        {**FULL, **{key: 97 * p for key, p in TOOL.items()}},
    ],
)
def test_every_form_gives_the_same_forecast(answer):
    """Tool call, content parts, fence, JSON after reasoning; percent with and without the sign."""
    read = read_completion(answer)
    total = sum(read.probabilities)
    assert [p / total for p in read.probabilities] == pytest.approx(P)
    assert (read.predicted_bin, read.expected_speedup, read.parse_error) == (6, 1.6, None)
    assert read.rationale == "less traffic"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ({"content": None, "tool_calls": []}, "empty"),
        ("I would say 1.5x.", "no-json"),
        ('{"speedup": 1.5}', "no-json"),
        (json.dumps(TOOL)[:-9], "half-json"),
        ('```json\n{"probabilities": [0.1, 0.2,', "half-json"),
        (dict.fromkeys(TOOL_FIELDS[:7], 0.1), "missing-field"),
        ({"probabilities": [0.5, 0.5]}, "wrong-length"),
        ({"probabilities": [0.3] * 8}, "raw-sum"),
        ({"probabilities": P, **TOOL}, "contradiction"),
    ],
)
def test_what_is_no_forecast_says_why(answer, why):
    """A word for each, and no distribution."""
    read = read_completion(answer)
    assert (read.probabilities, read.parse_error) == (None, why)


def test_half_of_an_emoji_in_a_rationale_is_spelled_out():
    """As it is, no forecast file could hold it."""
    completion = read_completion(json.dumps({**FULL, "rationale": "fast \ud83d"}))
    assert completion.rationale == "fast \\ud83d"
    assert completion.probabilities is not None


def test_sums_that_are_off_are_kept_as_they_are():
    """A sum within the bounds of a file stays raw, for the scorer to renormalise and to report."""
    read = read_completion({"probabilities": [0.1] * 8})
    assert read.probabilities == [0.1] * 8


def test_a_candidate_may_be_deferred_with_or_without_a_distribution():
    """The flag is read; without a distribution there is nothing unparsed."""
    both = read_completion({**TOOL, "defer": True})
    assert both.defer
    assert both.probabilities == P
    alone = read_completion('I am not sure: {"defer": true, "rationale": "too close"}')
    assert (alone.defer, alone.probabilities, alone.parse_error, alone.rationale) == (
        True,
        None,
        None,
        "too close",
    )


_NUMBER = st.one_of(
    st.floats(), st.integers(-5, 200), st.text(max_size=5), st.none(), st.booleans()
)


@given(st.lists(_NUMBER, min_size=6, max_size=9), st.one_of(st.none(), _NUMBER))
def test_what_is_read_can_be_scored(probabilities, stated):
    """Whatever a model answers: what comes out as a forecast is one for a forecast file."""
    read = read_completion({"probabilities": probabilities, "predicted_bin": stated})
    split = rows_of([1.3])
    if read.probabilities is None:
        assert read.parse_error
        return
    line = {
        "row_id": "a",
        "probabilities": read.probabilities,
        "predicted_bin": read.predicted_bin,
    }
    forecasts, report = check_forecasts([line], split)
    assert forecasts is not None, report.findings
    assert forecasts.parsed.all()
