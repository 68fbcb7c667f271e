"""What a folder holds, to compare it with another or with what it held before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder by its name, as a repository has them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
