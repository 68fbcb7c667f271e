"""Building a board: every submission scored anew, ranked, and published as standings and one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.board.entries import load_entries, read_foreign
from kernel_archive.board.standings import Standings, make_standings, standings_csv, standings_json
from kernel_archive.board.store import DEFAULT_BOARD, score_stored, store_of
from kernel_archive.board.submissions import SCORE_FILE, Identity, load_submission, submission_folders
from kernel_archive.errors import DataError, Finding, KernelArchiveError, UsageError
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.storage import write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.board.entries import Entry
    from kernel_archive.scoring import ScoreRecord, Target

__all__ = ["PAGE_FILE", "BoardResult", "Verdict", "build_board", "rank_board", "verify_board"]

PAGE_FILE: Final = "index.html"
#: Stored and new figures may differ by this share: sums of another processor's vector units.
_TOLERANCE: Final = 1e-9
#: A stored score with more draws is not one of ours, and would keep a verifier busy for ever.
MAX_DRAWS: Final = 100_000


class BoardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built: files, and the standings of every split that has entries."""

    files: list[Path]
    page_bytes: int
    boards: list[Standings]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What ``verify`` found of one submission.

    Attributes:
        slug: its folder's name.
        status: ``verified``; ``updated``; ``other_archive`` (sound, but not of this archive: nothing to score it with
            here); ``failed``.
        findings: what is wrong.
    """

    slug: str
    status: Literal["verified", "updated", "other_archive", "failed"]
    findings: tuple[Finding, ...] = ()


def _targets(archive: Archive, scheme: str | None) -> list[Target]:
    """The canonical splits that the archive has."""
    from kernel_archive.scoring import load_target

    found = []
    for name, split in FORECAST_SPLITS.items():
        facts = archive.manifest.splits.get(split.table)
        if facts is not None and facts.name == "canonical" and facts.rows:
            found.append(load_target(archive, name, scheme))
    if not found:
        raise UsageError(
            f"the archive in {archive.path} has no split to rank on. Make one with: kernel-archive build-eval --cap 10"
        )
    return found


def rank_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    scheme: str | None = None,
    draws: int = 10_000,
    seed: int = 0,
    jobs: int | None = None,
    advance: Callable[[int, int, str], None] | None = None,
) -> list[tuple[Standings, list[Entry]]]:
    """Score every submission of a board anew and rank them, one board per split.

    A submission of another archive, or of a split that this archive does not have, is listed apart on the board of its
    kind of split.

    Args:
        archive: the archive whose splits the board is about.
        board: the board's folder; ``leaderboard`` here when not given.
        scheme: bin scheme; the split's own when not given.
        draws: bootstrap draws.
        seed: of the bootstrap.
        jobs: processes.
        advance: progress.

    Raises:
        UsageError: there is no board, or nothing on it, or the archive has no split.
        DataError: submissions are at fault.
    """
    from kernel_archive.scoring.metrics import COMPARED

    store = store_of(board)
    if not store.is_dir():
        raise UsageError(
            f"no board in {store.parent}. Start one with: kernel-archive leaderboard add FILE --name NAME --board {store.parent}"
        )
    targets = _targets(archive, scheme)
    identities = [Identity.of(target) for target in targets]
    own: list[list[Path]] = [[] for _ in targets]
    foreign: list[list[Path]] = [[] for _ in targets]
    faults: list[Finding] = []
    folders = submission_folders(store)
    for folder in folders:
        try:
            identity = load_submission(folder).archive
        except DataError as error:
            faults.extend(error.findings)
            continue
        at = next((i for i, mine in enumerate(identities) if mine.same_rows(identity)), None)
        if at is not None:
            own[at].append(folder)
        else:
            foreign[next((i for i, mine in enumerate(identities) if mine.split == identity.split), 0)].append(folder)
    if faults:
        raise DataError.from_findings(faults, f"{len(faults)} faults in the submissions of this board")
    if not folders:
        raise UsageError(
            f"the board in {store.parent} has no submission yet. Add one with: kernel-archive leaderboard add FILE --name NAME"
        )
    out = []
    for target, mine, others in zip(targets, own, foreign, strict=True):
        if not mine and not others:
            continue
        entries = load_entries(
            mine, target, wanted=COMPARED[target.kind], draws=draws, seed=seed, jobs=jobs, advance=advance
        )
        standings = make_standings(target, entries, [read_foreign(folder) for folder in others], seed=seed, draws=draws)
        out.append((standings, [entries[i] for i in standings.order]))
    return out


def build_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    out: str | Path | None = None,
    scheme: str | None = None,
    draws: int = 10_000,
    seed: int = 0,
    jobs: int | None = None,
    advance: Callable[[int, int, str], None] | None = None,
) -> BoardResult:
    """Score, rank and publish: ``standings.json``, ``standings.csv`` and ``index.html``.

    Same archive, submissions, seed and package give the same bytes.

    Args:
        archive: the archive whose splits the board is about.
        board: the board's folder; ``leaderboard`` here when not given.
        out: where the three files go; the board's folder when not given.
        scheme: bin scheme; the split's own when not given.
        draws: bootstrap draws.
        seed: of the bootstrap.
        jobs: processes.
        advance: progress.

    Raises:
        UsageError: there is no board, or nothing on it.
        DataError: submissions are at fault.
    """
    from kernel_archive.board.page import render_page

    ranked = rank_board(archive, board, scheme=scheme, draws=draws, seed=seed, jobs=jobs, advance=advance)
    boards = [standings for standings, _ in ranked]
    page = render_page(archive, ranked).encode("utf-8")
    folder = Path(out) if out is not None else DEFAULT_BOARD if board is None else Path(board)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "standings.json": msgspec.json.format(msgspec.json.encode(standings_json(boards)), indent=1) + b"\n",
        "standings.csv": standings_csv(boards).encode("utf-8"),
        PAGE_FILE: page,
    }
    for name, data in contents.items():
        write_new(folder / name, data, force=True)
    return BoardResult(files=[folder / name for name in contents], page_bytes=len(page), boards=boards)


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

    groups = {"": (stored.metrics, now.metrics)} | {
        f"{name} ": (stored.groups.get(name, {}), now.groups.get(name, {})) for name in {**stored.groups, **now.groups}
    }
    for group, (before, after) in groups.items():
        for name in dict.fromkeys([*before, *after]):
            if name not in before or name not in after:
                found.append(f"{group}{name}: only in the {'stored' if name in before else 'new'} score")
            elif not all(
                close(getattr(before[name], k), getattr(after[name], k)) for k in ("mean", "std", "low", "high")
            ):
                found.append(f"{group}{name}: stored {before[name].mean}, now {after[name].mean}")
    return found


def verify_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    slugs: Sequence[str] = (),
    update: bool = False,
    advance: Callable[[int, int, str], None] | None = None,
) -> list[Verdict]:
    """Whether the stored scores are what the stored forecasts give.

    Args:
        archive: the archive that the board is about.
        board: the board's folder; ``leaderboard`` here when not given.
        slugs: only these submissions; all when empty.
        update: store the new score where the stored one was made by another version of the package.
        advance: progress.

    Raises:
        UsageError: there is no board, or no submission of that name.
        DataError: something in the store is no submission.
    """
    store = store_of(board)
    if not store.is_dir():
        raise UsageError(f"no board in {store.parent}")
    folders = submission_folders(store)
    missing = sorted(set(slugs) - {folder.name for folder in folders})
    if missing:
        raise UsageError(
            f"no submission {missing[0]!r} in {store}; there are: {', '.join(f.name for f in folders) or 'none'}"
        )
    chosen = [folder for folder in folders if not slugs or folder.name in slugs]
    targets = [(Identity.of(target), target) for target in _targets(archive, None)]
    out = []
    for number, folder in enumerate(chosen):
        try:
            out.append(_verify(folder, targets, update=update))
        except KernelArchiveError as error:
            findings = error.findings or (Finding(code="bad-submission", message=str(error), file=str(folder)),)
            out.append(Verdict(slug=folder.name, status="failed", findings=tuple(findings)))
        if advance is not None:
            advance(number + 1, len(chosen), folder.name)
    return out


def _verify(folder: Path, targets: Sequence[tuple[Identity, Target]], *, update: bool) -> Verdict:
    from kernel_archive.scoring import read_record

    submission = load_submission(folder)
    target = next((t for identity, t in targets if identity.same_rows(submission.archive)), None)
    if target is None:
        read_foreign(folder)
        return Verdict(slug=folder.name, status="other_archive")
    stored = read_record(folder / SCORE_FILE)
    if stored.draws > MAX_DRAWS:
        raise DataError(f"{folder / SCORE_FILE}: {stored.draws:,} draws, more than {MAX_DRAWS:,}")
    now = score_stored(folder, target.under(_scheme(stored)), submission.name, draws=stored.draws, seed=stored.seed)
    findings = []
    if now.forecasts.digest.removeprefix("sha256:") != submission.forecasts_sha256:
        findings.append(
            Finding(
                code="changed-forecasts", message="the forecasts are not those that were submitted", file=str(folder),
                fix="Restore the file, or add it anew under another name",
            )
        )  # fmt: skip
    differences = _differences(stored, now)
    older = (stored.metric_version, stored.package) != (now.metric_version, now.package)
    if differences and older and update and not findings:
        write_new(folder / SCORE_FILE, now.to_json(), force=True)
        return Verdict(slug=folder.name, status="updated")
    findings += [
        Finding(
            code="other-score", message=f"the stored score is not what the forecasts give: {what}", file=str(folder / SCORE_FILE),
            fix="Run verify --update: another version of the package made it" if older else "Remove the folder and add the file again",
        )
        for what in differences
    ]  # fmt: skip
    return Verdict(slug=folder.name, status="failed" if findings else "verified", findings=tuple(findings))


def _scheme(record: ScoreRecord) -> Literal["paper", "released"]:
    from kernel_archive.bins import scheme

    return scheme(record.scheme).name
