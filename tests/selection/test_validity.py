"""The split that asks whether programs pass: from its rows to questions and scores."""

import json
import re
from types import SimpleNamespace

import pytest
from support.archives import Run, Search, make_archive, remake
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.registry import make_baseline
from kernel_archive.board.payload import _bins, _rows
from kernel_archive.errors import ForecastError, LeakageError, UsageError
from kernel_archive.ids import program_id
from kernel_archive.llm.answers import ModelAnswer
from kernel_archive.llm.prompts import Prompt
from kernel_archive.llm.questions import load_questions
from kernel_archive.llm.training import load_training_examples
from kernel_archive.scoring import load_split, read_forecasts, score
from kernel_archive.scoring.summary import score_sheets
from kernel_archive.scoring.template import explanation, template_lines
from kernel_archive.selection.check import check_splits
from kernel_archive.storage import content_path

SEARCHES = [
    Search("held/t", "trimul"),
    Search("held/c", "causal_attention"),
    Search("trained", "trimul", role="training"),
]
RUNS = [
    Run("held/t", program("good"), 2.0),
    Run("held/t", program("broken"), None, outcome="compile_failed"),
    # Two measurements passed, and one between them did not.
    Run("held/t", program("shaky"), 1.5),
    Run("held/t", program("shaky"), None, node="again"),
    Run("held/t", program("shaky"), 1.6, node="third"),
    Run("held/t", program("unlucky"), None, outcome="infrastructure_failure"),
    Run("held/t", program("unlucky"), 1.1, node="later"),
    Run("held/t", program("never run"), None, outcome="infrastructure_failure"),
    Run("held/c", program("fast"), 9.0),
    *(Run("trained", program(f"t{i}"), 1.2) for i in range(6)),
    *(Run("trained", program(f"f{i}"), None) for i in range(2)),
]
OUTCOMES = {
    "good": "success",
    "broken": "compile_failed",
    "shaky": "incorrect",
    "unlucky": "success",
    "fast": "success",
}


def made(tmp_path, runs):
    """An archive of these runs with the split, by the shipped rule for any builder."""
    definition = tmp_path / "validity.toml"
    text = (content_path("splits") / "validity.toml").read_text()
    definition.write_text(re.sub(r"builders = .*", "builders = []", text))
    directory = make_archive(tmp_path / "archive", SEARCHES, runs)
    remake(directory, "validity", definition=definition)
    return open_archive(directory)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Programs that pass, fail, do both, and never ran."""
    return made(tmp_path_factory.mktemp("validity"), RUNS)


def test_a_program_passes_if_no_measurement_of_it_failed(archive):
    """What the machine failed at says nothing; the texts of failing programs are shown."""
    rows = archive.polars("validity")
    names = {program_id(program(name)): name for name in OUTCOMES}
    found = {
        names[program_id(row["candidate_code"])]: (row["outcome"], row["passes"], row["bin"])
        for row in rows.to_dicts()
    }
    ends = {True: (1, 8), False: (0, 1)}
    assert found == {name: (why, *ends[why == "success"]) for name, why in OUTCOMES.items()}
    inputs = archive.polars("eval_inputs", "validity")
    assert inputs["row_id"].to_list() == rows["row_id"].to_list()
    assert not {"passes", "outcome", "bin", "speedup"} & {*inputs.columns}
    assert [f.code for f in check_splits(archive) if f.severity == "error"] == []


def test_a_failed_program_in_training_is_a_leak(tmp_path):
    """Here the same tokens passed on another reference's problem."""
    leaked = Run("trained", program("broken", comment="a copy"), 1.2)
    with pytest.raises(LeakageError, match="but for comments and white space"):
        made(tmp_path, [*RUNS, leaked])


def test_nothing_is_learnt_about_outcomes(archive):
    """Baselines learn speeds, and training examples are of speeds."""
    with pytest.raises(UsageError, match="prior forecasts speeds"):
        make_baseline("prior", archive, "validity")
    with pytest.raises(UsageError, match="no example is made"):
        load_training_examples(archive, "validity", held_out=True)


