"""One forecast in any form: its line decoded, its fields read, and their faults."""

import json
import math
import time

import pytest

from kernel_archive.scoring.formats import TOOL_FIELDS, LineFaults, decode_line, read_line

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


def entry_of(row):
    """The forecast and codes of the faults."""
    faults = LineFaults("f", 1)
    entry = read_line(row, faults)
    return entry, [(f.code, f.field) for f in faults.findings]


def decoded(text):
    """The object of a line and the codes of its faults."""
    faults = LineFaults("f", 1)
    value = decode_line(text, faults)
    return value, [(f.code, f.field) for f in faults.findings]


def good(**changes):
    """A canonical forecast with something changed; ``None`` leaves a field out."""
    row = {"row_id": "a", "repeat": 0, "probabilities": P} | changes
    return {k: v for k, v in row.items() if v is not None}


@pytest.mark.parametrize(
    "row",
    [
        good(),
        {"row_id": "a", **dict(zip(TOOL_FIELDS, P, strict=True))},
        {
            "comparison_id": "a",
            "bin_probabilities": [{"bin": b, "p": p} for b, p in enumerate(P, 1)],
            "parse_failed": False,
        },
        {"comparison_id": "a", "bin_probabilities": {str(b): p for b, p in enumerate(P, 1)}},
        {"pair_id": "a", "bin_probabilities": [(str(b), p) for b, p in enumerate(P, 1)]},
        {
            "pair_id": "a",
            "bin_probabilities": [{"bin": b, "p": p} for b, p in reversed(list(enumerate(P, 1)))],
        },
    ],
)
def test_every_form_gives_the_same_forecast(row):
    """Canonical, tool call, published (list, map, Parquet map."""
    entry, faults = entry_of(row)
    assert not faults
    assert (entry.row_id, entry.repeat, list(entry.probabilities)) == ("a", 0, P)


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (good(probabilities=[0.5] * 9), "wrong-length", "probabilities"),
        (good(probabilities=[]), "wrong-length", "probabilities"),
        (good(probabilities="0.1"), "wrong-length", "probabilities"),
        (good(probabilities=[0] * 8), "zero-sum", "probabilities"),
        (good(probabilities=[-0.0] * 8), "zero-sum", "probabilities"),
        (good(probabilities=[0.5, -0.1, *P[2:]]), "negative", "probabilities[1]"),
        (good(probabilities=[math.nan, *P[1:]]), "not-finite", "probabilities[0]"),
        (good(probabilities=[*P[:7], math.inf]), "not-finite", "probabilities[7]"),
        (good(probabilities=[10**400, *P[1:]]), "not-finite", "probabilities[0]"),
        (good(probabilities=["0.5", *P[1:]]), "not-a-number", "probabilities[0]"),
        (good(probabilities=[True, *P[1:]]), "not-a-number", "probabilities[0]"),
        (good(probabilities=[None, *P[1:]]), "not-a-number", "probabilities[0]"),
        (good(probabilities=[[0.5], *P[1:]]), "not-a-number", "probabilities[0]"),
        (good(probabilities=None), "missing-field", "probabilities"),
        (good(row_id=None), "missing-field", "row_id"),
        (good(row_id=""), "bad-row-id", "row_id"),
        (good(row_id=7), "bad-row-id", "row_id"),
        (good(row_id=["a"]), "bad-row-id", "row_id"),
        (good(repeat=-1), "out-of-range", "repeat"),
        (good(repeat=100), "out-of-range", "repeat"),
        (good(repeat=1.5), "out-of-range", "repeat"),
        (good(repeat=True), "out-of-range", "repeat"),
        (good(repeat="0"), "out-of-range", "repeat"),
        (good(predicted_bin=0), "out-of-range", "predicted_bin"),
        (good(predicted_bin=9), "out-of-range", "predicted_bin"),
        (good(defer="yes"), "not-a-flag", "defer"),
        (good(defer=1), "not-a-flag", "defer"),
        (good(parse_failed=True), "contradiction", "probabilities"),
        (good(rationale=5), "not-text", "rationale"),
        (good(comparison_id="b"), "contradiction", "comparison_id"),
        (
            good(bin_probabilities={str(b): 0.125 for b in range(1, 9)}),
            "contradiction",
            "bin_probabilities",
        ),
        (good(**dict.fromkeys(TOOL_FIELDS, 0.125)), "contradiction", "p_*"),
        (
            {"row_id": "a", "arguments": dict(zip(TOOL_FIELDS, P, strict=True))},
            "missing-field",
            "probabilities",
        ),
        (good(latency_s=1, elapsed_s=2), "contradiction", "elapsed_s"),
        (good(input_tokens=-1), "out-of-range", "input_tokens"),
        (good(latency_s=math.nan), "out-of-range", "latency_s"),
        (
            {"row_id": "a", **dict(zip(TOOL_FIELDS[:7], P, strict=False))},
            "missing-field",
            TOOL_FIELDS[7],
        ),
        (
            {"row_id": "a", **dict.fromkeys(TOOL_FIELDS, 0.1), TOOL_FIELDS[2]: "x"},
            "not-a-number",
            TOOL_FIELDS[2],
        ),
        ({"row_id": "a", "bin_probabilities": {"1": 1.0}}, "wrong-length", "bin_probabilities"),
        (
            {"row_id": "a", "bin_probabilities": [{"bin": 1, "p": 0.5}] * 8},
            "wrong-length",
            "bin_probabilities",
        ),
        ({"row_id": "a", "bin_probabilities": [1, 2]}, "wrong-shape", "bin_probabilities"),
        (
            {"row_id": "a", "bin_probabilities": [], "parse_failed": False},
            "missing-field",
            "probabilities",
        ),
    ],
)
def test_every_fault_names_its_field(row, code, field):
    """One fault each, at the field (and place) that it is in."""
    entry, faults = entry_of(row)
    assert entry is None
    assert faults == [(code, field)]


