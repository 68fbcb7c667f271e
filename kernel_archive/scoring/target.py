"""What a forecast is scored against: the rows of a split as arrays, with the identity of where they come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME, N_BINS, SCHEMES, Scheme, assign_bins, representatives
from kernel_archive.errors import DataError, Finding, UsageError, printable, suggestion
from kernel_archive.splits import FORECAST_SPLITS, REPLAY, Split, split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.splits import Kind

Result = TypeVar("Result")


class TargetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows come from. Two scores can be compared only when these agree.

    Attributes:
        archive_name: dataset name, or ``arrays`` for a target made from plain arrays.
        archive_version: version of the archive.
        archive_digest: logical digest of the archive.
        table: the split's table.
        split_name: ``canonical``, or the name of a variant.
        split_digest: logical digest of the split's rows.
        origin: ``selected`` here or ``published`` upstream and kept as it was.
        gpus: canonical names, sorted.
        n_rows: number of rows.
    """

    archive_name: str
    archive_version: str
    archive_digest: str
    table: str
    split_name: str
    split_digest: str
    origin: str
    gpus: tuple[str, ...]
    n_rows: int

    @property
    def canonical(self) -> bool:
        """Whether this is the canonical split of its archive."""
        return self.split_name == "canonical"


@dataclass(frozen=True, eq=False, kw_only=True)
class Surface:
    """The surface of n rows.

    Attributes:
        languages: n languages; empty texts where the programs are not at hand.
        spreads: shape (n,), largest over smallest measurement of each row, at least 1; 1 where there was only one.
        cues: name -> shape (n,), the value of a cue.
        changed: shape (n,), whether an edit changes the language; ``None`` where rows are no edits, or it is not known.
    """

    languages: tuple[str, ...]
    spreads: Floats
    cues: Mapping[str, Floats] = field(default_factory=dict)
    changed: Bools | None = None

    @classmethod
    def plain(cls, n: int) -> Surface:
        """Nothing is known of n rows."""
        return cls(languages=("",) * n, spreads=np.ones(n))

    def take(self, rows: Ints) -> Surface:
        """Some of the rows, in this order."""
        return Surface(
            languages=tuple(self.languages[i] for i in rows),
            spreads=self.spreads[rows],
            cues={name: values[rows] for name, values in self.cues.items()},
            changed=None if self.changed is None else self.changed[rows],
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """The rows of a split, as arrays.

    Attributes:
        split: which split: what its rows are, and with it which metrics they have.
        row_ids: n names, in the order of the split.
        tasks: n task names: the strata of the bootstrap and the candidate sets of speedup recovered.
        groups: n names that results are also reported by: the tasks, or the problem families of discovery pairs.
        speedups: shape (n,), float64, x: the ratio of times that the split is about.
        bins: shape (n,), int8, 1 to 8, under ``scheme``.
        scheme: rule of the bins.
        representatives: shape (8,), m_b in x.
        facts: where the rows come from.
        surface: what can be seen of the rows without understanding any.
        relabelled: whether the bins follow another scheme than the split was frozen with.
        withheld: whether the labels are hidden from the public: no figure of a single row is shown then.
        others: gives the row ids of the archive's other splits by name, for a file that was made for one of them.
    """

    split: Split
    row_ids: tuple[str, ...]
    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    speedups: NDArray[np.float64]
    bins: NDArray[np.int8]
    scheme: Scheme
    representatives: NDArray[np.float64]
    facts: TargetFacts
    surface: Surface
    relabelled: bool = False
    withheld: bool = False
    others: Callable[[], dict[str, set[str]]] | None = field(default=None, repr=False)
    _frozen: Target | None = field(default=None, repr=False)
    _made: dict[Callable[[Target], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_arrays(
        cls,
        *,
        row_ids: Sequence[str],
        tasks: Sequence[str],
        speedups: ArrayLike,
        split: str = "eval",
        groups: Sequence[str] | None = None,
        bins: ArrayLike | None = None,
        scheme: Scheme = DEFAULT_SCHEME,
        ends: tuple[float, float] | None = None,
        facts: TargetFacts | None = None,
        surface: Surface | None = None,
    ) -> Target:
        """A target from plain arrays.

        Args:
            row_ids: n distinct names.
            tasks: n task names.
            speedups: shape (n,), x, finite and above 0.
            split: name of the split that the rows are like.
            groups: n names to report by; the tasks when not given.
            bins: shape (n,), labels that were published; computed from the speedups when not given.
            scheme: rule of the bins.
            ends: representatives m_1 and m_8 that were frozen with the split; computed when not given.
            facts: identity; made from the arrays when not given.
            surface: languages, spread of the measurements and cues; nothing is known of them when not given.

        Raises:
            DataError: lengths differ, an id repeats, a speedup is not finite and above 0, or a bin is not 1 to 8.

        >>> t = Target.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
        >>> t.bins.tolist(), t.under("released").bins.tolist()
        ([4, 6], [3, 5])
        """
        ids, names = tuple(row_ids), tuple(tasks)
        s = np.ascontiguousarray(speedups, dtype=np.float64)
        reported = names if groups is None else tuple(groups)
        if not ids:
            raise DataError("a split without rows can't be scored")
        if s.shape != (len(ids),) or len(names) != len(ids) or len(reported) != len(ids):
            raise DataError(
                f"{len(ids)} row ids, {len(names)} tasks and speedups of shape {s.shape} don't belong together"
            )
        twice = [name for name, count in Counter(ids).items() if count > 1]
        if twice:
            message = "this row id is in the split twice"
            raise DataError.from_findings(
                Finding(code="repeated-row", message=message, value=printable(name)) for name in twice
            )
        computed = assign_bins(s, scheme, row_ids=ids)
        y = computed if bins is None else np.asarray(bins)
        if y.shape != s.shape or not np.isin(y, np.arange(1, N_BINS + 1)).all():
            raise DataError("bins must be whole numbers from 1 to 8, one for each row")
        y = np.ascontiguousarray(y, dtype=np.int8)
        m = representatives(s, y, scheme)
        if ends is not None:
            m[0], m[-1] = ends
        for array in (s, y, m):
            array.setflags(write=False)
        if facts is None:
            digest = hashlib.sha256()
            for item in sorted(zip(ids, names, s.tolist(), y.tolist(), strict=True)):
                digest.update(msgspec.json.encode(item))
            facts = TargetFacts(
                archive_name="arrays", archive_version="", archive_digest="", table=split_of(split).table, split_name="arrays",
                split_digest=f"sha256:{digest.hexdigest()}", origin="selected", gpus=(), n_rows=len(ids),
            )  # fmt: skip
        return cls(
            split=split_of(split), row_ids=ids, tasks=names, groups=reported, speedups=s, bins=y, scheme=scheme,
            representatives=m, facts=facts, surface=Surface.plain(len(ids)) if surface is None else surface,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def kind(self) -> Kind:
        """What its rows are: ``eval`` or ``discovery``."""
        return self.split.kind

    @cached_property
    def index(self) -> dict[str, int]:
        """Row id -> position."""
        return {name: i for i, name in enumerate(self.row_ids)}

    @cached_property
    def task_rows(self) -> dict[str, NDArray[np.intp]]:
        """Task -> positions of its rows."""
        return _positions(self.tasks)

    @cached_property
    def group_rows(self) -> dict[str, NDArray[np.intp]]:
        """Reported group -> positions of its rows."""
        return _positions(self.groups)

    @cached_property
    def pool_rows(self) -> dict[str, NDArray[np.intp]]:
        """Task and language -> positions of its rows: inside it pairs are compared."""
        return _positions(tuple(f"{t}/{name}" for t, name in zip(self.tasks, self.surface.languages, strict=True)))

    def once(self, make: Callable[[Target], Result]) -> Result:
        """What a function of a module makes of these rows alone: made when it is first asked for, and kept with them."""
        if make not in self._made:
            self._made[make] = make(self)
        made: Result = self._made[make]
        return made

    @cached_property
    def canonical_order(self) -> NDArray[np.intp]:
        """Positions sorted by task, then row id: scores are computed in this order, so no file order matters."""
        keys = sorted(range(len(self)), key=lambda i: (self.tasks[i], self.row_ids[i]))
        return np.asarray(keys, dtype=np.intp)

    @cached_property
    def ordered(self) -> Target:
        """The same rows in canonical order."""
        return self.take(self.canonical_order)

    def take(self, rows: NDArray[np.intp]) -> Target:
        """The same split with only these rows, in this order; the representatives stay those of the whole split."""
        return replace(
            self,
            row_ids=tuple(self.row_ids[i] for i in rows),
            tasks=tuple(self.tasks[i] for i in rows),
            groups=tuple(self.groups[i] for i in rows),
            speedups=self.speedups[rows],
            bins=self.bins[rows],
            surface=self.surface.take(rows),
            _frozen=None,
        )

    def under(self, scheme: Scheme) -> Target:
        """The same rows labelled by another scheme: bins and representatives computed from the speedups."""
        return self if scheme == self.scheme else self.other

    @cached_property
    def other(self) -> Target:
        """The same rows under the other of the two schemes: with its controls it is asked for by every score."""
        if self._frozen is not None:
            return self._frozen
        scheme = next(name for name in SCHEMES if name != self.scheme)
        y = assign_bins(self.speedups, scheme, row_ids=self.row_ids)
        m = representatives(self.speedups, y, scheme)
        return replace(self, bins=y, scheme=scheme, representatives=m, relabelled=True, _frozen=self)


def _positions(names: tuple[str, ...]) -> dict[str, NDArray[np.intp]]:
    number: dict[str, int] = {}
    numbers = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.intp)
    parts = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return {name: parts[number[name]] for name in sorted(number)}


def forecast_split(name: str) -> Split:
    """The split of that name, if its rows are forecast.

    Raises:
        UsageError: there is none, or it is to learn from.
    """
    spec = split_of(name)
    if spec.name not in (*FORECAST_SPLITS, REPLAY.name):
        raise UsageError(f"nobody forecasts the {spec.rows}. {suggestion(name, FORECAST_SPLITS)}")
    return spec


def split_facts(archive: Archive, split: Split) -> SplitFacts:
    """What the archive's manifest says of a split.

    Raises:
        UsageError: the archive has no such split yet.
    """
    facts = archive.manifest.splits.get(split.table)
    if facts is None or split.table not in archive.manifest.tables:
        raise UsageError(
            f"the archive in {archive.path} has no {split.name} split yet. Make it with: kernel-archive {split.command}"
        )
    return facts
