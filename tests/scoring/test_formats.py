"""One forecast in any form, and its faults."""

import json
import math

import pytest

from kernel_archive.scoring.formats import TOOL_FIELDS, read_entry

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
    assert (entry.stated, entry.repeat) == (5, 2)


def test_the_published_raw_sum_is_kept_beside_the_real_one():
    """The published table holds renormalised numbers and their sum before that: both are known."""
    row = {
        "comparison_id": "a",
        "bin_probabilities": {str(b): p for b, p in enumerate(P, 1)},
        "raw_probability_sum": 80.0,
    }
    assert entry_of(row)[0].before_sum == 80.0
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
