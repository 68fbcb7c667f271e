"""Verify that stored scores are what the stored forecasts give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.bins import scheme as scheme_of
from kernel_archive.board.build import existing_store, load_targets
from kernel_archive.board.entries import findings_of, read_stored
from kernel_archive.board.submissions import (
    SCORE_FILE,
    Identity,
    load_submission,
    submission_folders,
)
from kernel_archive.errors import DataError, Finding, UsageError
from kernel_archive.scoring import read_record, score
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring import Score, Split

#: Stored and new figures may differ by this share: sums of another processor's vector units.
_TOLERANCE: Final = 1e-9
#: A stored score with more draws is refused: it would keep a verifier busy for ever.
MAX_DRAWS: Final = 100_000
#: What two scores of the same forecasts were computed under.
_TERMS: Final = ("metric_version", "kind", "scheme", "predicted_bin", "seed", "draws")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Say of one submission whether it is sound.

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
    labels: str | Path | None = None,
    update: bool = False,
    advance: Callable[[int, int, str], None] | None = None,
) -> list[Verdict]:
    """Verify the submissions ``slugs`` of a board, or all; ``labels`` holds withheld labels.

    ``update`` stores the new score where another version of the package made the stored one.

    Raises:
        UsageError: there is no board, or no submission of that name.
    """
    store = existing_store(board)
    folders, strays = submission_folders(store)
    missing = sorted(set(slugs) - {folder.name for folder in folders} - strays.keys())
    if missing:
        names = ", ".join(folder.name for folder in folders) or "none"
        raise UsageError(f"no submission {missing[0]!r} in {store}; there are: {names}")
    targets = {Identity.of(target).rows: target for target in load_targets(archive, labels)}
    verdicts = [
        Verdict(slug=slug, status="failed", findings=findings)
        for slug, findings in strays.items()
        if not slugs or slug in slugs
    ]
    chosen = [folder for folder in folders if not slugs or folder.name in slugs]
    for number, folder in enumerate(chosen, 1):
        try:
            verdicts.append(_verify(folder, targets, update=update))
        except Exception as error:  # noqa: BLE001 - whatever a stranger's file does, the others go on
            findings = findings_of(error, folder)
            verdicts.append(Verdict(slug=folder.name, status="failed", findings=findings))
        if advance is not None:
            advance(number, len(chosen), folder.name)
    return sorted(verdicts, key=lambda verdict: verdict.slug)


def _verify(folder: Path, targets: Mapping[tuple[str, str], Split], *, update: bool) -> Verdict:
    submission = load_submission(folder)
    target, path = targets.get(submission.archive.rows), folder / SCORE_FILE
    if target is None:
        facts = read_record(path).target
        if (facts.archive_digest, facts.split_digest) != (
            submission.archive.digest,
            submission.archive.split_digest,
        ):
            message = "the stored score is of other rows than the record says"
            raise DataError.of(code="other-score", message=message, file=str(path))
        return Verdict(slug=folder.name, status="other_archive")
    stored = read_record(path)
    if stored.draws > MAX_DRAWS:
        message = f"its score has {stored.draws:,} draws, and at most {MAX_DRAWS:,} are repeated"
        raise DataError.of(code="other-score", message=message, file=str(path))
    target = target.under(scheme_of(stored.scheme).name)
    forecasts = read_stored(folder, submission, target)
    now = score(target, forecasts, draws=stored.draws, seed=stored.seed)
    if target.withheld:
        now = now.in_sums()
    differences = list(_differences(stored, now))
    fix = "Remove the folder and add the file again"
    if (stored.metric_version, stored.package) != (now.metric_version, now.package):
        if differences and update:
            write_atomically(path, now.to_json())
            return Verdict(slug=folder.name, status="updated")
        fix = "Run verify --update: another version of the package made it"
    findings = []
    for difference in differences:
        message = f"the stored score is not what the forecasts give: {difference}"
        findings.append(Finding(code="other-score", message=message, file=str(path), fix=fix))
    status: Literal["failed", "verified"] = "failed" if findings else "verified"
    return Verdict(slug=folder.name, status=status, findings=tuple(findings))


def _differences(stored: Score, now: Score) -> Iterator[str]:
    """Say where two records differ, identity first."""
    for name in _TERMS:
        before, after = getattr(stored, name), getattr(now, name)
        if before != after:
            yield f"{name}: stored {before!r}, now {after!r}"
    if stored.forecasts.digest != now.forecasts.digest:
        yield "forecasts: the digest differs"
    figures, new = _all_figures(stored), _all_figures(now)
    for name in dict.fromkeys([*figures, *new]):
        if name not in figures or name not in new:
            yield f"{name}: only in the {'stored' if name in figures else 'new'} score"
        elif not all(map(_close, figures[name], new[name])):
            yield f"{name}: stored {figures[name][0]}, now {new[name][0]}"


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a == b
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _all_figures(record: Score) -> dict[str, tuple[float | None, ...]]:
    """List the figures of a score, and those of its groups with the group's name in front."""
    figures = dict(record.metrics)
    for group, metrics in record.groups.items():
        figures |= {f"{group} {name}": metric for name, metric in metrics.items()}
    return {name: (m.mean, m.std, m.low, m.high) for name, m in figures.items()}
