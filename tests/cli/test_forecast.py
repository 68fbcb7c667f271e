"""``forecast``, as its users call it."""

import json
import subprocess
import sys

import pytest

from kernel_archive.scoring.formats import TOOL_FIELDS

ANSWER = json.dumps(dict(zip(TOOL_FIELDS, [0, 0, 0, 0, 0.1, 0.8, 0.1, 0], strict=True)))


@pytest.fixture
def run(run, archive):
    """Runs a command on the small archive."""
    return lambda *arguments: run(*arguments, "--archive", archive)


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_export_answer_import_check_score(run, tmp_path, split):
    """The whole way, with what the user is told on it."""
    questions, answers, forecasts = (tmp_path / name for name in ("q.jsonl", "a.jsonl", "f.jsonl"))
    status, out, _ = run(
        "forecast", "--export", questions, "--model", "m", "--split", split, "--limit", 20
    )
    assert status == 0
    assert "questions: 20\n" in out
    assert "without a reference: 0\n" in out
    lines = [json.loads(line) for line in questions.read_text().splitlines()]
    plain = [{"custom_id": line["custom_id"], "answer": ANSWER} for line in lines[:19]]
    plain[3]["answer"] = "I can't say."
    answers.write_text("".join(json.dumps(line) + "\n" for line in plain))
    status, out, _ = run(
        "forecast", "--import", answers, "--split", split, "--limit", 20, "-o", forecasts
    )
    assert status == 0
    assert "answered: 19\n" in out
    assert "forecasts: 18\n" in out
    assert "unparsed: no-json 1" in out
    assert "unanswered: no answer 1" in out
    assert run("check", forecasts, "--split", split)[0] == 0
    assert run("score", forecasts, "--split", split, "--draws", 0)[0] == 0
    status, out, _ = run(
        "forecast", "--import", answers, "--split", split, "-o", forecasts, "--force", "--json"
    )
    assert json.loads(out)["counts"]["unparsed"] == {"no-json": 1}
    # With the answers beside it, an export holds what is left.
    again = ("--export", questions, "--import", answers, "--model", "m", "--force")
    status, out, _ = run("forecast", *again, "--split", split, "--limit", 20, "--json")
    assert json.loads(out)["questions"] == 1


def test_the_batch_form_needs_nothing_of_the_extra(archive, tmp_path):
    """Neither the help nor an export imports Inspect."""
    code = (
        "import sys; from kernel_archive.cli import main; main(['forecast', '--help']); "
        "main(['forecast', '--model', 'm', '--limit', '2', '--export', 'q.jsonl', "
        f"'--archive', {str(archive)!r}]); "
        "assert 'inspect_ai' not in sys.modules and 'openai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "m", "-o", "f.jsonl"), "inspect eval kernel_archive/forecast --model PROV"),
        (("--export", "q.jsonl"), "--model NAME"),
        (("--import", "a.jsonl"), "-o FILE"),
        (("--export", "q.jsonl", "--from-log", "a.eval"), "give one of"),
        (("--import", "a.jsonl", "--from-log", "a.eval"), "give one of"),
        (
            ("--export", "q.jsonl", "--model", "m", "--split", "discovery", "--defer"),
            "without --defer",
        ),
        (("--export", "none/q.jsonl", "--model", "m"), "no directory"),
    ],
)
def test_wrong_calls_say_what_to_do(run, tmp_path, monkeypatch, arguments, said):
    """Status 2 and one line."""
    monkeypatch.chdir(tmp_path)
    status, _, err = run("forecast", *arguments)
    assert status == 2
    assert said in err
