"""The splits of an archive: tables that are cut from it, to be forecast or learnt from.

A split is one entry of ``splits.toml``, not a split of the Hub (train, test). All rooms take names,
columns and cut-offs from here, so a further split with the columns of an existing one is one more
entry. :mod:`kernel_archive.schema` says what every column means.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kernel_archive.errors import UsageError, printable, suggestion
from kernel_archive.toml_files import toml_beside

#: What the rows of a split are, which decides on the metrics: ``eval`` (a candidate against its
#: reference), ``validity`` (whether one passes), ``close`` (two programs of one aimed speed),
#: ``discovery`` (a child against its parent) or ``train`` (pairs to learn from).
Kind = Literal["eval", "validity", "close", "discovery", "train"]


class SplitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Names, columns and cut-offs of one split; ``kernel_archive.scoring.Split`` has the rows."""

    name: str  # what users call it, and the file name of its definition in ``splits/``
    table: str  # the table that holds its rows, which is also its configuration on the Hub
    kind: Kind  # what its rows are
    #: What is asked about a row, by the name of its prompt; nothing about training pairs.
    ask: str = ""
    inputs: str = ""  # the table that has its rows without labels, where there is one
    title: str  # its name in headings
    rows: str  # what its rows are called in a sentence, in the plural
    ratio: str  # what its value column is, as a fraction of times
    value: str  # column with the speedup that the label is made from
    task: str  # column with the problem, the stratum of the bootstrap
    group: str  # column that results are also reported by
    anchor: str  # column with the program that the candidate is compared with
    candidate: str  # column with the program whose speedup is forecast
    kernel: str  # column with the kernel id of the candidate
    anchor_kernel: str = ""  # column with that of the anchor, where a search wrote it
    command: str  # the command that makes it
    problem: str  # column with the problem; the stratum, where the entry does not say
    #: Column with the problem, where the rows of a problem are drawn together for intervals; empty
    #: where those of an author are.
    cluster: str = ""
    #: Column with the speedup on another GPU that is shown. Programs of other splits may not be
    #: among its rows, so the split is made again after each of them.
    known: str = ""
    optional: bool = False  # whether an archive that lacks it lacks nothing
    #: The headline figure: entries of a board are ranked by it, and it is shown first.
    lead: str = "crps_skill"
    note: str = ""  # what a reader of its scores must know, in one sentence
    #: Type of the training pairs that are made as its rows are; empty for ``train``.
    pair_type: str = ""
    #: In x; a row at or above one counts as a discovery. Empty where none are counted.
    cutoffs: tuple[float, ...] = ()

    @property
    def shows_reference(self) -> bool:
        """Whether a row is one program, shown with its reference."""
        return self.kind == "eval" or self.asks_outcome

    @property
    def asks_outcome(self) -> bool:
        """Whether it is asked if a program passes, and not how fast it is."""
        return self.kind == "validity"


def _read_splits() -> dict[str, SplitSpec]:
    """Read ``splits.toml``; an entry that is ``like`` another states only where it differs."""
    entries = toml_beside(__file__)
    splits: dict[str, SplitSpec] = {}
    for name, entry in entries.items():
        base = entries[entry.pop("like")] if "like" in entry else {}
        fields = {**base, **entry, "name": name}
        splits[name] = msgspec.convert({"problem": fields["task"], **fields}, SplitSpec)
    return splits


SPLITS: Final = _read_splits()  # name -> split, in the order in which they are made
#: Table -> its split; an archive's tables and manifest name a split by its table.
SPLIT_TABLES: Final = {split.table: split for split in SPLITS.values()}
#: The splits whose rows are forecast and scored.
FORECAST_SPLITS: Final = {name: split for name, split in SPLITS.items() if split.kind != "train"}
#: The splits whose rows are candidates against a reference.
REFERENCE_SPLITS: Final = {name: split for name, split in SPLITS.items() if split.shows_reference}


def split_of(name: str) -> SplitSpec:
    """Look up a split by its name or its table; a UsageError suggests the nearest name.

    >>> split_of("discovery").table, split_of("discovery_pairs").name
    ('discovery_pairs', 'discovery')
    """
    for split in SPLITS.values():
        if name in (split.name, split.table):
            return split
    known = dict.fromkeys(key for split in SPLITS.values() for key in (split.name, split.table))
    raise UsageError(f"unknown split {printable(name)!r}. {suggestion(name, known)}")
