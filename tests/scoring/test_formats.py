"""One line of a forecast file in any form, and its fault."""

import json
import math

import pytest

from kernel_archive.scoring.formats import TOOL_FIELDS, LineError, decode_line, read_line

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]
TOOL = dict(zip(TOOL_FIELDS, P, strict=True))


def good(**changes):
    """A canonical forecast with something changed."""
    return {"row_id": "a", "repeat": 0, "probabilities": P} | changes


@pytest.mark.parametrize(
    "row",
    [
        good(),
        {"row_id": "a", **TOOL},
        {"comparison_id": "a", "bin_probabilities": {str(b): p for b, p in enumerate(P, 1)}},
        {
            "pair_id": "a",
            "bin_probabilities": [{"bin": b, "p": p} for b, p in reversed(list(enumerate(P, 1)))],
            "parse_failed": False,
        },
    ],
)
def test_every_form_gives_the_same_forecast(row):
    """Canonical, tool call, published (map or list)."""
    line = read_line(row)
    assert (line.row_id, line.repeat, line.probabilities) == ("a", 0, P)


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (good(probabilities=[0.5] * 9), "wrong-length", "probabilities"),
        (good(probabilities="0.1"), "wrong-length", "probabilities"),
        (good(probabilities=[-0.0] * 8), "zero-sum", "probabilities"),
        (good(probabilities=[0.5, -0.1, *P[2:]]), "negative", "probabilities"),
        (good(probabilities=[1e300, *P[1:]]), "not-finite", "probabilities"),
        (good(probabilities=[math.nan, *P[1:]]), "not-finite", "probabilities"),
        (good(probabilities=[10**400, *P[1:]]), "not-finite", "probabilities"),
        (good(probabilities=["0.5", *P[1:]]), "not-a-number", "probabilities"),
        (good(probabilities=[True, *P[1:]]), "not-a-number", "probabilities"),
        (good(probabilities=[None, *P[1:]]), "not-a-number", "probabilities"),
        (good(probabilities=None), "missing-field", "probabilities"),
        (good(parse_failed=True), "contradiction", "probabilities"),
        (good(**TOOL), "contradiction", "probabilities"),
        (good(bin_probabilities=[]), "contradiction", "probabilities"),
        (good(row_id=None), "missing-field", "row_id"),
        (good(row_id=5), "bad-row-id", "row_id"),
        (good(row_id=""), "bad-row-id", "row_id"),
        (good(repeat=-1), "out-of-range", "repeat"),
        (good(repeat=100), "out-of-range", "repeat"),
        (good(repeat=0.5), "out-of-range", "repeat"),
        (good(predicted_bin=9), "out-of-range", "predicted_bin"),
        (good(expected_speedup=0), "out-of-range", "expected_speedup"),
        (good(defer="yes"), "not-a-flag", "defer"),
        (good(rationale=5), "not-text", "rationale"),
        (good(input_tokens=-1), "out-of-range", "input_tokens"),
        ({"row_id": "a", **dict.fromkeys(TOOL_FIELDS[:7], 0.1)}, "missing-field", TOOL_FIELDS[7]),
        ({"row_id": "a", "bin_probabilities": {"1": 1.0}}, "wrong-length", "bin_probabilities"),
        ({"row_id": "a", "bin_probabilities": [1, 2]}, "wrong-shape", "bin_probabilities"),
        ({"row_id": "a", "bin_probabilities": []}, "missing-field", "probabilities"),
    ],
)
def test_a_fault_names_its_field(row, code, field):
    """And the place in it."""
    with pytest.raises(LineError) as raised:
        read_line(row)
    assert [(f.code, f.field) for f in raised.value.findings] == [(code, field)]


def test_what_may_be_left_out_or_written_otherwise():
    """A line without a distribution says why; null is absent; 5.0 is 5; the row id is the first."""
    assert read_line({"row_id": "a", "parse_failed": True}).probabilities is None
    assert read_line({"row_id": "a", "defer": True}).probabilities is None
    line = read_line(good(predicted_bin=5.0, repeat=2.0, comparison_id="b", elapsed_s=3))
    assert (line.row_id, line.predicted_bin, line.repeat, line.latency_s) == ("a", 5, 2, 3)
    both = {"pair_id": "b", "comparison_id": "a", "probabilities": P}
    assert read_line(both).row_id == "a"
    assert read_line(good(defer=None, rationale=None)) == read_line(good())


def test_all_faults_of_a_line_are_listed():
    """Not only the first; numbers that JSON does not have name their place."""
    given = [math.nan, -1, "x", 0, 0, 0, 0, math.inf]
    line = json.dumps(good(repeat=-1, probabilities=given, defer=2)).replace("Infinity", "1e400")
    with pytest.raises(LineError) as raised:
        read_line(decode_line(line.encode()))
    assert [(fault.code, fault.field) for fault in raised.value.findings] == [
        ("out-of-range", "repeat"),
        ("not-finite", "probabilities"),
        ("negative", "probabilities"),
        ("not-a-number", "probabilities"),
        ("not-finite", "probabilities"),
        ("not-a-flag", "defer"),
    ]
    assert "bin 8 must be finite" in [f.message for f in raised.value.findings]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "bad-json"),
        (b"{", "bad-json"),
        (b"[1]", "wrong-shape"),
        (b'{"row_id": "a"} {}', "bad-json"),
        (b'{"row_id": "\xff"}', "bad-utf8"),
        (b"[" * 1_000_000, "bad-json"),
        (b'{"a":' * 200_000, "bad-json"),
        (b"1" * 5000, "bad-json"),
    ],
)
def test_lines_that_hold_no_object(text, code):
    """A fault each, and no other exception."""
    with pytest.raises(LineError) as raised:
        decode_line(text)
    assert [fault.code for fault in raised.value.findings] == [code]


@pytest.mark.parametrize("bad", [b"\\ud800", b"\xed\xa0\x80"])
def test_a_lone_surrogate_becomes_a_question_mark(bad):
    """Wherever it stands: as it is, no record and no page could be written."""
    text = json.dumps(good(rationale="X", X=1)).encode().replace(b"X", bad)
    fields = decode_line(text)
    assert read_line(fields).rationale.strip("?") == ""
    assert json.dumps(fields).isascii()
    assert "\\ud" not in json.dumps(fields)
