"""The registry of readers, and the small parts that all of them use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.salvage import MAX_FINDINGS, FindingLog

if TYPE_CHECKING:
    from pathlib import Path


def test_files_of_a_run(tmp_path: Path) -> None:
    """The files of a reader are found in a fixed order, compressed ones too."""
    run = tmp_path / "exp" / "run_00"
    run.mkdir(parents=True)
    for name in ("events.jsonl.zst", "run.json", "notes.txt", "../config.json", "../run_01.txt"):
        (run / name).write_bytes(b"")
    files = RunFiles(run, tmp_path, READERS["puct-events"])
    assert [files.name(p) for p in files.files] == [
        "exp/run_00/events.jsonl.zst",
        "exp/run_00/run.json",
        "exp/config.json",
    ]


def test_report_is_bounded_per_code() -> None:
    """The first findings of each code are kept, the others counted; values are printable."""
    report = FindingLog()
    for i in range(MAX_FINDINGS + 5):
        report.error("a", "m", line=i, value="\x1b[31m")
    report.warning("b", "m")
    found = list(report)
    assert len(found) == MAX_FINDINGS + 2
    assert found[-1].message == "5 more of this kind"
    assert "\x1b" not in (found[0].value or "")
