"""``forecast``, as its users call it."""

import json

import pytest
from support.llm_server import ANSWER, served

from kernel_archive.board.adding import recorded_model_run
from kernel_archive.scoring import load_split


@pytest.fixture
def run(run, archive):
    """Runs a command on the small archive."""
    return lambda *arguments: run(*arguments, "--archive", archive)


@pytest.mark.parametrize(("split", "ask"), [("eval", "forecast"), ("discovery", "discovery")])
def test_export_answer_import_check_score(run, archive, tmp_path, split, ask):
    """The whole way, with what the user is told on it, and what was asked beside the forecasts."""
    questions, answers, forecasts = (tmp_path / name for name in ("q.jsonl", "a.jsonl", "f.jsonl"))
    which = ("--split", split)
    asked = ("--model", "m", "--repeats", 2, "--limit", 10)
    export = ("forecast", "--export", questions, *asked, *which)
    status, out, _ = run(*export)
    assert status == 0
    assert "questions: 20\n" in out
    assert "without a reference: 0\n" in out
    names = [json.loads(line)["custom_id"] for line in questions.read_text().splitlines()]
    lines = [served(name) for name in names[:18]]
    lines[3] = served(names[3], "I can't say.")
    lines.append({"custom_id": names[18], "answer": ANSWER})
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    convert = ("forecast", "--import", answers, "--model", "m", *which, "-o", forecasts)
    status, out, _ = run(*convert)
    assert status == 0
    assert "answered: 19\n" in out
    assert "forecasts: 18\n" in out
    assert "unparsed: no-json 1" in out
    assert f"unanswered: no answer {2 * len(load_split(archive, split)) - 19}" in out
    assert run("check", forecasts, "--split", split)[0] == 0
    assert run("score", forecasts, "--split", split, "--draws", 0)[0] == 0
    line, tokens = json.loads(forecasts.read_text().splitlines()[0]), 18 * 1200
    assert line["prompt"] == f"v1-{ask}-json-paper@{line['prompt'][-16:]}"
    assert (line["input_tokens"], line["output_tokens"]) == (1200, 90)
    record = json.loads((tmp_path / "f.jsonl.run.json").read_text())
    facts = {"model": "m", "served_models": ["served-1"], "input_tokens": tokens}
    assert record == record | facts | {"prompt": line["prompt"]}
    status, out, _ = run(*convert, "--force", "--json")
    assert json.loads(out)["counts"]["unparsed"] == {"no-json": 1}
    # With the answers beside it, an export holds what is left.
    status, out, _ = run(*export, "--import", answers, "--force", "--json")
    assert json.loads(out)["questions"] == 1
    status, _, err = run(*export, "--answer", "tool", "--import", answers, "--force")
    assert status == 2
    assert "--answer, --bins and --defer as for their export" in err


def test_settings_stated_with_import_are_facts_of_the_run(run, tmp_path):
    """As a board takes them from the file beside the forecasts; a temperature of 0 is one."""
    questions, answers, forecasts = (tmp_path / name for name in ("q.jsonl", "a.jsonl", "f.jsonl"))
    run("forecast", "--export", questions, "--model", "m", "--limit", 1)
    (line,) = questions.read_text().splitlines()
    answers.write_text(json.dumps(served(json.loads(line)["custom_id"])))
    settings = {"temperature": 0.0, "max_tokens": 900, "reasoning_effort": "low", "seed": 7}
    stated = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    convert = ("forecast", "--import", answers, "-o", forecasts, "--force")
    for more, written in (([], {}), (stated, settings)):
        assert run(*convert, *more)[0] == 0
        assert json.loads((tmp_path / "f.jsonl.run.json").read_text())["settings"] == written
        facts = recorded_model_run(forecasts)
        assert {name: facts[name] for name in settings if name in facts} == written
