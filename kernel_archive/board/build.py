"""Building a board: every submission scored anew, ranked, and published as standings and one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.bins import scheme as scheme_of
from kernel_archive.board.entries import Scoring, findings_of, load_entries, read_foreign, read_stored
from kernel_archive.board.standings import Standings, make_standings, standings_bytes, standings_csv
from kernel_archive.board.store import LOCK, store_of
from kernel_archive.board.submissions import SCORE_FILE, Identity, load_submission, slug_of, submission_folders
from kernel_archive.errors import DataError, Finding, UsageError
from kernel_archive.scoring import load_target, read_record, score
from kernel_archive.scoring.metrics import COMPARED
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.storage import locked, remove_leftovers, write_atomically, write_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.board.entries import Entry
    from kernel_archive.scoring import Metric, ScoreRecord, Target

PAGE_FILE: Final = "index.html"
#: Folder with a page and a score record of every entry.
ENTRIES: Final = "entries"
#: Stored and new figures may differ by this share: sums of another processor's vector units.
_TOLERANCE: Final = 1e-9
#: A stored score with more draws is not one of ours, and would keep a verifier busy for ever.
MAX_DRAWS: Final = 100_000


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one submission, and what is wrong with it.

    ``other_archive`` is sound, but not of this archive: there is nothing to score it with here.
    """

    slug: str
    status: Literal["verified", "updated", "other_archive", "failed"]
    findings: tuple[Finding, ...] = ()


class BoardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built: the three files of the whole board, its standings by split, and the submissions at fault, which take no part."""

    files: list[Path]
    page_bytes: int
    boards: list[Standings]
    left_out: list[Verdict]


def _targets(archive: Archive, scheme: str | None, labels: str | Path | None) -> list[Target]:
    """The canonical splits that the archive has, those with withheld labels by the folder that holds them."""
    found = []
    for name, split in FORECAST_SPLITS.items():
        facts = archive.manifest.splits.get(split.table)
        if facts is not None and facts.name == "canonical" and facts.rows:
            found.append(load_target(archive, name, scheme, labels=labels if facts.origin == "withheld" else None))
    if labels is not None and not any(target.withheld for target in found):
        raise UsageError(f"the labels of the archive in {archive.path} are in it: --labels is for withheld ones")
    if not found:
        raise UsageError(
            f"the archive in {archive.path} has no split to rank on. Make one with: kernel-archive build-eval --cap 10"
        )
    return found


def _store(board: str | Path | None) -> Path:
    store = store_of(board)
    if not store.is_dir():
        raise UsageError(
            f"no board in {store.parent}. Start one with: kernel-archive leaderboard add FILE --name NAME --board {store.parent}"
        )
    return store


def _sorted(
    store: Path, targets: Sequence[Target]
) -> tuple[list[list[Path]], list[list[Entry]], dict[str, tuple[Finding, ...]]]:
    """The submissions of a store: of each target its own, and those of other rows that stand beside it; and what is at fault."""
    rows = [Identity.of(target).rows for target in targets]
    own: list[list[Path]] = [[] for _ in targets]
    foreign: list[list[Entry]] = [[] for _ in targets]
    folders, faults = submission_folders(store)
    for folder in folders:
        try:
            identity = load_submission(folder).archive
            if identity.rows in rows:
                own[rows.index(identity.rows)].append(folder)
            else:
                near = next((i for i, target in enumerate(targets) if target.split.name == identity.split), 0)
                foreign[near].append(read_foreign(folder))
        except Exception as error:  # noqa: BLE001 - whatever a stranger's file does, it does to its own entry alone
            faults[folder.name] = findings_of(error, folder)
    if not folders and not faults:
        raise UsageError(
            f"the board in {store.parent} has no submission yet. Add one with: kernel-archive leaderboard add FILE --name NAME"
        )
    return own, foreign, faults


def build_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    out: str | Path | None = None,
    labels: str | Path | None = None,
    scheme: str | None = None,
    draws: int = 10_000,
    seed: int = 0,
    jobs: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    advance: Callable[[int, int, str], None] | None = None,
) -> BoardResult:
    """Score every submission of a board anew, rank them, one board per split, and publish.

    Written are ``standings.json``, ``standings.csv``, ``index.html``, and a page and a score record per entry. A submission
    of another archive, or of a split that this archive does not have, is listed apart on the board of its split. One that is
    at fault is left out and named.

    Same archive, submissions, seed and package give the same bytes. The files are replaced together or not at all, by one
    build at a time; pages of entries that are gone are removed, and so is what a build that was killed left.

    The board's folder is ``leaderboard`` here when none is given, and the files go there without ``out``. ``labels`` is the
    folder that holds withheld ones, ``scheme`` the split's own when not given. With the engine ``dask``, all its workers see
    archive and board.

    Raises:
        UsageError: there is no board, or nothing on it, or the archive has no split.
        DataError: every submission is at fault.
    """
    from kernel_archive.board.page import render_entry, render_page

    store = _store(board)
    targets = _targets(archive, scheme, labels)
    own, foreign, faults = _sorted(store, targets)
    boards = []
    for target, mine, others in zip(targets, own, foreign, strict=True):
        how = Scoring(
            archive.path.absolute(),
            target.split.name,
            scheme,
            Path(labels).absolute() if labels is not None and target.withheld else None,
            tuple(COMPARED[target.kind]),
            draws,
            seed,
        )
        entries, bad = load_entries(mine, how, jobs=jobs, engine=engine, scheduler=scheduler, advance=advance)
        faults |= bad
        if entries or others:
            boards.append(make_standings(target, entries, others, seed=seed, draws=draws))
    left_out = [Verdict(slug=slug, status="failed", findings=faults[slug]) for slug in sorted(faults)]
    if not boards:
        found = [finding for v in left_out for finding in v.findings]
        raise DataError.from_findings(found, f"every submission of this board is at fault: {len(found)} faults")
    folder = Path(out) if out is not None else store.parent
    contents = {
        "standings.json": standings_bytes(boards),
        "standings.csv": standings_csv(boards).encode("utf-8"),
        PAGE_FILE: render_page(archive, boards, left_out=[v.slug for v in left_out]).encode("utf-8"),
    }
    reachable = f"../{store.name}" if store.parent.resolve() == folder.resolve() else None
    (folder / ENTRIES).mkdir(parents=True, exist_ok=True)

    def files() -> Iterator[tuple[Path, bytes]]:
        yield from ((folder / name, data) for name, data in contents.items())
        for standings in boards:
            for entry in standings.entries:
                page = render_entry(standings, entry, submissions=reachable)
                yield folder / ENTRIES / f"{entry.slug}.html", page.encode("utf-8")
                yield folder / ENTRIES / f"{entry.slug}.json", entry.record.to_json()

    listed = {entry.slug for standings in boards for entry in standings.entries}
    with locked(folder / LOCK):
        remove_leftovers(folder, *contents)
        remove_leftovers(folder / ENTRIES, "*.html", "*.json")
        write_together(files())
        for path in sorted((folder / ENTRIES).glob("*.html")):
            if path.stem not in listed and _is_page(path):
                path.with_suffix(".json").unlink(missing_ok=True)  # first: it is known by the page
                path.unlink()
    return BoardResult(
        files=[folder / name for name in contents],
        page_bytes=len(contents[PAGE_FILE]),
        boards=boards,
        left_out=left_out,
    )


def _is_page(path: Path) -> bool:
    """Whether a file is an entry's page as :func:`build_board` writes them, under its own name; of any version."""
    if path.stem != slug_of(path.stem) or path.is_symlink() or not path.is_file():
        return False
    text, record = path.read_bytes(), f'<a href="{path.stem}.json" download>'
    return b'<meta name="generator" content="kernel-archive ' in text and record.encode() in text


