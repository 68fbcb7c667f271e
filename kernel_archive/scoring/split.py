"""The rows of a split as arrays, with the identity of where they come from.

In this package a ``spec`` is a :class:`~kernel_archive.splits.SplitSpec`, and a ``split`` is a
:class:`Split`, or the name of one that is to be loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Final, TypedDict, TypeVar, Unpack

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.open import Archive
from kernel_archive.bins import (
    DEFAULT_SCHEME,
    N_BINS,
    Scheme,
    assign_bins,
    outcome_speedups,
    representatives,
)
from kernel_archive.errors import DataError, UsageError, printable, suggestion
from kernel_archive.scoring.arrays import Floats, Ints
from kernel_archive.splits import FORECAST_SPLITS, Kind, SplitSpec, split_of

Result = TypeVar("Result")


class SplitIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows come from; two scores can be compared only when these agree."""

    archive_name: str = "arrays"  # dataset name, or ``arrays`` for plain arrays
    archive_version: str = ""
    archive_digest: str = ""
    table: str
    split_name: str  # ``canonical``, or the name of a variant
    split_digest: str = ""  # logical digest of the rows
    origin: str = "selected"  # ``selected`` here, or ``published`` upstream and kept as it was
    gpus: tuple[str, ...] = ()
    n_rows: int

    @property
    def canonical(self) -> bool:
        """Whether this is the canonical split of its archive."""
        return self.split_name == "canonical"


@dataclass(frozen=True, eq=False, kw_only=True)
class RowFacts:
    """What can be seen of n rows without understanding any."""

    languages: tuple[str, ...]  # n languages; empty texts where the programs are not available
    spreads: Floats  # shape (n,), largest over smallest measurement; 1 where there was only one
    #: Name -> shape (n,), the value of a cue.
    cues: Mapping[str, Floats] = field(default_factory=dict)
    #: Shape (n,), the bin that the author was told to land in, NaN for none; ``None`` if all are.
    goals: Floats | None = None
    #: Shape (n, k), measured speedups, NaN where there are fewer; ``None`` where none is known.
    measured: Floats | None = None

    @classmethod
    def plain(cls, n: int) -> RowFacts:
        """Make the facts of n rows of which nothing is known."""
        return cls(languages=("",) * n, spreads=np.ones(n))


@dataclass(frozen=True, eq=False, kw_only=True)
class Clusters:
    """What the rows of a split come from: rows of one cluster are not independent."""

    unit: str  # what a cluster is, in the plural: ``authors``, ``chains`` or ``problems``
    names: tuple[str, ...]  # n names


@dataclass(frozen=True, eq=False, kw_only=True)
class Zero:
    """The forecasts that a skill of 0 stands for: of a baseline without a language model."""

    name: str  # the baseline
    probabilities: Floats  # shape (n, 8), rows sum to 1


