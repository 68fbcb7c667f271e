"""Entries of a board: every submission read, scored anew and made ready for the standings, several at a time."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from bisect import insort
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.team import Call, team
from kernel_archive.board import ranks
from kernel_archive.board.submissions import FORECASTS_FILE, SCORE_FILE, Submission, load_submission
from kernel_archive.errors import DataError, Finding, KernelArchiveError, UsageError, printable
from kernel_archive.scoring import METRICS, load_target, read_forecasts, read_record
from kernel_archive.scoring.metrics import RANKED_BY
from kernel_archive.scoring.replay import replay
from kernel_archive.scoring.scorer import score_with_draws
from kernel_archive.scoring.worlds import load_worlds
from kernel_archive.splits import split_of
from kernel_archive.untrusted import is_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kernel_archive.scoring import Forecasts, ScoreRecord, Target
    from kernel_archive.scoring.replay import Figure
    from kernel_archive.scoring.worlds import Worlds

#: So much of a rationale is shown on the page.
RATIONALE_CHARACTERS: Final = 400
# What became of a row and repeat: bits of Shown.states.
PRESENT, PARSED, DEFERRED = 1, 2, 4
#: An entry that covers less of the rows and repeats is listed and not ranked.
MIN_COVERAGE: Final = 0.95


class Shown(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What the page shows of an entry's forecasts.

    Attributes:
        masses: uint8, shape (R, n, 8), probabilities x 255.
        predicted: uint8, shape (R, n), predicted bins, 0 where there is no distribution.
        states: uint8, shape (R, n), bits: 1 there is a line, 2 with a distribution, 4 deferred.
        rationales: position of a row -> beginning of the first rationale that it has.
    """

    masses: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    states: NDArray[np.uint8]
    rationales: dict[int, str]