def _differences(stored: ScoreRecord, now: ScoreRecord) -> list[str]:
    """Where two records say different things, identity first."""
    found = [
        f"{name}: stored {getattr(stored, name)!r}, now {getattr(now, name)!r}"
        for name in ("metric_version", "kind", "scheme", "predicted_bin", "seed", "draws")
        if getattr(stored, name) != getattr(now, name)
    ]
    if stored.forecasts.digest != now.forecasts.digest:
        found.append("forecasts: the digest differs")

    def close(a: float | None, b: float | None) -> bool:
        return a == b if a is None or b is None else abs(a - b) <= _TOLERANCE * max(1.0, abs(a), abs(b))

    before, after = _all_figures(stored), _all_figures(now)
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            found.append(f"{name}: only in the {'stored' if name in before else 'new'} score")
        elif not all(close(getattr(before[name], k), getattr(after[name], k)) for k in ("mean", "std", "low", "high")):
            found.append(f"{name}: stored {before[name].mean}, now {after[name].mean}")
    return found


def _all_figures(record: ScoreRecord) -> dict[str, Metric]:
    """The figures of a score over all rows, and those of its groups with the group's name in front."""
    groups = record.groups.items()
    return record.metrics | {f"{group} {name}": m for group, metrics in groups for name, m in metrics.items()}


def verify_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    slugs: Sequence[str] = (),
    labels: str | Path | None = None,
    update: bool = False,
    advance: Callable[[int, int, str], None] | None = None,
) -> list[Verdict]:
    """Whether the stored scores are what the stored forecasts give.

    Of the submissions ``slugs``, or of all; ``labels`` is the folder that holds withheld ones. ``update`` stores the new score
    where the stored one was made by another version of the package.

    Raises:
        UsageError: there is no board, or no submission of that name.
    """
    store = _store(board)
    folders, strays = submission_folders(store)
    missing = sorted(set(slugs) - {folder.name for folder in folders} - strays.keys())
    if missing:
        raise UsageError(
            f"no submission {missing[0]!r} in {store}; there are: {', '.join(f.name for f in folders) or 'none'}"
        )
    chosen = [folder for folder in folders if not slugs or folder.name in slugs]
    targets = {Identity.of(target).rows: target for target in _targets(archive, None, labels)}
    out = [Verdict(slug=slug, status="failed", findings=found) for slug, found in strays.items() if not slugs]
    for number, folder in enumerate(chosen):
        try:
            out.append(_verify(folder, targets, update=update))
        except Exception as error:  # noqa: BLE001 - whatever a stranger's file does, the others are verified as well
            out.append(Verdict(slug=folder.name, status="failed", findings=findings_of(error, folder)))
        if advance is not None:
            advance(number + 1, len(chosen), folder.name)
    return sorted(out, key=lambda verdict: verdict.slug)


def _verify(folder: Path, targets: Mapping[tuple[str, str, str], Target], *, update: bool) -> Verdict:
    submission = load_submission(folder)
    target = targets.get(submission.archive.rows)
    if target is None:
        read_foreign(folder)
        return Verdict(slug=folder.name, status="other_archive")
    path = folder / SCORE_FILE
    stored = read_record(path)
    if stored.draws > MAX_DRAWS:
        message = f"{stored.draws:,} draws, more than {MAX_DRAWS:,}"
        raise DataError.of(code="other-score", message=message, file=str(path))
    target = target.under(scheme_of(stored.scheme).name)
    now = score(target, read_stored(folder, submission, target), draws=stored.draws, seed=stored.seed)
    if target.withheld:
        now = now.in_sums()
    differences = _differences(stored, now)
    fix = "Remove the folder and add the file again"
    if (stored.metric_version, stored.package) != (now.metric_version, now.package):
        if differences and update:
            write_atomically(path, now.to_json())
            return Verdict(slug=folder.name, status="updated")
        fix = "Run verify --update: another version of the package made it"
    said = [f"the stored score is not what the forecasts give: {what}" for what in differences]
    findings = tuple(Finding(code="other-score", message=message, file=str(path), fix=fix) for message in said)
    return Verdict(slug=folder.name, status="failed" if findings else "verified", findings=findings)
