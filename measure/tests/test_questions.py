"""Tests of proposals as files: what is asked, what is taken, and that a search waits without loss."""  # noqa: E501

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.answers import answer, run_answered, run_plan
from support.cheats import NUMPY_HONEST

from kernel_archive.errors import DataError, UsageError
from kernel_measure.logs import MAX_GIVEN_BYTES, read_lines
from kernel_measure.questions import AIM, FileProvider, Proposal
from kernel_measure.strategies import SearchNode

PLAN = Path(__file__).with_name("plan") / "plan.toml"
ONLY = ("tree_search/*",)
RUN = "tree_search/rehearsal__s1"


def questions(out):
    """Open and answered questions of the run."""
    paths = sorted((out / RUN / "questions").glob("*.json"))
    return {path.stem: msgspec.json.decode(path.read_bytes()) for path in paths}


def test_a_question_holds_what_a_mutator_may_know(tmp_path):
    """Aim, problem, GPU and the parent with verdict and times; no bin, no score, no other program."""  # noqa: E501
    done = run_plan(PLAN, tmp_path, only=ONLY)
    asked = questions(tmp_path)
    assert done.waiting == len(asked) == 2
    for question in asked.values():
        assert question.keys() == {"question", "aim", "problem", "gpu", "parent"}
        assert question["aim"] == AIM == "As fast as possible, and correct."
        assert question["parent"].keys() == {"code", "verdict", "speedup", "cases"}
        assert question["parent"]["verdict"] == "success"
        assert {"speedup", "runtime_ns", "ref_runtime_ns"} <= question["parent"]["cases"][0].keys()


def test_a_search_waits_and_goes_on_without_loss(tmp_path):
    """A question keeps its id over calls; what was answered is measured once."""
    run_plan(PLAN, tmp_path, only=ONLY)
    before = questions(tmp_path)
    assert run_plan(PLAN, tmp_path, only=ONLY).evaluations == 0
    assert questions(tmp_path) == before
    first = next(iter(before))
    folder = tmp_path / RUN / "proposals"
    folder.mkdir()
    (folder / f"{first}.py").write_text(NUMPY_HONEST + "# one\n")
    assert run_plan(PLAN, tmp_path, only=ONLY).evaluations == 1
    assert run_plan(PLAN, tmp_path, only=ONLY).evaluations == 0
    done = run_answered(PLAN, tmp_path, only=ONLY)
    assert (done.waiting, done.unfinished) == (0, 0)
    assert answer(tmp_path) == 0


def provider(folder):
    """A provider with an answer to the question q."""
    (folder / "proposals").mkdir(parents=True, exist_ok=True)
    return FileProvider(folder, "rehearsal", "standin", None)


def ask(given, seen=()):
    """Ask the question q."""
    return given.propose("q", SearchNode(ulid="u", code="x", ancestors=[], reward=1.0), seen)


def test_answers_are_programs_or_reasons(tmp_path):
    """Text, JSON with a program, JSON with a reason; a program that was proposed before is none."""
    given = provider(tmp_path)
    assert ask(given) is None
    (tmp_path / "proposals" / "q.py").write_text("code")
    assert ask(given) == Proposal(code="code")
    assert ask(given, {"code"}) == Proposal(failed="the program was proposed before")
    (tmp_path / "proposals" / "q.json").write_text('{"failed": "no idea"}')
    assert ask(given) == Proposal(failed="no idea")


@pytest.mark.parametrize("folder", ["proposals", "forecasts"])
@pytest.mark.parametrize(
    "data",
    [
        *(b"{", b'{"kode": "x"}', b'{"code": 3}', b"x" * (MAX_GIVEN_BYTES + 1)),
        *(b'{"expected_speedup": 0}', b'{"expected_speedup": "fast"}'),
    ],
)
def test_a_bad_answer_is_named_with_its_file(tmp_path, folder, data):
    """Damage, unknown or missing fields, wrong types and size."""
    given = provider(tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "q.json").write_bytes(data)
    with pytest.raises(DataError, match=rf"{folder}/q\.json"):
        ask(given) if folder == "proposals" else given.forecast("q", "code")


def test_a_start_that_is_missing_is_a_usage_error(tmp_path):
    """The program that a plan names to start from must be there."""
    with pytest.raises(UsageError, match="start from"):
        FileProvider(tmp_path, "rehearsal", "standin", tmp_path / "no.py")


def test_a_forecaster_chooses_what_is_measured(tmp_path):
    """Of four proposals the two expected to be fastest are measured; the log names the others."""
    plan, out = tmp_path / "plan.toml", tmp_path / "runs"
    plan.write_text(PLAN.read_text().replace("steps = 3", "steps = 1\nproposals_per_parent = 4"))
    assert run_plan(plan, out).waiting == 4
    folder = out / RUN / "proposals"
    folder.mkdir()
    names = list(questions(out))
    for name in names:
        (folder / f"{name}.py").write_text(NUMPY_HONEST + f"# {name}\n")
    done = run_plan(plan, out)
    assert (done.waiting, done.evaluations) == (4, 0)
    assert f"# {names[0]}" in (out / RUN / "prompts" / f"{names[0]}.md").read_text("utf-8")
    (out / RUN / "forecasts").mkdir()
    for name, speedup in zip(names, [1.0, 3.0, 0.5, 2.0], strict=True):
        text = f'{{"expected_speedup": {speedup}, "rationale": "because"}}'
        (out / RUN / "forecasts" / f"{name}.json").write_text(text)
    done = run_plan(plan, out)
    assert (done.waiting, done.evaluations, done.unfinished) == (0, 2, 0)
    of_kind = {}
    for event in read_lines(out / RUN / "events.jsonl", Any):
        of_kind.setdefault(event["kind"], []).append(event)
    measured = [e["from_mutation_request_id"] for e in of_kind["evaluation_requested"]]
    assert measured == [names[1], names[3]]
    assert [e["request_id"] for e in of_kind["candidate_deferred"]] == [names[0], names[2]]
    assert of_kind["forecast_completed"][0]["forecast"]["rationale"] == "because"
