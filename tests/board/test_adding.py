"""Adding submissions: whole or not at all, whoever else adds and whatever is killed."""

import gzip
import hashlib
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.boards import DRAWS, informed, killing, write_lines
from support.folders import contents

from kernel_archive.board import build_board
from kernel_archive.board.adding import add_submission
from kernel_archive.board.submissions import (
    ModelFacts,
    ModelRunFacts,
    load_submission,
    submission_folders,
)
from kernel_archive.errors import DataError, ForecastError, TargetExistsError
from kernel_archive.llm.run import ModelRun, run_path
from kernel_archive.scoring import read_record
from kernel_archive.untrusted import read_whole


def names(folder):
    """What is in a folder, hidden things included."""
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, partial(pa.compress, codec="zstd", asbytes=True)]
)
def test_it_stores_lines_record_and_score(tmp_path, files, split, pack):
    """The lines as they were sent, compressed or not, who sent them, and what they score."""
    file, board = tmp_path / "f", tmp_path / "b"
    file.write_bytes(pack(files["good"].read_bytes()))
    stated = {"url": "https://example.org", "model": "m", "notes": "n"}
    made = add_submission(file, split, name="My Model 7B", **stated, board=board, draws=DRAWS)
    assert made.folder == board / "submissions/my-model-7b"
    stored = read_whole(made.folder / "forecasts.jsonl.zst", max_bytes=1 << 20)
    assert stored == files["good"].read_bytes()
    record = load_submission(made.folder)
    assert record.name == "My Model 7B"
    assert {field: getattr(record, field) for field in stated} == stated
    assert record.forecasts_sha256 == hashlib.sha256(files["good"].read_bytes()).hexdigest()
    assert record.archive.split_digest == split.identity.split_digest
    score = read_record(made.folder / "score.json")
    assert score == made.score
    assert str(tmp_path) not in (made.folder / "score.json").read_text()


def test_a_name_is_taken_once_and_names_a_folder(tmp_path, files, split):
    """The same folder again, and a name without a letter for it: nothing changes."""
    add_submission(files["good"], split, name="One", board=tmp_path, draws=DRAWS)
    before = contents(tmp_path)
    with pytest.raises(TargetExistsError, match="there already"):
        add_submission(files["prior"], split, name="ONE", board=tmp_path, draws=DRAWS)
    with pytest.raises(DataError, match="no letter or digit"):
        add_submission(files["prior"], split, name="../日本", board=tmp_path, draws=DRAWS)
    assert contents(tmp_path) == before
    assert names(tmp_path / "submissions") == ["one"]


def test_what_is_refused_leaves_no_trace(tmp_path, files, split):
    """A faulty file, named as the user named it; a Parquet table; a folder of other things."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(files["good"].read_text().replace("0.", "NaN, 0.", 1))
    with pytest.raises(ForecastError, match=r"bad\.jsonl"):
        add_submission(bad, split, name="x", board=tmp_path / "b", draws=DRAWS)
    with pytest.raises(TargetExistsError, match="not a board"):
        add_submission(files["good"], split, name="x", board=tmp_path, draws=DRAWS)
    rows = [json.loads(line) for line in files["good"].read_text().splitlines()]
    percent = (json.dumps(row | {"probabilities": [12.5] * 8}) for row in rows)
    bad.write_text("\n".join(percent))
    with pytest.raises(ForecastError, match="Divide percentages by 100"):
        add_submission(bad, split, name="x", board=tmp_path / "b", draws=DRAWS)
    pq.write_table(pa.Table.from_pylist(rows), bad)
    with pytest.raises(DataError, match="write_ndjson"):
        add_submission(bad, split, name="x", board=tmp_path / "b", draws=DRAWS)
    assert names(tmp_path) == ["bad.jsonl"]


@pytest.mark.parametrize("other", ["b", None])
def test_forecasts_answer_one_prompt(tmp_path, files, split, other):
    """Two prompts in a file are two entries; so are lines that name one and lines that don't."""
    lines = [json.loads(line) for line in files["good"].read_text().splitlines()]
    lines = [line | {"prompt": other if i % 2 else "a"} for i, line in enumerate(lines)]
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match="A changed prompt is another entry"):
        add_submission(path, split, name="x", board=tmp_path / "b")


