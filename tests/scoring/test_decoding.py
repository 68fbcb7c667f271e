"""One line of a file: decoded, or what is wrong with it."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.scoring.formats import read_entry
from kernel_archive.scoring.reader import decode_line, quick_entry

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


def entry_of(row):
    """The forecast and codes of the faults."""
    entry, faults, _ = read_entry(row, file="f", line=1)
    return entry, [(f.code, f.field) for f in faults]


def good(**changes):
    """A canonical forecast with something changed; ``None`` leaves a field out."""
    row = {"row_id": "a", "repeat": 0, "probabilities": P} | changes
    return {k: v for k, v in row.items() if v is not None}


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
    got = quick[0]
    assert [got.row_id, got.repeat, list(got.probabilities), got.stated, got.defer] == [
        entry.row_id, entry.repeat, list(entry.probabilities), entry.stated, entry.defer,
    ]  # fmt: skip
    for name in ("raw_sum", "input_tokens", "output_tokens", "latency_s"):
        assert repr(getattr(got, name)) == repr(float(getattr(entry, name)))
    assert quick[1] == row.get("rationale")
