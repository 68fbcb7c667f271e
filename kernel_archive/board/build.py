"""Build a board: every submission scored, ranked, and published as standings and one page."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from kernel_archive.archive.swap import replaced_directory, stage_directory
from kernel_archive.board.entries import (
    Entry,
    Evaluated,
    ScoringTerms,
    evaluate,
    findings_of,
)
from kernel_archive.board.standings import (
    LeftOut,
    Standings,
    make_standings,
    standings_bytes,
)
from kernel_archive.board.store import LOCK, store_of
from kernel_archive.board.submissions import (
    FORECASTS_FILE,
    Identity,
    load_submission,
    submission_folders,
)
from kernel_archive.errors import DataError, Finding, TargetExistsError, UsageError
from kernel_archive.executors import Call, iterate_results, open_executor
from kernel_archive.scoring import load_split
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.storage import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring import Split

    Faults = dict[str, tuple[Finding, ...]]

PAGE_FILE: Final = "index.html"
STANDINGS_FILE: Final = "standings.json"
#: Folder with a page and a score record of every entry.
ENTRIES: Final = "entries"
#: What a build writes into a board's folder and replaces; the last is of earlier versions.
OURS: Final = frozenset({PAGE_FILE, STANDINGS_FILE, ENTRIES, "standings.csv"})


class BoardOptions(TypedDict, total=False):
    """State how a board is built; every option may be left out."""

    out: str | Path | None  # folder to write to; the board's own when not given
    labels: str | Path | None  # folder that holds withheld labels
    draws: int  # of the bootstrap, 4,000 when not given
    seed: int  # of the draws, 0 when not given
    jobs: int | None  # processes that score; one per core when not given


class BoardResult(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """State what was built: the files of the whole board, its standings, what was left out."""

    files: list[Path]
    page_bytes: int
    boards: list[Standings]
    left_out: list[LeftOut]


def load_targets(archive: Archive, labels: str | Path | None) -> list[Split]:
    """Load the canonical splits of an archive, those with withheld labels from ``labels``."""
    targets = []
    for name, spec in FORECAST_SPLITS.items():
        facts = archive.manifest.splits.get(spec.table)
        if facts is not None and facts.name == "canonical" and facts.rows:
            folder = labels if facts.origin == "withheld" else None
            targets.append(load_split(archive, name, labels=folder))
    if labels is not None and not any(target.withheld for target in targets):
        raise UsageError(
            f"the archive in {archive.path} holds its labels itself. Leave --labels out"
        )
    if not targets:
        raise UsageError(
            f"the archive in {archive.path} has no split to rank on. "
            "Make one with: kernel-archive build-eval --cap 10"
        )
    return targets


def existing_store(board: str | Path | None) -> Path:
    """Return the folder of a board's submissions; UsageError when there is no board."""
    store = store_of(board)
    if not store.is_dir():
        raise UsageError(
            f"no board in {store.parent}. Start one with: "
            f"kernel-archive leaderboard add FILE --name NAME --board {store.parent}"
        )
    return store


def _sort_submissions(
    store: Path, targets: Sequence[Split], faults: Faults
) -> list[tuple[Path, Split]]:
    """Find the split of each submission; what is at fault or of other rows goes to ``faults``."""
    by_rows = {Identity.of(target).rows: target for target in targets}
    folders, strays = submission_folders(store)
    if not folders and not strays:
        raise UsageError(
            f"the board in {store.parent} has no submission yet. "
            "Add one with: kernel-archive leaderboard add FILE --name NAME"
        )
    faults |= strays
    pairs = []
    for folder in folders:
        try:
            identity = load_submission(folder).archive
        except Exception as error:  # noqa: BLE001 - a stranger's file costs its own entry alone
            faults[folder.name] = findings_of(error, folder)
            continue
        if identity.rows in by_rows:
            pairs.append((folder, by_rows[identity.rows]))
        else:
            message = f"of another archive or split: {identity.version}, {identity.split}"
            finding = Finding(code="other-archive", message=message, file=str(folder))
            faults[folder.name] = (finding,)
    return pairs


class _Work(msgspec.Struct, frozen=True):
    """One submission to be scored."""

    folder: Path
    target: Split
    terms: ScoringTerms


def _evaluate_all(
    works: Sequence[_Work], jobs: int | None, advance: Callable[[int, int, str], None] | None
) -> list[tuple[_Work, Any]]:
    """Score submissions, those with the most rows first."""
    works = sorted(works, key=lambda work: -len(work.target))
    calls = [Call(w.folder.name, partial(evaluate, w.folder, w.terms)) for w in works]
    results: dict[int, Any] = {}
    with open_executor(1 if len(calls) < 4 else jobs) as executor:
        for place, result in iterate_results(executor, calls):
            results[place] = result
            if advance is not None:
                advance(len(results), len(works), works[place].folder.name)
    return sorted(
        ((works[place], result) for place, result in results.items()),
        key=lambda pair: pair[0].folder,
    )