RUN = ModelRun(
    prompt="v1@0123",
    model="m",
    answer="json",
    settings={"temperature": 0.5, "max_tokens": 900, "api_key": "sk-secret"},
    date="2026-11-01",
    served_models=["/home/me/m-2026.gguf", "C:\\models\\m-2027.gguf", "o/m"],
    input_tokens=10,
    output_tokens=20,
)


def test_facts_and_what_was_asked_come_along(tmp_path, files, split, archive):
    """What was stated, the prompt of the forecasts and FILE.run.json reach record and page.

    A key and the folders of a model don't.
    """
    lines = [
        json.loads(line) | {"prompt": "v1@01"} for line in files["good"].read_text().splitlines()
    ]
    file = tmp_path / "f.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_path(file).write_bytes(msgspec.json.encode(RUN))
    facts = ModelFacts(open_weights=False, saw_archive="no")
    made = add_submission(file, split, name="x", facts=facts, board=tmp_path / "b", draws=DRAWS)
    stored = load_submission(made.folder)
    assert stored == made.submission
    assert stored.model_facts == msgspec.structs.replace(facts, prompt="v1@01")
    assert stored.model_run == ModelRunFacts(
        served_model="m-2026.gguf, m-2027.gguf, o/m",
        temperature=0.5,
        max_tokens=900,
        answer="json",
        date="2026-11-01",
        package=RUN.package,
        input_tokens=10,
        output_tokens=20,
    )
    build_board(archive, tmp_path / "b", draws=DRAWS, jobs=1)
    page = (tmp_path / "b/entries/x.html").read_text()
    served = "m-2026.gguf, m-2027.gguf, o/m"
    for text in (served, "0.5", "900", "v1@01", "closed", "no, as declared"):
        assert f"<td>{text}</td>" in page
    for path in filter(Path.is_file, (tmp_path / "b").rglob("*")):
        assert b"sk-secret" not in path.read_bytes()
        assert b"/home/me" not in path.read_bytes()


ADD = """
import sys
from kernel_archive.board import add_submission
from kernel_archive.scoring import load_split
archive, file, name, board = sys.argv[1:]
try:
    add_submission(file, load_split(archive, "eval"), name=name, board=board, draws=100)
except Exception as error:
    print(type(error).__name__)
    sys.exit(1)
"""


def start(archive, *arguments, before=""):
    """An add in a process of its own: of a file, by a name, to a board."""
    command = [sys.executable, "-c", before + ADD, *map(str, (archive.path, *arguments))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("moment", ["score", "write_atomically", "to_toml"])
def test_a_kill_in_the_middle_leaves_the_store_as_it_was(tmp_path, archive, files, split, moment):
    """SIGKILL while an add writes, scores or is about to rename.

    No entry, and the next add cleans up and works.
    """
    add_submission(files["prior"], split, name="one", board=tmp_path, draws=DRAWS)
    before = contents(tmp_path / "submissions/one")
    before_adding = killing("kernel_archive.board.adding", moment)
    with start(archive, files["good"], "two", tmp_path, before=before_adding) as process:
        assert process.wait() == -signal.SIGKILL
    assert [p.name for p in submission_folders(tmp_path / "submissions")] == ["one"]
    assert contents(tmp_path / "submissions/one") == before
    add_submission(files["good"], split, name="two", board=tmp_path, draws=DRAWS)
    assert names(tmp_path / "submissions") == ["one", "two"]


def test_adds_at_once_lose_nothing(tmp_path, archive, split):
    """Four different entries added at once are all there; of two with one name exactly one is."""
    processes = []
    for i, name in enumerate(("a", "b", "c", "same", "same")):
        file = write_lines(tmp_path / f"{i}.jsonl", split, informed(split, 1.0, seed=i))
        processes.append(start(archive, file, name, tmp_path / "board"))
    ends = []
    for process in processes:
        with process:
            ends.append((process.wait(timeout=120), process.stdout.read().strip()))
    assert sorted(ends) == [(0, "")] * 4 + [(1, "TargetExistsError")]
    assert names(tmp_path / "board/submissions") == ["a", "b", "c", "same"]
    for folder in submission_folders(tmp_path / "board/submissions"):
        assert np.isfinite(read_record(folder / "score.json").metrics["crps"].mean)
        load_submission(folder)