def test_all_faults_of_a_line_are_listed():
    """Not only the first."""
    _, faults = entry_of(
        {
            "row_id": "a",
            "repeat": -1,
            "probabilities": [math.nan, -1, "x", 0, 0, 0, 0, 0],
            "defer": 2,
        }
    )
    assert [code for code, _ in faults] == [
        "out-of-range",
        "not-finite",
        "negative",
        "not-a-number",
        "not-a-flag",
    ]


@pytest.mark.parametrize(
    "row", [good(probabilities=None, parse_failed=True), good(probabilities=None, defer=True)]
)
def test_a_forecast_without_a_distribution_says_why(row):
    """Parse failures and deferred candidates have none; null counts as absent."""
    entry, faults = entry_of(row)
    assert not faults
    assert entry.probabilities is None


def test_negative_zero_and_whole_numbers_are_fine():
    """-0.0 is zero; 5.0 is bin 5, as data frames write columns with gaps."""
    entry, faults = entry_of(
        good(probabilities=[-0.0, 1, 0, 0, 0, 0, 0, 0], predicted_bin=5.0, repeat=2.0)
    )
    assert not faults
    assert (entry.predicted_bin, entry.repeat) == (5, 2)


def test_a_misspelt_field_is_named():
    """A near miss of the probabilities is a hint."""
    faults = LineFaults("f", 3)
    assert read_line({"row_id": "a", "probabilites": P}, faults) is None
    assert "probabilites" in faults.findings[0].fix


def test_fields_that_say_the_same_twice_are_fine():
    """The same id, the same numbers and the same seconds under two names contradict nothing."""
    row = good(
        comparison_id="a", **dict(zip(TOOL_FIELDS, P, strict=True)), latency_s=2, elapsed_s=2.0
    )
    entry, faults = entry_of(row)
    assert not faults
    assert (entry.row_id, list(entry.probabilities), entry.latency_s) == ("a", P, 2)
    assert entry_of(good(elapsed_s=3) | {"latency_s": None})[0].latency_s == 3


CANONICAL = json.dumps(
    good(defer=False, rationale="r", input_tokens=1, output_tokens=1, latency_s=1, predicted_bin=6)
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "bad-json"),
        (b"{", "bad-json"),
        (b"[1]", "bad-json"),
        (b"null", "bad-json"),
        (b'{"row_id": "a"} {}', "bad-json"),
        (b'{"row_id": "\xff"}', "bad-utf8"),
        (b"[" * 1_000_000, "nested-too-deeply"),
        (b'{"a":' * 200_000, "nested-too-deeply"),
        (b"1" * 5000, "bad-json"),
        (b'{"row_id": "a", "row_id": "b", "probabilities": [1]}', "repeated-field"),
        (b'{"probabilities": [1], "probabilities": [2]}', "repeated-field"),
    ],
)
def test_lines_that_hold_no_object(text, code):
    """A finding each, never an exception."""
    value, faults = decoded(text)
    assert value is None
    assert [found for found, _ in faults] == [code]


@pytest.mark.parametrize("name", sorted(json.loads(CANONICAL)))
@pytest.mark.parametrize("escaped", [False, True])
def test_no_field_is_there_twice_unnoticed(name, escaped):
    """Whichever it is, also with a letter of its name escaped."""
    key = f"\\u{ord(name[0]):04X}{name[1:]}" if escaped else name
    text = f'{{"{key}": {json.dumps(json.loads(CANONICAL)[name])}, {CANONICAL[1:]}'.encode()
    assert json.loads(text) == json.loads(CANONICAL)
    assert decoded(text) == (None, [("repeated-field", name)])


@pytest.mark.parametrize(
    "text",
    [
        b'{"row_id": "a", "bin_probabilities": {"1": 0.5, "2": 0.5, "1": 0.1}}',
        b'{"row_id": "a", "bin_probabilities": [{"bin": 1, "p": 0.5, "p": 0.1}]}',
        b'{"row_id": "a", "more": {"repeat": 0, "repe\\u0061t": 1}}',
        b'{"row_id": "a", "surrogate_label": "x", "surrogate_label": "y"}',
        b'{"row_id": "a", "parse_failed": true, "parse_failed": false}',
    ],
)
def test_fields_inside_a_line_are_not_there_twice_either(text):
    """Bins of a map, members of a list, an object that nothing reads, the label."""
    assert [code for code, _ in decoded(text)[1]] == ["repeated-field"]


def test_a_line_of_very_many_keys_takes_no_time():
    """The search for repeated fields is linear: a megabyte of keys, one of them there twice."""
    keys = ", ".join(f'"k{i}": 1' for i in range(75_000))
    text = f'{{"row_id": "a", {keys}, "row_id": "b"}}'.encode()
    start = time.perf_counter()
    assert decoded(text) == (None, [("repeated-field", "row_id")])
    assert time.perf_counter() - start < 5


def test_numbers_out_of_range_are_decoded_so_that_their_field_can_be_named():
    """NaN, Infinity and 1e400 are not JSON or no double: the fault is at the number."""
    for number in ("NaN", "Infinity", "1e400"):
        line = json.dumps(good()).replace("0.7", number).encode()
        _, faults = entry_of(decoded(line)[0])
        assert faults == [("not-finite", "probabilities[5]")]
