"""The board: submissions, standings and one static page."""

from __future__ import annotations

from kernel_archive.board.build import BoardResult, Verdict, build_board, verify_board
from kernel_archive.board.entries import Entry
from kernel_archive.board.standings import Standings, make_standings, standings_csv, standings_json
from kernel_archive.board.store import Added, add_submission
from kernel_archive.board.submissions import Identity, Submission, load_submission, slug_of

__all__ = [
    "Added",
    "BoardResult",
    "Entry",
    "Identity",
    "Standings",
    "Submission",
    "Verdict",
    "add_submission",
    "build_board",
    "load_submission",
    "make_standings",
    "slug_of",
    "standings_csv",
    "standings_json",
    "verify_board",
]
