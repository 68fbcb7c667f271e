"""Building a board: scored, ranked, and published in one step."""

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
from support.boards import DRAWS, killing, page_data, write_lines
from support.folders import contents
from support.small_archive import write_archive

from kernel_archive.board import entries, ranks
from kernel_archive.board.adding import add_submission
from kernel_archive.board.build import build_board
from kernel_archive.errors import DataError, TargetExistsError, UsageError
from kernel_archive.scoring import load_split, read_record


def test_it_writes_standings_page_and_entries(archive, board):
    """One board per split that has entries; a page, the record and the forecasts of every entry."""
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert [f.name for f in result.files] == ["standings.json", "index.html"]
    assert [b.split.kind for b in result.boards] == ["eval", "discovery"]
    assert json.loads((board / "standings.json").read_text())["format"] == 1
    assert (board / "index.html").stat().st_size == result.page_bytes
    slugs = [line.slug for b in result.boards for line in b.entries]
    assert sorted(p.name for p in (board / "entries").iterdir()) == sorted(
        f"{slug}.{ending}" for slug in slugs for ending in ("html", "json", "jsonl.zst")
    )
    first = result.boards[0].entries[0].score
    assert read_record(board / "entries/good.json").metrics["crps"] == first.metrics["crps"]
    assert not list(board.parent.glob(".*.stage"))


def test_what_is_no_longer_there_goes_and_what_is_not_ours_stays(archive, board, tmp_path):
    """The page of a removed entry goes; notes and submissions stay, links are not followed."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    page = (board / "entries/good.html").read_text()
    assert "Rank 1 of 4" in page
    assert "<h2>Pairs by distance</h2>" in page
    assert ">1.05x to 1.2x<" in page
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("k")
    (board / "notes").symlink_to(tmp_path / "secret")
    (board / "mine.txt").write_text("mine")
    shutil.rmtree(board / "submissions/fair")
    build_board(archive, board, draws=DRAWS, jobs=1)
    assert not list((board / "entries").glob("fair.*"))
    assert (board / "mine.txt").read_text() == "mine"
    assert (board / "notes").is_symlink()
    assert (board / "submissions/good/score.json").is_file()


def test_same_input_gives_the_same_bytes(archive, board, tmp_path):
    """No time, host, process or order of folders in anything published."""
    build_board(archive, board, draws=DRAWS, jobs=1, out=tmp_path / "one")
    build_board(archive, board, draws=DRAWS, jobs=2, out=tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_behind_the_compared_entries_rank_the_others_by_value(archive, board, monkeypatch):
    """Two of four are compared.

    The others have a rank by the headline figure alone, stand in brief, and it is said.
    """
    monkeypatch.setattr(ranks, "MAX_COMPARED", 2)
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    entries = json.loads((board / "standings.json").read_text())["boards"][0]["entries"]
    own, brief = [e["ranks"]["crps_skill"] for e in entries[:4]], [False, False, True, True]
    assert [rank["rank"] for rank in own] == [1, 2, 3, 4]
    assert [rank["best"] is None for rank in own] == brief
    assert [set(e["ranks"]) == {"crps_skill"} for e in entries[:4]] == brief
    text = (board / "index.html").read_text()
    slugs = [entry.slug for entry in result.boards[0].entries]
    assert [e["slug"] for e in page_data(text)["boards"][0]["entries"]] == slugs[:2]
    assert re.findall(r'<a href="entries/([a-z]+)\.html">', text) == slugs[2:]
    assert "first 2 of 5 entries are compared pair by pair" in text
    assert "by CRPS skill alone" in (board / f"entries/{slugs[2]}.html").read_text()


def test_the_same_forecasts_stand_once(archive, board):
    """A copy of an entry is left out; an entry with a control's forecasts takes its place."""
    shutil.copytree(board / "submissions/good", board / "submissions/second")
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert [(left.slug, left.findings[0].code) for left in result.left_out] == [
        ("second", "same-forecasts")
    ]
    standings = result.boards[0]
    uniform = next(entry for entry in standings.entries if entry.slug == "uniform")
    assert uniform.remark == "the forecasts of the control uniform, listed once"
    assert "uniform" in [control.name for control in standings.controls]
    assert "uniform" not in [control.name for control in standings.shown_controls]
    assert "the forecasts of the control uniform" in (board / "index.html").read_text()


