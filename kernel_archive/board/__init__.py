"""The board: submissions, standings and one static page."""

from __future__ import annotations

from kernel_archive.board.adding import add_submission
from kernel_archive.board.build import build_board
from kernel_archive.board.standings import standings_json
from kernel_archive.board.verify import verify_board

__all__ = ["add_submission", "build_board", "standings_json", "verify_board"]
