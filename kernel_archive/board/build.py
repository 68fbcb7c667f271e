"""Build a board: every submission scored, ranked, and published as standings and one page."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypedDict, Unpack

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.archive.swap import make_work_folder, replaced_directory, work_folder_of
from kernel_archive.board.adding import LOCK, STANDINGS_FILE, check_board_folder, store_of
from kernel_archive.board.entries import Entry, SplitsByRows, findings_of, score_submission
from kernel_archive.board.page import render_entry, render_page
from kernel_archive.board.standings import LeftOut, Standings, make_standings, standings_json
from kernel_archive.board.submissions import (
    FORECASTS_FILE,
    Identity,
    load_submission,
    submission_folders,
)
from kernel_archive.errors import DataError, Finding, UsageError, counted, printable
from kernel_archive.executors import Call, iterate_results, open_executor
from kernel_archive.scoring import load_split
from kernel_archive.scoring.scorer import control_figures
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.storage import locked

PAGE_FILE: Final = "index.html"
#: Folder with a page and the score of every entry.
ENTRIES: Final = "entries"
#: What a build writes into a board's folder and replaces; the last is of versions before 1.0.
OURS: Final = frozenset({PAGE_FILE, STANDINGS_FILE, ENTRIES, "standings.csv"})


class BoardOptions(TypedDict, total=False):
    """How a board is built; every option may be left out."""

    out: str | Path | None  # folder to write to; the board's own when not given
    draws: int  # of the bootstrap, at least 1; 4,000 when not given
    seed: int  # of the draws, 0 when not given
    jobs: int | None  # processes that score; one per core when not given


class BoardResult(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What was built: the files of the whole board, its standings, what was left out."""

    files: list[Path]
    page_bytes: int
    boards: list[Standings]
    left_out: list[LeftOut]


def canonical_splits(archive: Archive) -> SplitsByRows:
    """Load the canonical splits of an archive, by their rows.

    Raises:
        UsageError: there is none, or labels are withheld: the page shows them row by row.
    """
    splits = {}
    for name, spec in FORECAST_SPLITS.items():
        facts = archive.manifest.splits.get(spec.table)
        if facts is not None and facts.name == "canonical" and facts.rows:
            split = load_split(archive, name)
            splits[Identity.of(split).rows_key] = split
    if not splits:
        raise UsageError(
            f"the archive in {archive.path} has no split to rank on. "
            "Make one with: kernel-archive build-eval --cap 10"
        )
    return splits


def existing_store(board: str | Path | None) -> Path:
    """Return the folder of a board's submissions.

    Raises:
        UsageError: there is no board, or nothing on it.
    """
    store = store_of(board)
    if not store.is_dir() or not submission_folders(store):
        raise UsageError(
            f"no board with a submission in {store.parent}. Start one with: "
            "kernel-archive leaderboard add FILE --name NAME "
            f"--board {shlex.quote(str(store.parent))}"
        )
    return store


def _score(
    folder: Path, splits: SplitsByRows, draws: int, seed: int
) -> Entry | tuple[Finding, ...]:
    """Score a submission, or say what is wrong with it."""
    try:
        return score_submission(folder, splits, draws=draws, seed=seed)
    except Exception as error:  # noqa: BLE001 - a stranger's file costs its own entry alone
        return findings_of(error, folder)


def _own_split(folder: Path, splits: SplitsByRows) -> SplitsByRows:
    """Pick the split of a submission: the process that scores it is sent no other."""
    try:
        rows_key = load_submission(folder).archive.rows_key
    except Exception:  # noqa: BLE001 - what is wrong with a stranger's file its scoring says
        return {}
    return {rows_key: splits[rows_key]} if rows_key in splits else {}