class Entry(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A submission on a board.

    Attributes:
        slug: its folder's name.
        submission: what its authors state of it.
        record: its score: made now, or the stored one where it is of another archive, split or version.
        draws: metric -> its value in every bootstrap draw.
        shown: what the page shows of its forecasts; ``None`` where it stands too low to be shown in whole.
        replay: how soon a search finds the fast programs that measures what the forecasts like best: the area between random (0)
            and oracle (100) when the recorded searches of the rows are replayed; ``None`` where there are none.
        ranks: metric -> place, once it is ranked.
    """

    slug: str
    submission: Submission
    record: ScoreRecord
    draws: dict[str, NDArray[np.float64]] = {}
    shown: Shown | None = None
    replay: Figure | None = None
    ranks: dict[str, ranks.Rank] = {}

    @property
    def ranked(self) -> bool:
        """Whether it takes part in the ranking."""
        return self.record.forecasts.coverage >= MIN_COVERAGE

    @property
    def reason(self) -> str:
        """Why it does not; empty when it does."""
        covered = f"covers {100 * self.record.forecasts.coverage:.1f} % of the rows, under {100 * MIN_COVERAGE:.0f} %"
        return "" if self.ranked else covered

    @property
    def place(self) -> tuple[bool, bool, float, str]:
        """What entries are ordered by: ranked ones first, then the figure that ranks, then the name of the folder."""
        value = self.record.metrics[RANKED_BY].mean
        return not self.ranked, value is None, 0.0 if value is None else METRICS[RANKED_BY].sign * value, self.slug


def findings_of(error: Exception, folder: Path) -> tuple[Finding, ...]:
    """What is wrong with a submission whose reading or scoring raised this."""
    if isinstance(error, KernelArchiveError):
        return error.findings or (Finding(code="bad-submission", message=str(error), file=str(folder)),)
    message = f"can't be scored: {type(error).__name__}: {printable(str(error), 200)}"
    return (Finding(code="bad-submission", message=message, file=str(folder)),)


def read_stored(folder: Path, submission: Submission, target: Target, *, keep_rationales: bool = False) -> Forecasts:
    """The stored forecasts of a submission: those that were submitted.

    Raises:
        ForecastError: they have a fault.
        DataError: they are not those that its record names.
    """
    path = folder / FORECASTS_FILE
    if is_parquet(path):
        raise DataError.of(code="bad-form", message="a Parquet table under the name of JSON lines", file=str(path))
    forecasts = read_forecasts(path, target, name=submission.name, keep_rationales=keep_rationales)
    if forecasts.digest.removeprefix("sha256:") != submission.forecasts_sha256:
        raise DataError.of(
            code="changed-forecasts",
            message="the forecasts are not those that were submitted: their sha256 differs from the record's",
            file=str(path),
            fix="Restore the file, or add it anew under another name",
        )
    return dataclasses.replace(forecasts, source=FORECASTS_FILE)


def _shown(forecasts: Forecasts) -> Shown:
    states = (forecasts.present * PRESENT + forecasts.parsed * PARSED + forecasts.deferred * DEFERRED).astype(np.uint8)
    rationales: dict[int, str] = {}
    for (_, row), text in sorted((forecasts.rationales or {}).items()):
        if row not in rationales and text.strip():
            cut = text[:RATIONALE_CHARACTERS]
            rationales[row] = cut + "…" if len(text) > len(cut) else cut
    return Shown(
        masses=np.round(forecasts.probabilities * 255.0).astype(np.uint8),
        predicted=forecasts.predicted().astype(np.uint8),
        states=states,
        rationales=rationales,
    )


class Scoring(msgspec.Struct, frozen=True):
    """How submissions are scored, small enough to go to another machine with each of them."""

    archive: Path
    split: str
    scheme: str | None  # the split's own when not given
    labels: Path | None  # the folder that holds them, where they are withheld
    wanted: tuple[str, ...]  # metrics whose bootstrap draws are kept, for comparisons
    draws: int
    seed: int  # the same for all: the draws are paired


@lru_cache(maxsize=2)
def _target(archive: Path, split: str, scheme: str | None, labels: Path | None) -> Target:
    return load_target(archive, split, scheme, labels=labels)


@lru_cache(maxsize=2)
def _worlds(archive: Path, split: str) -> Worlds | None:
    try:
        return load_worlds(open_archive(archive), split=split)
    except UsageError:
        return None  # withheld, or of searches that are no worlds


def _scored(folder: Path, how: Scoring) -> Entry | tuple[Finding, ...]:
    """A submission read, scored and replayed, or what is wrong with it: whatever a stranger's file does, it does to its own entry alone."""
    try:
        target = _target(how.archive, how.split, how.scheme, how.labels)
        submission = load_submission(folder)
        forecasts = read_stored(folder, submission, target, keep_rationales=True)
        record, drawn = score_with_draws(target, forecasts, draws=how.draws, seed=how.seed)
        worlds, figure = _worlds(how.archive, how.split), None
        if worlds is not None:
            cast = forecasts.take(np.array([target.index[row] for row in worlds.row_ids], dtype=np.intp))
            figure = replay(worlds, cast, policies=["expected"], repeats=4, seed=how.seed).policies[0].rescaled
        return Entry(
            slug=folder.name,
            submission=submission,
            record=record.in_sums() if target.withheld else record,
            draws={} if drawn is None else {name: drawn.overall[name] for name in how.wanted if name in drawn.overall},
            shown=_shown(forecasts),
            replay=figure if figure is not None and math.isfinite(figure.mean) else None,
        )
    except Exception as error:  # noqa: BLE001 - see above
        return findings_of(error, folder)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start here multiply matrices in one thread: there is a process per core already."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ |= dict.fromkeys(names, "1")
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ |= before


def load_entries(
    folders: Sequence[Path],
    how: Scoring,
    *,
    jobs: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    advance: Callable[[int, int, str], None] | None = None,
) -> tuple[list[Entry], dict[str, tuple[Finding, ...]]]:
    """Score submissions anew, in the order given; one that is at fault does not stop the others.

    What grows with the number of entries is kept small: their draws lie in a temporary file, and what the page shows of
    forecasts is kept of the best entries only.

    ``jobs`` are processes, one per core when not given; or the work is that of the workers of a Dask cluster, which see archive
    and board.

    Returns:
        the entries, and for every submission at fault the name of its folder -> what is wrong.
    """
    scored: dict[int, Entry] = {}
    faults: dict[str, tuple[Finding, ...]] = {}
    best: list[tuple[tuple[bool, bool, float, str], int]] = []
    draws = _room(len(folders), max(1, len(how.wanted)), max(1, how.draws))
    size = 1 if engine == "local" and len(folders) < 4 else jobs
    calls = [Call(folder.name, partial(_scored, folder.absolute(), how)) for folder in folders]
    # Here, too, a process that multiplies matrices leaves the other cores to the other processes.
    with _one_thread_each(), team(size, engine=engine, scheduler=scheduler) as workers:
        for done, (i, result) in enumerate(workers.do(calls), 1):
            if isinstance(result, Entry):
                for place, name in enumerate(name for name in how.wanted if name in result.draws):
                    draws[i, place] = result.draws[name]
                    result.draws[name] = draws[i, place]
                scored[i] = result
                insort(best, (result.place, i))
                if len(best) > ranks.WHOLE:
                    last = best.pop()[1]
                    scored[last] = msgspec.structs.replace(scored[last], shown=None)
            else:
                faults[folders[i].name] = result
            if advance is not None:
                advance(done, len(folders), folders[i].name)
    return [scored[i] for i in sorted(scored)], {name: faults[name] for name in sorted(faults)}


def _room(*shape: int) -> NDArray[np.float64]:
    """Room for draws in a temporary file that goes with this process: the system writes out what memory has no room for."""
    size = 8 * math.prod(shape)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # a disk that is full says so here, and does not end the process later
                os.posix_fallocate(file.fileno(), 0, max(8, size))
            return np.memmap(file, dtype=np.float64, mode="w+", shape=shape)
    except OSError as error:
        message = f"{size / 1e6:,.0f} MB of bootstrap draws find no room in {tempfile.gettempdir()}: {error.strerror}"
        raise UsageError(f"{message}. Ask for fewer --draws, or set TMPDIR to another folder") from None


def read_foreign(folder: Path) -> Entry:
    """A submission of other rows, with its stored score.

    Raises:
        DataError: the record or the score can't be read, or they are of different rows.
    """
    submission = load_submission(folder)
    record = read_record(folder / SCORE_FILE)
    facts, own = record.target, submission.archive
    stored = (facts.archive_digest, facts.split_digest, split_of(facts.table).name)
    if stored != (own.digest, own.split_digest, own.split):
        raise DataError.of(
            code="other-score",
            message="the stored score is of other rows than the record says",
            file=str(folder / SCORE_FILE),
        )
    return Entry(slug=folder.name, submission=submission, record=record)
