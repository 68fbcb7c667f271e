"""``baseline`` and ``leaderboard`` as a user calls them."""

import json
import shutil

import pytest
from support.archives import Run, Search, make_archive
from support.boards import DRAWS, informed, write_lines
from support.folders import contents
from support.programs import program

from kernel_archive.board.adding import add_submission
from kernel_archive.errors import UsageError
from kernel_archive.pipeline import withhold_labels
from kernel_archive.scoring import load_split
from kernel_archive.selection.make import make_splits


@pytest.fixture
def here(archive, tmp_path, monkeypatch):
    """A directory with the archive where the commands look for it, and nothing else."""
    (tmp_path / "gpu-forecasters").mkdir()
    (tmp_path / "gpu-forecasters/kernels").symlink_to(archive)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_baseline_to_a_listed_entry(here, run):
    """baseline, add, build, verify: every step says the next one."""
    status, out, _ = run("baseline", "prior", "-o", "prior.jsonl")
    assert status == 0
    assert "kernel-archive score prior.jsonl" in out
    status, out, _ = run("leaderboard", "add", "prior.jsonl", "--name", "The prior")
    assert status == 0
    assert "leaderboard/submissions/the-prior\n" in out
    assert "next: kernel-archive leaderboard build" in out
    status, out, _ = run("leaderboard", "build", "--draws", "200")
    assert status == 0
    assert "The prior" in out
    shutil.copytree("leaderboard/submissions/the-prior", "leaderboard/submissions/twin")
    out = run("leaderboard", "build", "--draws", "200")[1]
    assert "twin: its forecasts are those of the-prior, which is listed" in " ".join(out.split())
    shutil.rmtree("leaderboard/submissions/twin")
    assert (here / "leaderboard/index.html").exists()
    status, out, _ = run("leaderboard", "verify")
    assert status == 0
    assert "1 of 1 are sound" in out


def test_json_of_every_step_is_json_alone(here, run):
    """A program reads the results; without a file a baseline's lines go to stdout."""
    lines = run("baseline", "uniform", "--split", "discovery")[1].splitlines()
    assert all(set(json.loads(line)) == {"row_id", "repeat", "probabilities"} for line in lines)
    baseline = json.loads(run("baseline", "uniform", "--json")[1])
    assert (baseline["rows"], len(baseline["lines"])) == (48, 48)
    assert json.loads(run("baseline", "prior", "-o", "n.jsonl", "--json")[1])["file"] == "n.jsonl"
    added = json.loads(run("leaderboard", "add", "n.jsonl", "--name", "n", "--json")[1])
    assert added["score"]["metrics"]["crps"]["mean"] > 0
    built = json.loads(run("leaderboard", "build", "--draws", "200", "--json")[1])
    assert built["boards"][0]["entries"][0]["slug"] == "n"
    assert (
        json.loads(run("leaderboard", "verify", "--json")[1])["verdicts"][0]["status"] == "verified"
    )


def test_what_is_in_the_way_or_hostile_is_refused(here, run):
    """An output that is there, and a name that would reach a terminal."""
    run("baseline", "uniform", "-o", "u.jsonl")
    assert run("baseline", "uniform", "-o", "u.jsonl")[0] == 1
    status, _, err = run("leaderboard", "add", "u.jsonl", "--name", "a\x1b[31mb")
    assert status == 1
    assert "\x1b" not in err
    assert "U+001B" in err


def test_a_failed_verification_is_status_one(here, run):
    """CI of a pull request fails on a changed score."""
    run("baseline", "prior", "-o", "s.jsonl")
    run("leaderboard", "add", "s.jsonl", "--name", "s")
    path = here / "leaderboard/submissions/s/score.json"
    record = json.loads(path.read_text())
    record["metrics"]["crps"]["mean"] += 0.01
    path.write_text(json.dumps(record))
    status, out, err = run("leaderboard", "verify", "s")
    assert status == 1
    assert "0 of 1 are sound" in out
    assert "not what the forecasts give" in err


def test_withheld_labels_are_refused(tmp_path, run):
    """No command makes a board of them, with or without the labels, and nothing is written."""
    runs = [Run("held", program(f"p{i}"), 0.2 * 1.7**i) for i in range(6)]
    place = make_archive(tmp_path / "a", [Search("held")], runs, version="1.0")
    make_splits(place, split_tables=["eval"])
    secret, board = load_split(place, "eval"), tmp_path / "b"
    file = write_lines(tmp_path / "f.jsonl", secret, informed(secret, 2.0))
    add_submission(file, secret, name="before", board=board, draws=DRAWS)
    before = contents(board)
    withhold_labels(place, tmp_path / "labels")
    split = load_split(place, "eval", labels=tmp_path / "labels")
    with pytest.raises(UsageError, match="eval are withheld, and a board shows them row by row"):
        add_submission(file, split, name="after", board=board, draws=DRAWS)
    where = ("--board", board, "--archive", place)
    for command in (["add", file, "--name", "after"], ["build"], ["verify"]):
        status, out, err = run("leaderboard", *command, *where)
        assert (status, out) == (2, "")
        assert "labels of eval are withheld" in " ".join(err.split())
        assert contents(board) == before
    for command in ("add", "build", "verify"):
        assert "score FILE --labels DIR" in run("leaderboard", command, "--labels", "x")[2]