def _score_all(
    store: Path,
    splits: SplitsByRows,
    options: BoardOptions,
    advance: Callable[[int, int, str], None] | None,
) -> tuple[list[Entry], list[LeftOut]]:
    """Score all submissions; of two with the same forecasts the second is at fault."""
    folders = [folder.absolute() for folder in submission_folders(store)]
    draws = options.get("draws", 4_000)
    if draws < 1:
        raise UsageError(f"draws={draws}: a board's intervals need at least one")
    score = partial(_score, draws=draws, seed=options.get("seed", 0))
    calls = [
        Call(folder.name, partial(score, folder, _own_split(folder, splits))) for folder in folders
    ]
    scored: dict[Path, Entry | tuple[Finding, ...]] = {}
    with open_executor(1 if len(calls) < 4 else options.get("jobs")) as executor:
        for place, outcome in iterate_results(executor, calls):
            scored[folders[place]] = outcome
            if advance is not None:
                advance(len(scored), len(folders), folders[place].name)
    entries: dict[str, Entry] = {}  # by the digest of its forecasts
    left_out = []
    for folder in folders:
        outcome = scored[folder]
        if isinstance(outcome, Entry):
            first = entries.setdefault(outcome.score.forecasts.digest, outcome)
            if first is outcome:
                continue
            message = f"its forecasts are those of {first.slug}, which is listed"
            outcome = (Finding(code="same-forecasts", message=message, file=str(folder)),)
        left_out.append(LeftOut(slug=printable(folder.name), findings=outcome))
    return list(entries.values()), left_out


def build_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    advance: Callable[[int, int, str], None] | None = None,
    **options: Unpack[BoardOptions],
) -> BoardResult:
    """Score the submissions of a board, rank them, one board per split, and publish.

    This writes ``standings.json``, ``index.html``, and a page, the score and the forecasts of each
    entry, all in one step: a build that is killed leaves the old files. A submission that is at
    fault is left out and named. The same archive, submissions, seed and package give the same
    bytes.

    Raises:
        UsageError: there is no board, or nothing on it, or the archive has no split, or withholds
            labels.
        DataError: every submission is at fault.
    """
    store = existing_store(board)
    splits = canonical_splits(archive)
    check_board_folder(store.parent, "--board")
    for split in splits.values():
        split.cached(control_figures)  # here, not in every process that scores
    entries, left_out = _score_all(store, splits, options, advance)
    all_standings = []
    for rows_key, split in splits.items():
        of_split = [entry for entry in entries if entry.submission.archive.rows_key == rows_key]
        if of_split:
            all_standings.append(make_standings(split, of_split))
    if not all_standings:
        findings = [finding for left in left_out for finding in left.findings]
        message = f"every submission of this board is at fault: {counted(len(findings), 'fault')}"
        raise DataError.from_findings(findings, message)
    folder = Path(options.get("out") or store.parent)
    page = render_page(archive, all_standings, left_out=left_out).encode()
    _publish(folder, store, page, all_standings)
    return BoardResult(
        files=[folder / STANDINGS_FILE, folder / PAGE_FILE],
        page_bytes=len(page),
        boards=all_standings,
        left_out=left_out,
    )


def _publish(folder: Path, store: Path, page: bytes, all_standings: Sequence[Standings]) -> None:
    """Write a board's files into a folder beside it, and swap the two."""
    check_board_folder(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    work_folder = make_work_folder(work_folder_of(folder))
    with locked(folder / LOCK):
        for leftover in work_folder.glob("new.*"):  # of builds that were killed
            shutil.rmtree(leftover, ignore_errors=True)
        with replaced_directory(folder, ours=OURS) as new:
            data = msgspec.json.encode(standings_json(all_standings))
            (new / STANDINGS_FILE).write_bytes(msgspec.json.format(data, indent=1) + b"\n")
            (new / PAGE_FILE).write_bytes(page)
            (new / ENTRIES).mkdir()
            for standings in all_standings:
                for entry in standings.entries:
                    path = new / ENTRIES / entry.slug
                    path.with_suffix(".html").write_text(render_entry(standings, entry), "utf-8")
                    path.with_suffix(".json").write_bytes(entry.score.to_json())
                    shutil.copyfile(store / entry.slug / FORECASTS_FILE, f"{path}.jsonl.zst")
        if not any(work_folder.iterdir()):
            work_folder.rmdir()
