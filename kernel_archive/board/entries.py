"""Read submissions, score them anew, and make them ready for the standings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from kernel_archive.board.ranks import Rank
from kernel_archive.board.submissions import FORECASTS_FILE, Submission, load_submission
from kernel_archive.errors import DataError, Finding, KernelArchiveError, printable
from kernel_archive.scoring import Forecasts, Score, Split, read_forecasts
from kernel_archive.scoring.controls import controls_of
from kernel_archive.scoring.forecasts import MIN_COVERAGE
from kernel_archive.scoring.metrics import COMPARED
from kernel_archive.scoring.scorer import score_with_draws

#: The splits of an archive by their :attr:`Identity.rows_key`.
SplitsByRows: TypeAlias = dict[tuple[str, str], Split]
#: A rationale is cut after this many characters on the page.
PAGE_RATIONALE_CHARACTERS: Final = 400
# What became of a row and repeat: bits of Entry.states.
PRESENT, PARSED, DEFERRED = 1, 2, 4
#: Probabilities that differ by less are the same forecast: what is left of them in a file.
_SAME: Final = 1e-6


class Entry(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A submission on a board, scored; what the page shows of R repeats of n rows."""

    slug: str
    submission: Submission
    score: Score
    draws: dict[str, Any]  # metric -> its value in each bootstrap draw
    quantised: Any  # uint8, shape (R, n, 8), probabilities x 255
    predicted: Any  # uint8, shape (R, n), predicted bins, 0 where there is no distribution
    states: Any  # uint8, shape (R, n), bits: 1 there is a line, 2 with a distribution, 4 deferred
    rationales: dict[int, str]  # position of a row -> beginning of its first rationale
    #: The control or bound whose forecasts these are; empty when they are of no one's.
    control: str
    ranks: dict[str, Rank] = {}

    @property
    def ranked(self) -> bool:
        """Whether it takes part in the ranking."""
        return self.score.forecasts.coverage >= MIN_COVERAGE and not self.submission.bound

    @property
    def remark(self) -> str:
        """Why it is not ranked, or whose forecasts it has; empty for an ordinary entry."""
        if self.submission.bound:
            return f"a bound: {self.submission.bound}"
        if not self.ranked:
            coverage = 100 * self.score.forecasts.coverage
            return f"covers {coverage:.1f} % of the rows, under {100 * MIN_COVERAGE:.0f} %"
        if self.control:
            return f"the forecasts of the control {self.control.replace('_', ' ')}, listed once"
        return ""


def findings_of(error: Exception, folder: Path) -> tuple[Finding, ...]:
    """Say what is wrong with a submission whose reading or scoring raised this."""
    if isinstance(error, KernelArchiveError) and error.findings:
        return tuple(error.findings)
    message = str(error)
    if not isinstance(error, KernelArchiveError):
        message = f"can't be scored: {type(error).__name__}: {printable(message, 200)}"
    return (Finding(code="bad-submission", message=message, file=str(folder)),)


def _read_stored(folder: Path, submission: Submission, split: Split) -> Forecasts:
    """Read the stored forecasts of a submission, which must be those that its record names."""
    path = folder / FORECASTS_FILE
    forecasts = read_forecasts(path, split, name=submission.name)
    if forecasts.digest.removeprefix("sha256:") != submission.forecasts_sha256:
        raise DataError.of(
            code="changed-forecasts",
            message="these are not the forecasts that were submitted: the sha256 differs",
            file=str(path),
            fix="Restore the file, or add it anew under another name",
        )
    return dataclasses.replace(forecasts, source=FORECASTS_FILE)


def _rationales(forecasts: Forecasts) -> dict[int, str]:
    first: dict[int, str] = {}
    for (_, row), text in sorted(forecasts.rationales.items()):
        if row not in first and text.strip():
            cut = text[:PAGE_RATIONALE_CHARACTERS]
            first[row] = cut + "…" if len(text) > len(cut) else cut
    return first


def _control_of(split: Split, forecasts: Forecasts) -> str:
    """Name the control whose forecasts these are; empty when they are of no one's."""
    if not forecasts.parsed.all():
        return ""
    for control in split.cached(controls_of):
        other = control.forecasts
        distance = np.abs(forecasts.probabilities - other.probabilities).max()
        stated = (forecasts.expected_speedups, other.expected_speedups)
        if distance < _SAME and np.allclose(*stated, rtol=_SAME, equal_nan=True):
            return control.name
    return ""


def score_submission(folder: Path, splits: SplitsByRows, *, draws: int, seed: int) -> Entry:
    """Score a submission of one of the splits, which are mapped by their rows.

    Raises:
        DataError: a file is at fault, or the submission is of none of the splits.
    """
    submission = load_submission(folder)
    identity = submission.archive
    if identity.rows_key not in splits:
        message = f"of another archive or split: {identity.version}, {identity.split}"
        raise DataError.of(code="other-archive", message=message, file=str(folder))
    split = splits[identity.rows_key]
    forecasts = _read_stored(folder, submission, split)
    score, drawn = score_with_draws(split, forecasts, draws=draws, seed=seed)
    states = PRESENT * forecasts.present + PARSED * forecasts.parsed
    return Entry(
        slug=folder.name,
        submission=submission,
        score=score,
        draws={name: drawn[name] for name in COMPARED[split.kind]},
        quantised=np.round(forecasts.probabilities * 255.0).astype(np.uint8),
        predicted=forecasts.predicted().astype(np.uint8),
        states=(states + DEFERRED * forecasts.deferred).astype(np.uint8),
        rationales=_rationales(forecasts),
        control=_control_of(split, forecasts),
    )
