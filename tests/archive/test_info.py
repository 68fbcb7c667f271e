"""Why a search measured a program, by its own log; a strange log says nothing and does no harm."""

import json

import pytest

from kernel_archive.archive.info import reasons

EVENTS = [
    {
        "kind": "step_started",
        "step": 4,
        "parent_ulids": ["a", "b"],
        "selected_parent_scores": [0.5, 1.5],
        "selected_parent_visits": [3, 7],
    },
    {"kind": "forecast_completed", "request_id": "m", "forecast": {"probabilities": [1.0]}},
    {"kind": "candidate_selected", "request_id": "m", "selection_score": 2.5},
    {
        "kind": "evaluation_requested",
        "request_id": "r",
        "child_ulid": "c",
        "parent_ulid": "b",
        "code": "",
        "from_mutation_request_id": "m",
    },
    {
        "kind": "evaluation_requested",
        "request_id": "s",
        "child_ulid": "d",
        "parent_ulid": "z",
        "code": "",
    },
]


def log(folder, lines):
    """Write a log of events."""
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def test_the_figures_of_a_measured_child(tmp_path):
    """Score and visits of the parent, forecast and selection score, as they stand in the log."""
    log(tmp_path, [json.dumps(event).encode() for event in EVENTS])
    assert reasons(tmp_path, "events.jsonl", "c") == {
        "step": 4,
        "parent_score": 1.5,
        "parent_visits": 7,
        "selection_score": 2.5,
        "forecast": {"probabilities": [1.0]},
    }
    assert reasons(tmp_path, "events.jsonl", "r") == reasons(tmp_path, "events.jsonl", "c")


@pytest.mark.parametrize(
    ("file", "node"),
    [("events.jsonl", "d"), ("events.jsonl", "nobody"), ("none.jsonl", "c"), ("../x.jsonl", "c")],
)
def test_what_a_log_does_not_say_is_nothing(tmp_path, file, node):
    """A parent of no step, a stranger, a missing file, one outside the folder: no reasons."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log(folder, [json.dumps(event).encode() for event in EVENTS])
    (tmp_path / "x.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    assert reasons(folder, file, node) is None
