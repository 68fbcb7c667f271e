"""Facts of the model behind an entry: stated, checked, kept, shown."""

import json

import pytest
from support.boards import DRAWS

from kernel_archive.board import add_submission, build_board
from kernel_archive.board.model_facts import ModelFacts, fact_rows, prompt_of, seen_of
from kernel_archive.board.submissions import load_submission
from kernel_archive.errors import DataError

PROMPT = "v1-forecast-json-paper@0123456789abcdef"
FACTS = ModelFacts(
    revision="2026-10-01", provider="Example", temperature=0.0, reasoning_effort="high", open_weights=False,
    training_cutoff="2026-03", saw_archive="no",
)  # fmt: skip


def test_facts_are_kept_and_shown(tmp_path, files, archive, target):
    """From the call to the record and the page; the prompt comes from the forecasts."""
    lines = [{**json.loads(line), "prompt": PROMPT} for line in files["good"].read_text().splitlines()]
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    board = tmp_path / "board"
    made = add_submission(path, target, name="x", model="m", facts=FACTS, board=board, draws=DRAWS)
    stored = load_submission(made.folder)
    assert stored == made.submission
    assert stored.model_facts == ModelFacts(
        **{name: getattr(FACTS, name) for name in FACTS.__struct_fields__} | {"prompt": PROMPT}
    )
    rows = dict(fact_rows(stored.model_facts))
    assert rows == {
        "Revision": "2026-10-01", "Provider": "Example", "Temperature": "0", "Reasoning effort": "high", "Prompt": PROMPT,
        "Weights": "closed", "Training cut-off": "2026-03", "Trained on this archive": "no, as declared",
    }  # fmt: skip
    build_board(archive, board, draws=DRAWS, jobs=1)
    page = (board / "entries" / "x.html").read_text()
    for title, text in rows.items():
        assert f'<th scope="row">{title}</th><td>{text}</td>' in page


def test_an_entry_without_a_model_states_nothing(tmp_path, files, target):
    """No table in the record, no row on the page."""
    made = add_submission(files["good"], target, name="x", board=tmp_path / "board", draws=DRAWS)
    assert made.submission.model_facts is None
    assert "model_facts" not in (made.folder / "submission.toml").read_text()
    assert fact_rows(None) == []
    assert fact_rows(ModelFacts()) == [("Trained on this archive", "not declared")]


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"training_cutoff": "March"}, "training_cutoff"),
        ({"training_cutoff": "2026-13"}, "training_cutoff"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"provider": "x" * 81}, "provider"),
        ({"revision": "a\u202eb"}, "revision"),
    ],
)
def test_facts_that_are_none_are_refused(tmp_path, files, target, facts, field):
    """By field, before anything is written."""
    with pytest.raises(DataError) as caught:
        add_submission(files["good"], target, name="x", facts=ModelFacts(**facts), board=tmp_path / "board")
    assert [finding.field for finding in caught.value.findings] == [field]
    assert not (tmp_path / "board").exists()


def test_forecasts_answer_one_prompt():
    """Two prompts in a file are two entries; lines that name none beside lines that do are refused, too."""
    one, other, none = (json.dumps(line).encode() + b"\n" for line in ({"prompt": "a"}, {"prompt": "b"}, {}))
    assert prompt_of(one + one, "f") == "a"
    assert prompt_of(none + none, "f") == ""
    for lines in (one + other, one + none):
        with pytest.raises(DataError, match="A changed prompt is another entry"):
            prompt_of(lines, "f")


def test_the_record_of_a_training_says_what_was_seen(tmp_path):
    """Training rows: yes; held-out rows mark the entry; a record of something else is refused."""
    for held, seen in ((False, "yes"), (True, "held-out")):
        path = tmp_path / "training.json"
        path.write_text(json.dumps({"split": "eval", "held_out": held}))
        assert seen_of(path) == seen
    assert "held-out rows" in dict(fact_rows(ModelFacts(saw_archive="held-out")))["Trained on this archive"]
    for text in ("{}", "[]", '{"held_out": "no"}', "not JSON"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"training\.json"):
            seen_of(path)
    with pytest.raises(DataError):
        seen_of(tmp_path / "none.json")
