"""Which format a file looks like, for the finding about a log of another format."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from kernel_archive.readers.files import ReaderSpec, RunFiles

#: Format -> what it is; ``formats.toml`` says what each field means.
FORMATS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "formats.toml").read_text(encoding="utf-8")
)
#: What a file looks like -> words that all stand in its first bytes, most telling first.
_LOOKS: Final = {
    "the outer log of theory-builder": r"theory_building_\w+|hypothesis_\w+",
    "a published table of forecasts (no measurements)": "comparison_id bin_probabilities",
    **{name: facts["looks"] for name, facts in FORMATS.items()},
    "a Python pickle": r"\A\x80[\x02-\x05]",
}
#: Bytes of a file that are looked at.
_HEAD_BYTES: Final = 4 << 20


def looks_like(run: RunFiles, path: Path) -> list[str]:
    """Return what a file may be: formats, most telling first, or a description of it."""
    head = run.head(path, _HEAD_BYTES)
    looks = [
        name
        for name, words in _LOOKS.items()
        if all(re.search(word.encode(), head) for word in words.split())
    ]
    return looks or ["JSON of another kind" if head[:1] in (b"{", b"[") else "no JSON at all"]


def wrong_format(run: RunFiles, spec: ReaderSpec, path: Path | None, looks: str = "") -> Finding:
    """Return the finding of a run in which nothing is recognisable; ``path`` is its log, if any."""
    fix = f"{spec.name} expects {spec.expects}"
    message = f"nothing in it is of the format {spec.name!r}; it looks like {looks}"
    if path is None:
        log = FORMATS[spec.name].get("log", [""])[0]
        paths = sorted(run.root.iterdir()) if run.root.is_dir() else []
        files = ", ".join([printable(p.name, 60) for p in paths if p.is_file()][:5])
        message = f"there is no {log or 'table'} here; its files: {files or 'none'}"
        inner = [p.name for p in paths if log and any(p.glob(log + "*"))]
        if inner:
            fix = f"match the run directories inside it, such as {printable(inner[0], 60)}"
    return Finding(code="wrong-format", message=message, file=run.name(path or run.path), fix=fix)