def _entries(results: Sequence[tuple[_Work, Any]], faults: Faults) -> list[Entry]:
    """Make the entries of one split; of two with the same forecasts the second is at fault."""
    entries: list[Entry] = []
    names: dict[str, str] = {}
    for work, result in results:
        slug = work.folder.name
        if not isinstance(result, Evaluated):
            faults[slug] = result
        elif (twin := names.setdefault(result.record.forecasts.digest, slug)) != slug:
            message = f"the same forecasts as {twin}, listed once"
            finding = Finding(code="same-forecasts", message=message, file=str(work.folder))
            faults[slug] = (finding,)
        else:
            submission = load_submission(work.folder)
            entries.append(Entry(slug=slug, submission=submission, evaluated=result))
    return entries


def build_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    advance: Callable[[int, int, str], None] | None = None,
    **options: Unpack[BoardOptions],
) -> BoardResult:
    """Score the submissions of a board, rank them, one board per split, and publish.

    Written are ``standings.json``, ``index.html``, and a page, the record and the forecasts of each
    entry, all in one step: a build that is killed leaves the old files. A submission that is at
    fault is left out and named. The same archive, submissions, seed and package give the same
    bytes.

    Raises:
        UsageError: there is no board, or nothing on it, or the archive has no split.
        DataError: every submission is at fault.
    """
    from kernel_archive.board.page import render_page

    store = existing_store(board)
    labels = options.get("labels")
    draws, seed = options.get("draws", 4_000), options.get("seed", 0)
    targets = load_targets(archive, labels)
    faults: Faults = {}
    works = []
    for folder, target in _sort_submissions(store, targets, faults):
        terms = ScoringTerms(
            archive=archive.path.absolute(),
            split=target.spec.name,
            labels=Path(labels).absolute() if labels is not None and target.withheld else None,
            draws=draws,
            seed=seed,
        )
        works.append(_Work(folder.absolute(), target, terms))
    results = _evaluate_all(works, options.get("jobs"), advance)
    boards = []
    for target in targets:
        entries = _entries([(w, r) for w, r in results if w.target is target], faults)
        if entries:
            boards.append(make_standings(target, entries, seed=seed, draws=draws))
    left_out = [LeftOut(slug=slug, findings=faults[slug]) for slug in sorted(faults)]
    if not boards:
        findings = [finding for left in left_out for finding in left.findings]
        message = f"every submission of this board is at fault: {len(findings)} faults"
        raise DataError.from_findings(findings, message)
    folder = Path(options.get("out") or store.parent)
    page = render_page(archive, boards, left_out=left_out).encode()
    _publish(folder, store, page, boards)
    return BoardResult(
        files=[folder / STANDINGS_FILE, folder / PAGE_FILE],
        page_bytes=len(page),
        boards=boards,
        left_out=left_out,
    )


def _check_out(folder: Path) -> None:
    """Refuse a folder to write to that holds something else than a board."""
    ours = any((folder / name).exists() for name in (STANDINGS_FILE, "submissions", LOCK))
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise TargetExistsError(f"{folder} is not a folder. Choose another --out")
    if folder.is_dir() and not ours and any(folder.iterdir()):
        raise TargetExistsError(f"{folder} holds something that is no board. Choose another --out")


def _publish(folder: Path, store: Path, page: bytes, boards: Sequence[Standings]) -> None:
    """Write a board's files into a folder beside it, and swap the two."""
    from kernel_archive.board.page import render_entry

    _check_out(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stage = stage_directory(folder)
    if stage.is_symlink():
        raise TargetExistsError(f"{stage} is a link. Delete it, or choose another --out")
    with locked(folder / LOCK):
        for left in stage.glob("new.*"):  # of builds that were killed
            shutil.rmtree(left, ignore_errors=True)
        with replaced_directory(folder, ours=OURS) as new:
            (new / STANDINGS_FILE).write_bytes(standings_bytes(boards))
            (new / PAGE_FILE).write_bytes(page)
            (new / ENTRIES).mkdir()
            for standings, entry in ((s, entry) for s in boards for entry in s.entries):
                path = new / ENTRIES / entry.slug
                path.with_suffix(".html").write_text(render_entry(standings, entry), "utf-8")
                path.with_suffix(".json").write_bytes(entry.record.to_json())
                shutil.copyfile(store / entry.slug / FORECASTS_FILE, f"{path}.jsonl.zst")
        if not any(stage.iterdir()):
            stage.rmdir()
