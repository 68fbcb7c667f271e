"""One forecast in any form: its line decoded, its fields read, and their faults."""

import json
import math
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.scoring.formats import TOOL_FIELDS, decode_line, quick_entry, read_entry

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


def entry_of(row):
    """The forecast and codes of the faults."""
    entry, faults, _ = read_entry(row, file="f", line=1)
    return entry, [(f.code, f.field) for f in faults]


def good(**changes):
    """A canonical forecast with something changed; ``None`` leaves a field out."""
    row = {"row_id": "a", "repeat": 0, "probabilities": P} | changes
    return {k: v for k, v in row.items() if v is not None}


@pytest.mark.parametrize(
    "row",
    [
        good(),
        {"row_id": "a", **dict(zip(TOOL_FIELDS, P, strict=True))},
        {"row_id": "a", "arguments": dict(zip(TOOL_FIELDS, P, strict=True))},
        {"row_id": "a", "arguments": json.dumps(dict(zip(TOOL_FIELDS, P, strict=True)))},
        {
            "comparison_id": "a",
            "bin_probabilities": [{"bin": b, "p": p} for b, p in enumerate(P, 1)],
            "parse_failed": False,
        },
        {"comparison_id": "a", "bin_probabilities": {str(b): p for b, p in enumerate(P, 1)}},
        {"pair_id": "a", "bin_probabilities": [(str(b), p) for b, p in enumerate(P, 1)]},
        {"pair_id": "a", "bin_probabilities": [{"bin": b, "p": p} for b, p in reversed(list(enumerate(P, 1)))]},
    ],
)
def test_every_form_gives_the_same_forecast(row):
    """Canonical, tool call (flat, nested, as text), published (list, map, Parquet map, any order)."""
    entry, faults = entry_of(row)
    assert not faults
    assert (entry.row_id, entry.repeat, list(entry.probabilities)) == ("a", 0, P)
    assert entry.raw_sum == pytest.approx(1.0)


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
        (good(bin_probabilities={str(b): 0.125 for b in range(1, 9)}), "contradiction", "bin_probabilities"),
        (good(**dict.fromkeys(TOOL_FIELDS, 0.125)), "contradiction", "p_*"),
        (good(arguments={"probabilities": [0.125] * 8}), "contradiction", "probabilities"),
        (good(arguments={"row_id": "b"}), "contradiction", "row_id"),
        (good(latency_s=1, elapsed_s=2), "contradiction", "elapsed_s"),
        (good(arguments='{"repeat": 0, "repeat": 1, "repeat": 0}'), "repeated-field", "arguments"),
        (good(input_tokens=-1), "out-of-range", "input_tokens"),
        (good(latency_s=math.nan), "out-of-range", "latency_s"),
        ({"row_id": "a", **dict(zip(TOOL_FIELDS[:7], P, strict=False))}, "missing-field", TOOL_FIELDS[7]),
        ({"row_id": "a", **dict.fromkeys(TOOL_FIELDS, 0.1), TOOL_FIELDS[2]: "x"}, "not-a-number", TOOL_FIELDS[2]),
        ({"row_id": "a", "arguments": "{"}, "bad-json", "arguments"),
        ({"row_id": "a", "arguments": "[" * 100_000}, "bad-json", "arguments"),
        ({"row_id": "a", "arguments": [1]}, "bad-json", "arguments"),
        ({"row_id": "a", "bin_probabilities": {"1": 1.0}}, "wrong-length", "bin_probabilities"),
        ({"row_id": "a", "bin_probabilities": [{"bin": 1, "p": 0.5}] * 8}, "wrong-length", "bin_probabilities"),
        ({"row_id": "a", "bin_probabilities": [1, 2]}, "wrong-shape", "bin_probabilities"),
        ({"row_id": "a", "bin_probabilities": [], "parse_failed": False}, "missing-field", "probabilities"),
    ],
)
def test_every_fault_names_its_field(row, code, field):
    """One fault each, at the field (and place) that it is in."""
    entry, faults = entry_of(row)
    assert entry is None
    assert faults == [(code, field)]


def test_all_faults_of_a_line_are_listed():
    """Not only the first."""
    _, faults = entry_of({"row_id": "a", "repeat": -1, "probabilities": [math.nan, -1, "x", 0, 0, 0, 0, 0], "defer": 2})
    assert [code for code, _ in faults] == ["out-of-range", "not-a-flag", "not-finite", "negative", "not-a-number"]


@pytest.mark.parametrize("row", [good(probabilities=None, parse_failed=True), good(probabilities=None, defer=True)])
def test_a_forecast_without_a_distribution_says_why(row):
    """Parse failures and deferred candidates have none; null counts as absent."""
    entry, faults = entry_of(row)
    assert not faults
    assert entry.probabilities is None
    assert math.isnan(entry.raw_sum)


def test_negative_zero_and_whole_numbers_are_fine():
    """-0.0 is zero; 5.0 is bin 5, as data frames write columns with gaps."""
    entry, faults = entry_of(good(probabilities=[-0.0, 1, 0, 0, 0, 0, 0, 0], predicted_bin=5.0, repeat=2.0))
    assert not faults
    assert (entry.predicted_bin, entry.repeat) == (5, 2)


def test_the_published_raw_sum_is_kept_beside_the_real_one():
    """The published table holds renormalised numbers and their sum before that: both are known."""
    row = {
        "comparison_id": "a",
        "bin_probabilities": {str(b): p for b, p in enumerate(P, 1)},
        "raw_probability_sum": 80.0,
    }
    assert entry_of(row)[0].raw_probability_sum == 80.0
    assert entry_of(row)[0].raw_sum == pytest.approx(1.0)


