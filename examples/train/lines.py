"""Compressed files of JSON lines."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a compressed file; none where there is no file, and none after a torn end."""
    lines: list[dict[str, Any]] = []
    if path.exists():
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                lines.extend(json.loads(line) for line in file)
        except (EOFError, ValueError):
            print(f"{path} was cut off; what stands in it is kept")
    return lines


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write JSON lines, the same bytes for the same lines, and count them."""
    n = 0
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as out:
        for line in lines:
            out.write(json.dumps(line).encode() + b"\n")
            n += 1
    return n
