"""Verifying a board: a stored score is what the stored forecasts give."""

import msgspec
import pyarrow as pa
import pytest
from support.boards import with_figure
from support.small_archive import write_archive

from kernel_archive.board.verify import MAX_DRAWS, verify_board
from kernel_archive.errors import UsageError
from kernel_archive.scoring import read_record
from kernel_archive.untrusted import read_whole


def edit_score(folder, **changes):
    """Change fields of a stored score."""
    record = msgspec.structs.replace(read_record(folder / "score.json"), **changes)
    (folder / "score.json").write_bytes(record.to_json())


def test_sound_submissions_are_verified(archive, board):
    """All of them, or the ones named."""
    assert {v.status for v in verify_board(archive, board)} == {"verified"}
    assert [v.slug for v in verify_board(archive, board, slugs=["good"])] == ["good"]
    with pytest.raises(UsageError, match="no submission 'nobody'"):
        verify_board(archive, board, slugs=["nobody"])


def test_a_prettier_score_is_found(archive, board):
    """One changed figure, overall, of a task or of an interval, fails with what it should be."""
    folder = board / "submissions/good"
    record = read_record(folder / "score.json")
    (folder / "score.json").write_bytes(with_figure(record, "crps", mean=0.001).to_json())
    verdict = next(v for v in verify_board(archive, board) if v.slug == "good")
    assert verdict.status == "failed"
    assert "crps: stored 0.001, now" in verdict.findings[0].message
    alpha = record.groups["alpha"]
    lower = alpha | {"ece": msgspec.structs.replace(alpha["ece"], low=0.0)}
    edit_score(folder, metrics=record.metrics, groups=record.groups | {"alpha": lower})
    assert "alpha ece" in verify_board(archive, board, slugs=["good"])[0].findings[0].message


@pytest.mark.parametrize(
    ("term", "value"),
    [
        ("scheme", "released"),
        ("predicted_bin", "stated"),
        ("kind", "discovery"),
        ("draws", 10**12),
        ("scheme", "mine"),
    ],
)
def test_a_score_under_other_terms_is_found(archive, board, term, value):
    """Terms that the figures were not made under fail, and none keeps the verifier busy."""
    edit_score(board / "submissions/good", **{term: value})
    assert verify_board(archive, board, slugs=["good"])[0].status == "failed"


def test_changed_and_broken_files_are_found(archive, board):
    """Forecasts with one more byte, and a score that is no JSON."""
    path = board / "submissions/good/forecasts.jsonl.zst"
    lines = read_whole(path, max_bytes=1 << 20)
    path.write_bytes(pa.compress(lines + b"\n", codec="zstd", asbytes=True))
    (board / "submissions/fair/score.json").write_text("[" * 100_000)
    verdicts = {v.slug: v for v in verify_board(archive, board)}
    failed = {slug for slug, verdict in verdicts.items() if verdict.status == "failed"}
    assert failed == {"fair", "good"}
    assert verdicts["good"].findings[0].code == "changed-forecasts"
    assert all(v.findings for v in verdicts.values() if v.status == "failed")


def test_another_archives_submission_is_sound_but_not_verified_here(board, tmp_path):
    """Against another archive there is nothing to score it with.

    Said so, not passed as verified.
    """
    other = write_archive(tmp_path / "other", per_search=12, seed=5)
    assert {v.status for v in verify_board(other, board)} == {"other_archive"}
    score = (board / "submissions/good-discovery/score.json").read_bytes()
    (board / "submissions/good/score.json").write_bytes(score)
    failed = [v for v in verify_board(other, board) if v.status == "failed"]
    assert [(v.slug, v.findings[0].code) for v in failed] == [("good", "other-score")]


def test_scores_of_an_older_version_can_be_stored_anew(archive, board):
    """--update replaces the stored scores of an older version and no other."""
    folder = board / "submissions/good"
    edit_score(folder, metric_version="0")
    assert verify_board(archive, board, slugs=["good"])[0].status == "failed"
    assert verify_board(archive, board, slugs=["good"], update=True)[0].status == "updated"
    assert verify_board(archive, board, slugs=["good"])[0].status == "verified"
    record = read_record(folder / "score.json")
    (folder / "score.json").write_bytes(with_figure(record, "crps", mean=0.0).to_json())
    assert verify_board(archive, board, slugs=["good"], update=True)[0].status == "failed"
    assert record.draws <= MAX_DRAWS