def test_a_misspelt_field_is_named():
    """Fields that nothing reads are returned; a near miss of the probabilities is a hint."""
    row = {"row_id": "a", "probabilites": P}
    entry, faults, strange = read_entry(row, file="f", line=3)
    assert entry is None
    assert strange == ["probabilites"]
    assert "probabilites" in faults[0].fix


def test_fields_that_say_the_same_twice_are_fine():
    """The same id, the same numbers and the same seconds under two names contradict nothing."""
    row = good(comparison_id="a", **dict(zip(TOOL_FIELDS, P, strict=True)), latency_s=2, elapsed_s=2.0)
    entry, faults = entry_of(row | {"arguments": {"row_id": "a", "probabilities": P}})
    assert not faults
    assert (entry.row_id, list(entry.probabilities), entry.latency_s) == ("a", P, 2)
    assert entry_of(good(elapsed_s=3) | {"latency_s": None})[0].latency_s == 3


CANONICAL = json.dumps(good(defer=False, rationale="r", input_tokens=1, output_tokens=1, latency_s=1, predicted_bin=6))


numbers = st.one_of(st.floats(-1, 2), st.integers(-1, 2), st.sampled_from([0.0, -0.0, 0.125, 1e300, 5e-324, 10**30]))
anything = st.one_of(st.none(), st.booleans(), st.text(max_size=5), numbers, st.lists(numbers, max_size=9))


lines = st.fixed_dictionaries(
    {
        "row_id": st.one_of(st.text(min_size=1, max_size=5), anything),
        "probabilities": st.lists(numbers, min_size=8, max_size=8),
    },
    optional={
        "repeat": st.one_of(st.integers(-1, 101), anything),
        "predicted_bin": st.one_of(st.integers(0, 9), anything),
        "defer": anything,
        "rationale": anything,
        "input_tokens": anything,
        "latency_s": anything,
    },
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
    out = decode_line(text, file="f", line=1)
    assert isinstance(out, list)
    assert [f.code for f in out] == [code]


@pytest.mark.parametrize("name", sorted(json.loads(CANONICAL)))
@pytest.mark.parametrize("escaped", [False, True])
def test_no_field_is_there_twice_unnoticed(name, escaped):
    """Whichever it is, also with a letter of its name escaped; neither way to read a line lets one of the two win."""
    key = f"\\u{ord(name[0]):04X}{name[1:]}" if escaped else name
    text = f'{{"{key}": {json.dumps(json.loads(CANONICAL)[name])}, {CANONICAL[1:]}'.encode()
    assert json.loads(text) == json.loads(CANONICAL)
    assert quick_entry(text) is None
    assert [(f.code, f.field) for f in decode_line(text, file="f", line=1)] == [("repeated-field", name)]


@pytest.mark.parametrize(
    "text",
    [
        b'{"row_id": "a", "bin_probabilities": {"1": 0.5, "2": 0.5, "1": 0.1}}',
        b'{"row_id": "a", "bin_probabilities": [{"bin": 1, "p": 0.5, "p": 0.1}]}',
        b'{"row_id": "a", "arguments": {"repeat": 0, "repe\\u0061t": 1}}',
        b'{"row_id": "a", "surrogate_label": "x", "surrogate_label": "y"}',
        b'{"row_id": "a", "parse_failed": true, "parse_failed": false}',
    ],
)
def test_fields_inside_a_line_are_not_there_twice_either(text):
    """Bins of a map, members of a list, the arguments of a tool call, the label."""
    assert [f.code for f in decode_line(text, file="f", line=1)] == ["repeated-field"]


def test_an_escaped_field_that_is_there_once_is_read():
    """Escapes are JSON; only a second one is a fault."""
    text = CANONICAL.replace("row_id", "row\\u005fid").encode()
    assert decode_line(text, file="f", line=1) == json.loads(CANONICAL)


def test_a_line_of_very_many_keys_takes_no_time():
    """The search for repeated fields is linear: a megabyte of keys, one of them there twice."""
    keys = ", ".join(f'"k{i}": 1' for i in range(75_000))
    text = f'{{"row_id": "a", {keys}, "row_id": "b"}}'.encode()
    start = time.perf_counter()
    found = decode_line(text, file="f", line=1)
    assert time.perf_counter() - start < 5
    assert [f.code for f in found] == ["repeated-field"]


def test_a_key_quoted_in_a_rationale_is_no_repeated_field():
    """The check for repeated fields looks at keys, not at text."""
    line = json.dumps(good(rationale='I set "probabilities": [..] and "row_id"')).encode()
    assert isinstance(decode_line(line, file="f", line=1), dict)


def test_numbers_out_of_range_are_decoded_so_that_their_field_can_be_named():
    """NaN, Infinity and 1e400 are not JSON or no double: the fault is at the number."""
    for number in ("NaN", "Infinity", "1e400"):
        line = json.dumps(good()).replace("0.7", number).encode()
        assert quick_entry(line) is None
        _, faults = entry_of(decode_line(line, file="f", line=1))
        assert faults == [("not-finite", "probabilities[5]")]


@given(lines)
def test_the_quick_way_gives_what_the_long_way_gives(row):
    """Where the typed decoder takes a line, the field-by-field reading agrees with it."""
    text = json.dumps(row).encode()
    quick = quick_entry(text)
    decoded = decode_line(text, file="f", line=1)
    entry, faults, _ = read_entry(decoded, file="f", line=1)
    if quick is None:
        return
    assert not faults
    assert quick.rationale == row.get("rationale")
    short = msgspec.structs.replace(quick, defer=quick.defer is True, rationale=None, prompt=None, stop_reason=None)
    assert repr(short) == repr(msgspec.structs.replace(entry, rationale=None))
