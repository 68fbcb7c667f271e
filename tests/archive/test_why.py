"""Why a search measured a program, by its own log; and that a strange log says nothing and does no harm."""

import json

import pytest
from measure.test_search import drive, events, speed_of
from measure.test_surrogate import forecaster, make

from kernel_archive.archive.info import reasons


@pytest.fixture
def run(tmp_path):
    """A recorded search with a surrogate: its folder and its events."""
    search = make(tmp_path / "run", forecaster(tmp_path))
    drive(search)
    search.close()
    return tmp_path, events(tmp_path / "run")


def test_every_measured_child_has_its_reasons(run):
    """Score and visits of the parent, forecast and selection score of the program, as they stand in the log."""
    folder, log = run
    requests = [e for e in log if e["kind"] == "evaluation_requested"]
    for event in (requests[0], requests[-1]):
        why = reasons(folder, "run/events.jsonl", event["child_ulid"])
        chosen = [
            e for e in log if e["kind"] == "candidate_selected" and e["request_id"] == event["from_mutation_request_id"]
        ]
        assert why["selection_score"] == chosen[0]["selection_score"]
        assert sum(why["forecast"]["probabilities"]) == pytest.approx(1.0)
    first = reasons(folder, "run/events.jsonl", requests[0]["child_ulid"])
    assert (first["step"], first["parent_visits"]) == (0, 0)
    assert first["parent_score"] == pytest.approx(speed_of("program 0"))


def test_what_a_log_does_not_say_is_nothing(run, tmp_path):
    """The root, a stranger, another folder's file, a damaged log of strange types: no reasons and no error."""
    folder, log = run
    root = log[0]["root"]["ulid"]
    for file, node in (
        ("run/events.jsonl", root),
        ("run/events.jsonl", "nobody"),
        ("none.jsonl", root),
        ("../run/events.jsonl", root),
    ):
        assert reasons(folder, file, node) is None
    strange = [
        {"kind": "step_started", "parent_ulids": 3, "selected_parent_scores": "x"},
        {"kind": "evaluation_requested", "request_id": "r", "child_ulid": "c", "parent_ulid": "p"}, [1], "x",
    ]  # fmt: skip
    damaged = (
        b'{torn\n{"kind": "step_started", "x": '
        + b"[" * 100_000
        + b'\n{"kind": "evaluation_requested", "request_id": "\xff"}\n'
    )
    (folder / "strange.jsonl").write_bytes(damaged + "".join(json.dumps(row) + "\n" for row in strange).encode())
    assert reasons(folder, "strange.jsonl", "c") is None
