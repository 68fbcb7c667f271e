"""``template``, ``check``, ``score`` and ``compare``, as their users call them."""

import json
import os
import shlex

import pytest

from kernel_archive.scoring import compare, load_split, read_forecasts, score
from kernel_archive.scoring.record import read_record


@pytest.fixture
def run(run, archive):
    """Runs a command on the small archive, unless another is named."""
    return lambda name, *arguments: run(name, "--archive", archive, *arguments)


@pytest.fixture
def files(archive, tmp_path):
    """Two forecast files: one sure of the right bin, one of bin 5."""
    target = load_split(archive)
    paths = []
    for name, bins in (("right", target.bins.tolist()), ("five", [5] * len(target))):
        path = tmp_path / f"{name}.jsonl"
        rows = [
            {"row_id": row_id, "probabilities": [0.86 if k == b else 0.02 for k in range(1, 9)]}
            for row_id, b in zip(target.row_ids, bins, strict=True)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(path)
    return paths


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_a_template_can_be_checked_and_scored(run, tmp_path, split):
    """Template -o, check, score: each ends with status 0 and says what comes next."""
    path = tmp_path / "mine.jsonl"
    status, out, err = run("template", "--split", split, "--repeats", 2, "-o", path)
    assert status == 0
    more = "" if split == "eval" else " --split discovery"
    assert f"kernel-archive check {path}{more} --archive " in out
    assert "probabilities of the eight bins" in err
    status, out, _ = run("check", path, "--split", split)
    assert status == 0
    assert "can be scored" in out
    status, out, _ = run("score", path, "--split", split, "--draws", 50)
    assert status == 0
    assert "mine on" in out


def test_a_template_goes_to_stdout_and_nothing_else_does(run):
    """So that it can be redirected; the explanation is on stderr, or in the JSON."""
    status, out, err = run("template")
    assert status == 0
    assert all(json.loads(line)["probabilities"] == [0.125] * 8 for line in out.splitlines())
    assert "severe_slowdown" in err
    status, out, err = run("template", "--json")
    result = json.loads(out)
    assert (status, err, result["rows"]) == (0, "", len(result["lines"]))
    assert result["fields"]["row_id"]


def test_a_faulty_file_ends_with_status_1_and_every_fault(run, tmp_path, files):
    """Twenty in full, the rest counted; with --json all of them. Equal ones are one line."""
    path = tmp_path / "bad.jsonl"
    path.write_text(
        "".join(
            json.dumps({"row_id": f"nobody{i}", "probabilities": [f"\x1b[2J{i}"] + [1] * 7}) + "\n"
            for i in range(30)
        )
    )
    status, out, _ = run("check", path)
    assert status == 1
    assert "can not be scored" in out
    assert "bin 1 must be a number" in out
    assert len([line for line in out.splitlines() if line.startswith("error: ")]) == 20
    assert "... and 10 more (all of them with --json)" in out
    assert "\x1b" not in out
    status, out, _ = run("check", path, "--json")
    report = json.loads(out)
    assert status == 1
    assert len(report["findings"]) == 30
    assert {"code", "message", "file", "line", "field", "value"} <= set(report["findings"][1])
    status, _, err = run("score", path)
    assert status == 1
    assert "30 faults" in err
    path.write_text('{"id": "a", "probs": []}\n' * 18)
    (error,) = [line for line in run("check", path)[1].splitlines() if line.startswith("error: ")]
    missing = "there is no row id. Give the row_id of the split (and 17 more lines like it)"
    assert error.endswith(f":1: row_id: {missing}")
    assert "Traceback" not in err


def test_percentages_are_refused(run, tmp_path, files):
    """By check and score, with one message; among good lines they are a warning."""
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    percent = [row | {"probabilities": [100 * p for p in row["probabilities"]]} for row in rows]
    path = tmp_path / "percent.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in percent))
    for command in ("check", "score"):
        status, out, err = run(command, path)
        assert status == 1
        assert "none of 48 lines can be read as a forecast" in out + err
        assert "sum to about 100, first in this one. Divide percentages by 100" in out + err
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[1:], percent[0]]))
    status, out, _ = run("check", path)
    assert status == 0
    assert "warning: " in out
    assert "1 of 48 lines sum to about 100, first in this one. Divide percentages by" in out


def test_missing_rows_are_no_fault_and_are_said(run, files):
    """A file that leaves rows out can be scored; check says how many count as uniform."""
    lines = files[0].read_text().splitlines()
    files[0].write_text("\n".join(lines[3:]))
    status, out, _ = run("check", files[0])
    assert status == 0
    ids = [json.loads(line)["row_id"] for line in lines[:3]]
    warning = f"3 of {len(lines)} rows have no forecast. Each counts as even odds; template lists "
    warning += "every row. The first: "
    assert f"{warning}{', '.join(ids)}\n" in out
    assert "0 faults, 1 warning: missing-rows 1" in out
    assert "a board does not rank a file that covers under 95 %" in out  # 45 of 48
    assert warning in run("score", files[0], "--draws", 0)[2]
    files[0].write_text("\n".join(lines[1:]))
    assert "a board does not rank" not in run("check", files[0])[1]