def test_a_score_by_hand(archive):
    """Brier and its skill over the base rate, the order of failures; nothing said is even odds."""
    split = load_split(archive, "validity")
    codes = archive.polars("validity", columns=["row_id", "candidate_code"]).iter_rows()
    rows = {program_id(code): row for row, code in codes}
    chances = {"good": 0.9, "broken": 0.2, "shaky": 0.8, "unlucky": 0.7}  # fast: none
    lines = [
        {"row_id": rows[program_id(program(name))], "p_passes": p} for name, p in chances.items()
    ]
    m = {name: x.mean for name, x in score(split, read_forecasts(lines, split)).metrics.items()}
    assert m["brier"] == pytest.approx((0.1**2 + 0.2**2 + 0.8**2 + 0.3**2 + 0.5**2) / 5)
    assert m["crps"] == pytest.approx(m["brier"])
    assert m["crps_skill"] == pytest.approx(1 - m["brier"] / (0.4 * 0.6))
    assert m["average_precision_failures"] == pytest.approx((1 + 2 / 4) / 2)
    template = [json.loads(line) for line in template_lines(split)]
    uniform = score(split, read_forecasts(template, split))
    assert uniform.metrics["average_precision_failures"].mean == pytest.approx(2 / 5)
    assert uniform.metrics["brier"].mean == pytest.approx(0.25)
    assert uniform.drawn.unit == "problems"
    assert "p_passes" in explanation(split)[0]
    explained = "\n".join(explanation(split))
    assert not [w for w in ("probabilities ", "bin", "expected_speedup") if w in explained]
    sheet = score_sheets(uniform)[0]
    assert not re.search(r"\bbins?\b", "\n".join([sheet.title, *sheet.notes]))
    assert (
        "share of programs that pass" in {c.name: c.title for c in uniform.controls}["frequencies"]
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"probabilities": [0.125] * 8}, "other-form"),
        ({"p_passes": 0.5, "probabilities": [0.125] * 8}, "contradiction"),
        ({"p_passes": 85}, "out-of-range"),
        ({"p_passes": None}, "missing-field"),
    ],
)
def test_another_form_of_forecast_is_a_fault(archive, fields, code):
    """Eight bins say nothing of a failure, and a chance to pass nothing of a speedup."""
    split = load_split(archive, "validity")
    with pytest.raises(ForecastError) as caught:
        read_forecasts([{"row_id": split.row_ids[0], **fields}], split)
    assert [finding.code for finding in caught.value.findings] == [code]
    assert caught.value.findings[0].field == (
        "probabilities" if "probabilities" in fields else "p_passes"
    )


def test_a_boards_page_says_passes_and_fails(archive):
    """No speedup that nobody measured; a failing program has a log and no flags."""
    split = load_split(archive, "validity")
    rows = _rows(archive, SimpleNamespace(split=split), {})
    assert (rows["speedup"], set(rows["bin"])) == (None, {1, 8})
    assert _bins(split) == {1: ["fails", ""], 8: ["passes", ""]}
    assert all(kernel["src"] and kernel["flags"] == [] for kernel in rows["kernel"])


def test_a_model_is_asked_for_one_number(archive):
    """The prompt asks for the chance to pass, shows no bins, and an answer becomes a line."""
    questions = load_questions(archive, "validity")
    prompt, question = questions.prompt, next(iter(questions))
    assert "`p_passes`" in question.text
    assert "severe_slowdown" not in question.text
    answer = ModelAnswer(row_id=question.row_id, repeat=0, content='So {"p_passes": 0.3}')
    line = answer.line(prompt, question.digest)
    assert (line["p_passes"], "probabilities" in line) == (0.3, False)
    split = load_split(archive, "validity")
    assert read_forecasts([line], split).parsed.sum() == 1
    bins = {"probabilities": [0.125] * 8}
    other = ModelAnswer(row_id=question.row_id, repeat=0, content=bins)
    for asked, said in ((prompt, other), (Prompt(ask="forecast"), answer)):
        assert said.line(asked, question.digest)["parse_error"] == "missing-field"
