"""Verify that stored scores are what the stored forecasts give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.board.build import canonical_splits, existing_store
from kernel_archive.board.entries import SplitsByRows, findings_of, score_submission
from kernel_archive.board.submissions import SCORE_FILE, load_submission, submission_folders
from kernel_archive.errors import DataError, Finding, UsageError, printable
from kernel_archive.scoring import Score, read_record
from kernel_archive.storage import write_atomically

#: Stored and new figures may differ by this share: sums of another processor's vector units.
_TOLERANCE: Final = 1e-9
#: A stored score with more draws is refused: it would keep a verifier busy for ever.
MAX_DRAWS: Final = 100_000
#: What two scores of the same forecasts were computed under.
_TERMS: Final = ("metric_version", "kind", "scheme", "predicted_bin", "seed", "draws")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one submission is sound.

    ``other_archive`` is sound, but not of this archive: there is nothing to score it with here.
    """

    slug: str
    status: Literal["verified", "updated", "other_archive", "failed"]
    findings: tuple[Finding, ...] = ()


def verify_board(
    archive: Archive,
    board: str | Path | None = None,
    *,
    slugs: Sequence[str] = (),
    update: bool = False,
    advance: Callable[[int, int, str], None] | None = None,
) -> list[Verdict]:
    """Verify the submissions ``slugs`` of a board, or all.

    ``update`` stores the new score where another version of the package made the stored one.

    Raises:
        UsageError: there is no board, or no submission of that name.
    """
    store = existing_store(board)
    folders = {folder.name: folder for folder in submission_folders(store)}
    missing = [slug for slug in slugs if slug not in folders]
    if missing:
        names = ", ".join(map(printable, folders))
        raise UsageError(f"no submission {missing[0]!r} in {store}; there are: {names}")
    splits = canonical_splits(archive)
    verdicts = []
    chosen = [folder for slug, folder in folders.items() if not slugs or slug in slugs]
    for number, folder in enumerate(chosen, 1):
        try:
            verdicts.append(_verify(folder, splits, update=update))
        except Exception as error:  # noqa: BLE001 - whatever a stranger's file does, the others go on
            findings = findings_of(error, folder)
            slug = printable(folder.name)
            verdicts.append(Verdict(slug=slug, status="failed", findings=findings))
        if advance is not None:
            advance(number, len(chosen), printable(folder.name))
    return verdicts


def _verify(folder: Path, splits: SplitsByRows, *, update: bool) -> Verdict:
    """Score a submission on its stored score's terms; DataError where the two differ."""
    path = folder / SCORE_FILE
    stored = read_record(path)
    if stored.draws > MAX_DRAWS:
        message = f"its score has {stored.draws:,} draws, and at most {MAX_DRAWS:,} are repeated"
        raise DataError.of(code="other-score", message=message, file=str(path))
    try:
        rescored = score_submission(
            folder.absolute(), splits, draws=stored.draws, seed=stored.seed
        ).score
    except DataError as error:
        if [finding.code for finding in error.findings] != ["other-archive"]:
            raise
        if stored.split.split_digest != load_submission(folder).archive.split_digest:
            message = "the stored score is of other rows than the record says"
            raise DataError.of(code="other-score", message=message, file=str(path)) from None
        return Verdict(slug=folder.name, status="other_archive")
    stored_figures, new_figures = _figures(stored), _figures(rescored)
    differences = [
        f"{name}: stored {stored_figures.get(name)}, now {new_figures.get(name)}"
        for name in stored_figures | new_figures
        if not _close(stored_figures.get(name), new_figures.get(name))
    ]
    fix = "Remove the folder and add the file again"
    if (stored.metric_version, stored.package) != (rescored.metric_version, rescored.package):
        if differences and update:
            write_atomically(path, rescored.to_json())
            return Verdict(slug=folder.name, status="updated")
        fix = "Run verify --update: another version of the package made it"
    if not differences:
        return Verdict(slug=folder.name, status="verified")
    message = f"the stored score is not what the forecasts give: {'; '.join(differences[:5])}"
    if len(differences) > 5:
        message += f", and {len(differences) - 5} more"
    raise DataError.of(code="other-score", message=message, file=str(path), fix=fix)


def _figures(score: Score) -> dict[str, Any]:
    """List what must not differ: the terms, the forecasts' digest, figures overall and of groups.

    The keys say what it is: ``draws``, ``crps``, ``crps low``, ``trimul crps``.
    """
    figures: dict[str, Any] = {name: getattr(score, name) for name in _TERMS}
    figures["forecasts"] = score.forecasts.digest
    for group, metrics in {"": score.metrics, **score.groups}.items():
        for name, metric in metrics.items():
            for part in ("mean", "std", "low", "high"):
                key = f"{group} {name} {part}".strip().removesuffix(" mean")
                figures[key] = getattr(metric, part)
    return figures


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(a == b)