def test_a_score_as_json_is_the_score_record(run, files, archive):
    """The same as the Python function gives, and nothing else on stdout; options are in it."""
    status, out, _ = run("score", files[0], "--json", "--draws", 40, "--seed", 3)
    target = load_split(archive)
    assert status == 0
    own = read_forecasts(files[0], target)
    assert read_record(out.encode()) == score(target, own, seed=3, draws=40)
    options = ("--bins", "released", "--predicted-bin", "stated", "--draws", 0)
    record = json.loads(run("score", files[0], *options, "--json")[1])
    assert (record["scheme"], record["relabelled"]) == ("released", True)
    assert record["predicted_bin"] == "stated"
    assert "Labels computed anew under released" in run("score", files[0], *options)[1]


def test_several_files_are_ranked_side_by_side(run, files, tmp_path):
    """One line each, best first; as JSON a list; -o writes the records."""
    status, out, _ = run("score", *reversed(files), "--draws", 40, "-o", tmp_path / "both.json")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [name for name in names if name in {"right", "five"}] == ["right", "five"]
    out = run("score", *files, "--draws", 0, "--json")[1]
    assert [r["forecasts"]["name"] for r in json.loads(out)] == ["right", "five"]
    assert len(json.loads((tmp_path / "both.json").read_text())) == 2


def test_a_comparison_is_the_one_of_the_function(run, files, archive):
    """As a table and as JSON."""
    status, out, _ = run("compare", *files, "--draws", 60)
    assert status == 0
    assert "A - B: with its 95 % interval" in out
    result = json.loads(run("compare", *files, "--draws", 400, "--json")[1])
    target = load_split(archive)
    direct = compare(*(read_forecasts(f, target) for f in files), target, draws=400)
    assert result["differences"]["crps"]["p"] == direct.differences["crps"].p
    assert result["differences"]["crps"]["better"] == direct.differences["crps"].better


def test_a_file_name_that_is_no_text_can_be_scored(run, files, tmp_path):
    """Bytes that are not UTF-8 are shown in the record, on stdout and in a file."""
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/mi\xffne.jsonl")
    files[0].rename(bad)
    status, out, err = run("score", bad, "--draws", 0, "--json", "-o", tmp_path / "record.json")
    assert status == 0, err
    assert json.loads(out)["forecasts"]["name"] == "mi\\udcffne"
    assert read_record(tmp_path / "record.json").forecasts.source.endswith("mi\\udcffne.jsonl")
    assert run("score", bad, "--draws", 0)[0] == 0
    assert run("compare", bad, files[1], "--draws", 20, "--json")[0] == 0
    status, out, _ = run("template", "-o", bad, "--force", "--json")
    assert status == 0
    assert json.loads(out)["file"].endswith("mi\\udcffne.jsonl")


@pytest.mark.parametrize("command", ["template", "score"])
def test_an_output_in_the_way_is_left_alone(run, files, tmp_path, command):
    """An existing file, or a directory that is not there; with --force it is replaced."""
    arguments = ["template"] if command == "template" else ["score", files[0], "--draws", 0]
    path = tmp_path / "there.json"
    path.write_text("precious")
    status, out, err = run(*arguments, "-o", path)
    assert (status, out, path.read_text()) == (1, "", "precious")
    assert "exists already" in err
    status, _, err = run(*arguments, "-o", tmp_path / "no" / "there.json")
    assert status == 2
    assert "there is no directory" in err
    assert run(*arguments, "-o", path, "--force")[0] == 0
    assert path.read_text() != "precious"


def test_what_comes_next_can_be_pasted(run, archive, tmp_path, monkeypatch):
    """With the archive and split that were named."""
    monkeypatch.chdir(tmp_path)
    named = ("--archive", archive, "--split", "discovery")
    _, out, err = run("template", *named, "-o", "a b.jsonl")
    assert run(*shlex.split(err.splitlines()[-1])[1:])[0] == 0
    line = f"kernel-archive check 'a b.jsonl' --split discovery --archive {archive}"
    assert out.endswith(f"fill it in, then: {line}\n")
    assert run(*shlex.split(line)[1:])[0] == 0
    _, out, _ = run("baseline", "uniform", *named, "-o", "u.jsonl")
    assert out.endswith(f"score u.jsonl --split discovery --archive {archive}\n")
    _, out, _ = run("forecast", *named, "--export", "q.jsonl", "--model", "a model", "--limit", 2)
    assert f"--split discovery --archive {archive} --model 'a model'\n" in out