def test_submissions_at_fault_are_named_and_left_out(archive, board, tmp_path):
    """A broken record, an extra file, a corrupt stream, a stray file, rows of another archive.

    The others are on the board.
    """
    other = load_split(write_archive(tmp_path / "other", per_search=12, seed=5), "eval")
    path = write_lines(tmp_path / "other.jsonl", other, [[0.125] * 8] * len(other))
    add_submission(path, other, name="x", board=tmp_path / "c", draws=DRAWS)
    shutil.copytree(tmp_path / "c/submissions/x", board / "submissions/x")
    (board / "submissions/good/submission.toml").write_text("name = ")
    (board / "submissions/prior/extra").write_text("")
    (board / "submissions/fair/forecasts.jsonl.zst").write_bytes(b"\x1f\x8b\x08" + bytes(12))
    (board / "submissions/stray").write_text("")
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert [line.slug for line in result.boards[0].entries] == ["uniform", "half"]
    assert {v.slug: v.findings[0].code for v in result.left_out} == {
        "fair": "unreadable",
        "good": "bad-record",
        "prior": "extra-file",
        "stray": "bad-folder",
        "x": "other-archive",
    }
    page = (board / "index.html").read_text()
    assert "Left out of this page: fair (" in page
    assert "x (of another archive or split: " in page


def test_an_error_of_ours_costs_one_entry(archive, board, monkeypatch):
    """A fault that scoring one submission brings to light is a finding of it."""
    score = entries.score_with_draws

    def failing(split, forecasts, **how):
        if forecasts.name == "fair":
            raise ZeroDivisionError("nobody thought of that")
        return score(split, forecasts, **how)

    monkeypatch.setattr(entries, "score_with_draws", failing)
    (left,) = build_board(archive, board, draws=DRAWS, jobs=1).left_out
    assert (left.slug, len(left.findings)) == ("fair", 1)
    assert "ZeroDivisionError: nobody thought of that" in left.findings[0].message


def test_a_board_with_nothing_but_faults_is_not_built(archive, board):
    """All faults come together, and no file is written."""
    for folder in (board / "submissions").iterdir():
        (folder / "submission.toml").write_text("name = ")
    with pytest.raises(DataError, match="every submission of this board is at fault") as caught:
        build_board(archive, board, draws=DRAWS, jobs=1)
    assert {f.code for f in caught.value.findings} == {"bad-record"}
    assert not (board / "index.html").exists()


BUILD = """
import sys
from kernel_archive.archive.open import open_archive
from kernel_archive.board import build_board
build_board(open_archive(sys.argv[1]), sys.argv[2], draws=100, jobs=1, seed=7)
"""


def test_a_kill_leaves_the_old_board_whole(archive, board):
    """SIGKILL while files are written: the old ones stand together; the next build cleans up."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    before = contents(board)
    code = killing("kernel_archive.board.build", "standings_json") + BUILD
    command = [sys.executable, "-c", code, str(archive.path), str(board)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert contents(board) == before
    assert list(board.parent.glob(".*.stage/new.*"))
    build_board(archive, board, draws=DRAWS, jobs=1)
    assert contents(board) == before
    assert not list(board.parent.glob(".*.stage"))


def test_a_folder_of_something_else_is_left_alone(archive, board, tmp_path):
    """--out takes a new folder, an empty one, or a board; planted links are refused."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("x")
    with pytest.raises(TargetExistsError, match="not a board"):
        build_board(archive, board, draws=DRAWS, jobs=1, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    (board.parent / ".leaderboard.stage").symlink_to(tmp_path / "out")
    with pytest.raises(TargetExistsError, match="is a link"):
        build_board(archive, board, draws=DRAWS, jobs=1)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/submissions").symlink_to(board / "submissions")
    with pytest.raises(TargetExistsError, match="must not be links"):
        build_board(archive, tmp_path / "linked", draws=DRAWS, jobs=1)


def test_no_board_and_an_empty_board_say_what_to_do(archive, tmp_path):
    """The way out is in the message."""
    with pytest.raises(UsageError, match="leaderboard add"):
        build_board(archive, tmp_path / "none", draws=DRAWS, jobs=1)
    (tmp_path / "b/submissions").mkdir(parents=True)
    with pytest.raises(UsageError, match="leaderboard add"):
        build_board(archive, tmp_path / "b", draws=DRAWS, jobs=1)
