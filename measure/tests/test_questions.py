"""Tests of proposals as files: what is asked, what is taken, and that a search waits without loss."""  # noqa: E501

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.answers import answer, run_answered, run_plan
from support.cheats import NUMPY_HONEST

from kernel_archive.errors import DataError, UsageError
from kernel_measure.providers import NoProposal, Parent, Proposal
from kernel_measure.questions import AIM, MAX_ANSWER, FileProvider

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
    return given.propose("q", Parent("x", 1.0), None, seen)


def test_answers_are_programs_or_reasons(tmp_path):
    """Text, JSON with a program, JSON with a reason; a program that was proposed before is none."""
    given = provider(tmp_path)
    assert ask(given) is None
    (tmp_path / "proposals" / "q.py").write_text("code")
    assert ask(given) == Proposal("code")
    assert ask(given, {"code"}) == NoProposal("the program was proposed before")
    (tmp_path / "proposals" / "q.json").write_text('{"failed": "no idea"}')
    assert ask(given) == NoProposal("no idea")


@pytest.mark.parametrize("data", [b"{", b'{"kode": "x"}', b'{"code": 3}', b"x" * (MAX_ANSWER + 1)])
def test_a_bad_answer_is_named_with_its_file(tmp_path, data):
    """Damage, unknown fields, wrong types and size."""
    given = provider(tmp_path)
    (tmp_path / "proposals" / "q.json").write_bytes(data)
    with pytest.raises(DataError, match=r"q\.json"):
        ask(given)


def test_a_start_that_is_missing_is_a_usage_error(tmp_path):
    """The program that a plan names to start from must be there."""
    with pytest.raises(UsageError, match="start from"):
        FileProvider(tmp_path, "rehearsal", "standin", tmp_path / "no.py")