class SplitOptions(TypedDict, total=False):
    """What is known of rows beside their ids, tasks and speedups."""

    groups: Sequence[str] | None  # n names to report by; the tasks when not given
    #: Shape (n,), labels that were published; from the speedups when not given.
    bins: ArrayLike | None
    scheme: Scheme
    ends: tuple[float, float] | None  # representatives m_1 and m_8 that were frozen with the split
    identity: SplitIdentity  # made from the arrays when not given
    row_facts: RowFacts
    clusters: Clusters | None  # what intervals draw; rows when not given
    zero: Zero | None  # what a skill of 0 stands for; the best control when not given


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """The rows of a split."""

    spec: SplitSpec  # what the rows are, and with it which metrics they have
    row_ids: tuple[str, ...]
    #: n task names: strata of the bootstrap, candidate sets of speedup recovered.
    tasks: tuple[str, ...]
    #: n names to report by: the tasks, or the problem families of discovery pairs.
    groups: tuple[str, ...]
    speedups: Floats  # shape (n,), x
    bins: NDArray[np.int8]  # shape (n,), 1 to 8, under ``scheme``
    scheme: Scheme
    representatives: Floats  # shape (8,), m_b in x
    identity: SplitIdentity
    row_facts: RowFacts
    clusters: Clusters | None = None
    zero: Zero | None = None
    relabelled: bool = False  # the bins follow another scheme than the split was frozen with
    #: The labels came from a folder of withheld ones: no board takes the split.
    withheld: bool = False
    #: Maps the other splits of the archive to the ids of their rows.
    others: Callable[[], Mapping[str, set[str]]] = field(default=dict, repr=False)
    _made: dict[Callable[[Split], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_arrays(
        cls,
        *,
        row_ids: Sequence[str],
        tasks: Sequence[str],
        speedups: ArrayLike,
        split: str = "eval",
        **options: Unpack[SplitOptions],
    ) -> Split:
        """Make a split of n rows from plain arrays, in the form of the split of that name.

        Row ids are distinct; speedups are in x, finite and above 0; of ``validity`` they are 1 for
        a program that passes, else 0. What else may be known is in
        :class:`SplitOptions`.

        Raises:
            DataError: lengths differ, an id repeats, or a speedup or bin is out of range.

        >>> t = Split.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
        >>> t.bins.tolist(), t.under("released").bins.tolist()
        ([4, 6], [3, 5])
        """
        if unknown := options.keys() - SplitOptions.__annotations__.keys():
            raise TypeError(f"from_arrays() has no option {min(unknown)!r}")
        n, spec, scheme = len(row_ids), split_of(split), options.get("scheme", DEFAULT_SCHEME)
        groups = options.get("groups") or tasks
        s = np.ascontiguousarray(speedups, dtype=np.float64)
        s = outcome_speedups(s) if spec.asks_outcome else s
        if not n:
            raise DataError("a split without rows can't be scored")
        if s.shape != (n,) or len(tasks) != n or len(groups) != n:
            what = f"{n} row ids, {len(tasks)} tasks and speedups of shape {s.shape}"
            raise DataError(f"{what} don't belong together")
        if len(set(row_ids)) < n:
            what, value = "this row id is in the split twice", Counter(row_ids).most_common(1)[0][0]
            raise DataError.of(code="repeated-row", message=what, value=printable(value))
        computed, bins = assign_bins(s, scheme, row_ids=row_ids), options.get("bins")
        y = computed if bins is None else np.asarray(bins)
        if y.shape != s.shape or not np.isin(y, np.arange(1, N_BINS + 1)).all():
            raise DataError("bins must be whole numbers from 1 to 8, one for each row")
        y = np.ascontiguousarray(y, dtype=np.int8)
        m = representatives(s, y, scheme)
        m[0], m[-1] = options.get("ends") or (m[0], m[-1])
        arrays = SplitIdentity(table=spec.table, split_name="arrays", n_rows=n)
        return cls(
            spec=spec,
            row_ids=tuple(row_ids),
            tasks=tuple(tasks),
            groups=tuple(groups),
            speedups=s,
            bins=y,
            scheme=scheme,
            representatives=m,
            identity=options.get("identity", arrays),
            row_facts=options.get("row_facts") or RowFacts.plain(n),
            clusters=options.get("clusters"),
            zero=options.get("zero"),
        )

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def kind(self) -> Kind:
        """Kind of the split: it decides which metrics there are."""
        return self.spec.kind

    @property
    def uniform(self) -> Floats:
        """What a missing forecast counts as: even odds of the bins, or of two outcomes: (8,)."""
        if self.spec.asks_outcome:
            return np.where(np.arange(N_BINS) % (N_BINS - 1) == 0, 0.5, 0.0)
        return np.full(N_BINS, 1 / N_BINS)

    @cached_property
    def index(self) -> dict[str, int]:
        """Row id -> position."""
        return {name: i for i, name in enumerate(self.row_ids)}

    @cached_property
    def task_rows(self) -> dict[str, NDArray[np.intp]]:
        """Task -> positions of its rows."""
        return positions_of(self.tasks)

    @cached_property
    def group_rows(self) -> dict[str, NDArray[np.intp]]:
        """Reported group -> positions of its rows."""
        return positions_of(self.groups)

    @cached_property
    def pool_rows(self) -> dict[str, NDArray[np.intp]]:
        """Task and language -> positions of the rows whose pairs are compared."""
        pairs = zip(self.tasks, self.row_facts.languages, strict=True)
        return positions_of([f"{task}/{language}" for task, language in pairs])

    @cached_property
    def cluster_numbers(self) -> Ints | None:
        """Shape (n,), number of the cluster that a row is of; ``None`` where rows are drawn."""
        clusters = self.clusters
        return None if clusters is None else np.unique(clusters.names, return_inverse=True)[1]

    @property
    def n_clusters(self) -> int:
        """Number of clusters, or of rows where rows are drawn."""
        return len(set(self.clusters.names)) if self.clusters else len(self)

    def cached(self, make: Callable[[Split], Result]) -> Result:
        """Compute what a function makes of these rows alone, once for all scores."""
        if make not in self._made:
            self._made[make] = make(self)
        result: Result = self._made[make]
        return result

    @cached_property
    def canonical_order(self) -> NDArray[np.intp]:
        """Positions sorted by task, then row id: scores don't depend on the order of a file."""
        keys = sorted(range(len(self)), key=lambda i: (self.tasks[i], self.row_ids[i]))
        return np.asarray(keys, dtype=np.intp)

    @cached_property
    def ordered(self) -> Split:
        """The same rows in canonical order."""
        return self.take(self.canonical_order)

    def take(self, rows: Ints) -> Split:
        """Select rows, in this order; the representatives stay those of the whole split."""
        return replace(self, **{name: _select(getattr(self, name), rows) for name in _COLUMNS})

    def under(self, scheme: Scheme) -> Split:
        """Label the rows by a scheme, with representatives computed from the speedups."""
        if scheme == self.scheme:
            return self
        y = assign_bins(self.speedups, scheme, row_ids=self.row_ids)
        return replace(
            self,
            bins=y,
            scheme=scheme,
            representatives=representatives(self.speedups, y, scheme),
            relabelled=True,
            zero=None,  # its forecasts are over the bins of the other scheme
        )


#: Fields of :class:`Split` that hold something of every row.
_COLUMNS: Final = (
    *("row_ids", "tasks", "groups", "speedups", "bins", "row_facts", "clusters", "zero"),
)


def _select(column: Any, rows: Ints) -> Any:
    """Select rows of an array, a tuple, a map of such columns, or a record with some."""
    if isinstance(column, np.ndarray):
        return column[rows]
    if isinstance(column, tuple):
        return tuple(column[i] for i in rows)
    if isinstance(column, dict):
        return {name: _select(values, rows) for name, values in column.items()}
    if is_dataclass(column) and not isinstance(column, type):
        parts = {part.name: _select(getattr(column, part.name), rows) for part in fields(column)}
        return replace(column, **parts)
    return column  # a name, or nothing


def positions_of(names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Map each name to its positions, in order of the names."""
    unique, numbers = np.unique(names, return_inverse=True)
    return {name: np.flatnonzero(numbers == k) for k, name in enumerate(unique.tolist())}


def forecast_split(name: str) -> SplitSpec:
    """Find the split of that name, if its rows are forecast.

    Raises:
        UsageError: there is no such split, or it is to learn from.
    """
    spec = split_of(name)
    if spec.name not in FORECAST_SPLITS:
        way_out = suggestion(name, FORECAST_SPLITS)
        raise UsageError(f"{spec.name} holds {spec.rows}, which nobody forecasts. {way_out}")
    return spec


def split_facts(archive: Archive, spec: SplitSpec) -> SplitFacts:
    """Find what the archive's manifest says of a split.

    Raises:
        UsageError: the archive has no such split yet.
    """
    facts = archive.manifest.splits.get(spec.table)
    if facts is None or spec.table not in archive.manifest.tables:
        lack = f"the archive in {archive.path} has no {spec.name} split"
        if why := archive.manifest.reports.get("splits_not_made", {}).get(spec.table):
            raise UsageError(f"{lack}: {printable(why, 500)}")
        raise UsageError(f"{lack} yet. Make it with: kernel-archive {spec.command}")
    return facts


def table_rows(archive: Archive, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Read columns of a table row by row; there are no rows where the archive lacks the table.

    Times are microseconds since 1970.
    """
    if table not in archive.manifest.tables:
        return iter(())
    rows = archive.arrow(table, columns=list(columns))
    # Not to_numpy(), nor a list of times: they import pandas where that is installed, which takes
    # longer than a score.
    types = (pa.int64() if pa.types.is_timestamp(f.type) else f.type for f in rows.schema)
    plain = zip(rows.columns, types, strict=True)
    return zip(*(column.cast(kind).to_pylist() for column, kind in plain), strict=True)
