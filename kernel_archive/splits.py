"""The splits of an archive: tables that are cut from it, to be forecast or learnt from.

A split is one entry of :data:`SPLITS`. All rooms take its names, columns and cut-offs from here, so
a further split with the columns of an existing one is one more entry.
:mod:`kernel_archive.schema` says what every column means.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kernel_archive.errors import UsageError, printable, suggestion

#: What the rows of a split are, which decides on the metrics: ``eval`` (a candidate against its
#: reference), ``close`` (two programs of one aimed speed), ``discovery`` (a child against its
#: parent) or ``train`` (pairs to learn from).
Kind = Literal["eval", "close", "discovery", "train"]


class SplitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Names, columns and cut-offs of one split; :class:`kernel_archive.scoring.Split` has the rows.

    Attributes:
        name: what users call it, and the file name of its definition in ``splits/``.
        table: the table that holds its rows, which is also its configuration on the Hub.
        kind: what its rows are.
        title: its name in headings.
        rows: what its rows are called in a sentence, in the plural.
        ratio: what its value column is, as a fraction of times.
        value: column with the speedup that the label is made from.
        task: column with the problem, the stratum of the bootstrap.
        group: column that results are also reported by.
        anchor: column with the program that the candidate is compared with.
        candidate: column with the program whose speedup is forecast.
        kernel: column with the kernel id of the candidate.
        command: the command that makes it.
        pair_type: type of the training pairs that are made as its rows are; empty for ``train``.
        cutoffs: in x; a row at or above one counts as a discovery. Empty where none are counted.
    """

    name: str
    table: str
    kind: Kind
    title: str
    rows: str
    ratio: str
    value: str
    task: str
    group: str
    anchor: str
    candidate: str
    kernel: str
    command: str
    pair_type: str = ""
    cutoffs: tuple[float, ...] = ()

    @property
    def programs(self) -> tuple[str, ...]:
        """List the columns with programs that searches wrote, so not the reference."""
        return (self.candidate,) if self.kind == "eval" else (self.anchor, self.candidate)


def _evaluation(name: str, title: str, command: str) -> SplitSpec:
    """Describe a split whose rows are candidates against the reference of their task."""
    return SplitSpec(
        name=name,
        table=name,
        kind="eval",
        title=title,
        rows="kernels",
        ratio="reference time / candidate time",
        value="speedup",
        task="task",
        group="task",
        anchor="reference_code",
        candidate="candidate_code",
        kernel="kernel_id",
        command=command,
        pair_type="seed",
    )


#: Name -> split, in the order in which they are made.
SPLITS: Final[dict[str, SplitSpec]] = {
    split.name: split
    for split in (
        _evaluation("eval", "Evaluation split", "build-eval --cap 10"),
        _evaluation(
            "eval_problems", "Transfer to new problems", "build-eval --split eval_problems"
        ),
        _evaluation("eval_cuda", "Transfer to CUDA C++", "build-eval --split eval_cuda"),
        SplitSpec(
            name="eval_close",
            table="eval_close",
            kind="close",
            title="Close pairs",
            rows="pairs of like programs",
            ratio="first time / second time",
            value="ratio",
            task="task",
            group="task",
            anchor="first_code",
            candidate="second_code",
            kernel="second_kernel_id",
            command="build-eval --split eval_close",
            pair_type="pair",
        ),
        SplitSpec(
            name="discovery",
            table="discovery_pairs",
            kind="discovery",
            title="Discovery pairs",
            rows="parent-child pairs",
            ratio="parent time / child time",
            value="g",
            task="problem",
            group="family",
            anchor="parent_code",
            candidate="child_code",
            kernel="child_kernel_id",
            command="build-discovery",
            pair_type="parent_edit",
            cutoffs=(1.25, 1.5, 2.0),
        ),
        SplitSpec(
            name="train",
            table="train_pairs",
            kind="train",
            title="Training pairs",
            rows="training pairs",
            ratio="anchor time / candidate time",
            value="speedup",
            task="problem",
            group="pair_type",
            anchor="anchor_code",
            candidate="candidate_code",
            kernel="candidate_kernel_id",
            command="build-train",
        ),
    )
}

#: Table -> its split; an archive's tables and manifest name a split by its table.
SPLIT_TABLES: Final[dict[str, SplitSpec]] = {split.table: split for split in SPLITS.values()}

#: The splits whose rows are forecast and scored.
FORECAST_SPLITS: Final[dict[str, SplitSpec]] = {
    name: split for name, split in SPLITS.items() if split.kind != "train"
}

#: The rows of recorded held-out searches, which are replayed; they have no table of their own.
REPLAY: Final = _evaluation("replay", "Replay of recorded searches", "build")

#: The splits whose rows are candidates against a reference.
EVALUATIONS: Final[dict[str, SplitSpec]] = {
    name: split for name, split in SPLITS.items() if split.kind == "eval"
}


def split_of(name: str) -> SplitSpec:
    """Look up a split by its name or its table.

    Raises:
        UsageError: there is none; the nearest name is suggested.

    >>> split_of("discovery").table, split_of("discovery_pairs").name
    ('discovery_pairs', 'discovery')
    """
    for split in (*SPLITS.values(), REPLAY):
        if name in (split.name, split.table):
            return split
    known = dict.fromkeys(key for split in SPLITS.values() for key in (split.name, split.table))
    raise UsageError(f"unknown split {printable(name)!r}. {suggestion(name, known)}")
