"""Where the reviewed content is: builders, split definitions, card templates, leaderboard, prompts.

The folders stand at the top of the repository, where a contributor edits them, and ship inside an installed wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def content_path(folder: Literal["builders", "splits", "cards", "leaderboard", "prompts"]) -> Path:
    """The folder, from the wheel when the package is installed, else from the checkout.

    Raises:
        FileNotFoundError: the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_content" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the package's own folder {folder!r} is missing: reinstall kernel-archive")
