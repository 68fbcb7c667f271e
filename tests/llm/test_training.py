"""What a model learns from: the forecasters' prompts, their order, and what is held back."""

import json
from collections import Counter

import pytest

from kernel_archive.errors import DataError, UsageError
from kernel_archive.llm.prompts import answer_schema
from kernel_archive.llm.questions import load_questions
from kernel_archive.llm.training import answer_text, load_training_examples
from kernel_archive.scoring.completions import read_completion


@pytest.fixture(scope="module")
def examples(archive):
    """All training pairs of the small archive."""
    return load_training_examples(archive)


def test_prompts_are_those_of_the_forecasters(archive):
    """A row of a split is asked about in the same words and under the same name."""
    for split in ("eval", "discovery"):
        asked = load_questions(archive, split)
        labelled = load_training_examples(archive, split, held_out=True)
        assert {row.row_id: labelled.text(row) for row in labelled.rows} == {
            q.row_id: q.text for q in asked
        }
        assert labelled.prompts[labelled.rows[0].kind] == asked.prompt


def test_the_order_takes_bins_in_turn_and_never_changes(archive, examples):
    """Any first N hold as many of each bin as there are; a seed makes another order."""
    again, other = load_training_examples(archive), load_training_examples(archive, seed=1)
    ids = [row.row_id for row in examples.rows]
    assert [row.row_id for row in again.rows] == ids
    assert [row.row_id for row in other.rows] != ids
    assert {row.row_id for row in other.rows} == set(ids)
    total = Counter(row.bin for row in examples.rows)
    for n in range(1, len(examples), 7):
        first = Counter(row.bin for row in examples.rows[:n])
        level = max(first.values())
        assert all(first[b] >= min(total[b], level - 1) for b in total)


def test_labels_are_those_of_the_table(archive, examples):
    """Bin and speedup of every pair, each pair once."""
    table = {
        r["row_id"]: (r["bin"], r["speedup"], r["pair_type"])
        for r in archive.arrow("train_pairs").to_pylist()
    }
    assert {row.row_id: (row.bin, row.speedup, row.kind) for row in examples.rows} == table
    only = load_training_examples(archive, kinds=["seed"])
    assert {row.kind for row in only.rows} == {"seed"}


def test_chats_texts_and_datasets_are_the_same(examples):
    """Prompts are messages or text, with an answer to imitate on request."""
    chats = list(examples.labelled_prompts(answer=True))
    texts = list(examples.labelled_prompts(chat=False, answer=True))
    assert [c["prompt"] for c in chats] == [
        [{"role": "user", "content": t["prompt"]}] for t in texts
    ]
    assert [c["completion"] for c in chats] == [
        [{"role": "assistant", "content": t["completion"]}] for t in texts
    ]
    assert "completion" not in next(examples.labelled_prompts())
    assert list(examples.dataset(chat=False, answer=True)) == texts


def test_answers_to_imitate_are_forecasts_of_the_true_bin(examples):
    """Answers have every field that is asked for, and most mass on the true bin."""
    tops = set()
    for row in examples.rows:
        text = answer_text(row)
        read = read_completion(text)
        assert sum(read.probabilities) == pytest.approx(1)
        assert (
            read.predicted_bin == row.bin == max(range(8), key=lambda b: read.probabilities[b]) + 1
        )
        assert read.expected_speedup == pytest.approx(row.speedup, rel=0.06)
        assert json.loads(text).keys() == answer_schema("forecast")["properties"].keys()
        tops.add(max(read.probabilities))
    assert len(tops) > 10


def test_long_prompts_are_left_out_whole(examples):
    """By an estimate or a tokenizer; what is left out is named, the order stays."""
    lengths = sorted(len(examples.text(row)) for row in examples.rows)
    most = lengths[len(lengths) // 2]
    kept = examples.fitting(most, count=len)
    assert list(kept.rows) == [row for row in examples.rows if len(examples.text(row)) <= most]
    (dropped,) = kept.dropped.values()
    assert 0 < dropped == len(examples) - len(kept)
    assert examples.fitting(5).dropped == {"prompt of more than 5 tokens": len(examples)}


def test_held_out_rows_need_a_word_and_stand_in_the_record(archive, examples):
    """Held-out rows need the flag; the record says so."""
    for split in ("eval", "discovery", "discovery_pairs"):
        with pytest.raises(UsageError, match="held_out=True"):
            load_training_examples(archive, split)
    assert not examples.record()["held_out"]
    assert sum(examples.record()["bins"]) == len(examples) == examples.record()["rows"]
    seen = load_training_examples(archive, "eval", held_out=True).record()
    assert (seen["split"], seen["held_out"]) == ("eval", True)


def test_nothing_to_learn_from_is_said(archive):
    """An unknown type of pair is named; a type that the archive has none of ends in an error."""
    with pytest.raises(UsageError, match="unknown type of pair 'edit'"):
        load_training_examples(archive, kinds=["edit"])
    with pytest.raises(DataError, match="no training pairs of type pair"):
        load_training_examples(archive, kinds=["pair"])
