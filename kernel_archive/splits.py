"""The splits of an archive: the tables that are cut from it to be forecast or learnt from, and what their columns hold.

A split is one entry of :data:`SPLITS`. Selection, scoring, the baselines, the board, the card and the command line all
take its names, columns and cut-offs from here, so a further split with the columns of an existing one is one entry
more. What every column means is stated in :mod:`kernel_archive.schema`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kernel_archive.errors import UsageError, printable, suggestion

#: What the rows of a split are, and with it which metrics apply: ``eval`` (a candidate against its reference),
#: ``discovery`` (a child against its parent) or ``train`` (pairs to learn from, which nobody forecasts).
Kind = Literal["eval", "discovery", "train"]


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One split.

    Attributes:
        name: what users call it, and the file name of its definition in ``splits/``.
        table: the table that holds its rows, which is also its configuration on the Hub.
        kind: what its rows are.
        title: its name in headings.
        rows: what its rows are called in a sentence, in the plural.
        ratio: what its value column is, as a fraction of times.
        value: column with the speedup that the label is made from.
        task: column with the problem: the stratum of the bootstrap and the candidate set of a measuring budget.
        group: column that results are also reported by.
        anchor: column with the program that the candidate is compared with.
        candidate: column with the program whose speedup is forecast.
        kernel: column with the kernel id of the candidate.
        command: the command that makes it.
        pair_type: type of the training pairs that are made as its rows are; empty for the training pairs themselves.
        cutoffs: in x; a row at or above one counts as a discovery. Empty where discoveries are not counted.
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
        """The columns with programs that searches wrote; the reference of an evaluation split is nobody's find."""
        return (self.candidate,) if self.kind == "eval" else (self.anchor, self.candidate)


def _evaluation(name: str, title: str, command: str) -> Split:
    """A split whose rows are candidates against the reference of their task."""
    return Split(
        name=name, table=name, kind="eval", title=title, rows="kernels", ratio="reference time / candidate time",
        value="speedup", task="task", group="task", anchor="reference_code", candidate="candidate_code",
        kernel="kernel_id", command=command, pair_type="seed",
    )  # fmt: skip


#: Name -> split, in the order in which they are made.
SPLITS: Final[dict[str, Split]] = {
    split.name: split
    for split in (
        _evaluation("eval", "Evaluation split", "build-eval --cap 10"),
        _evaluation("eval_problems", "Transfer to new problems", "build-eval --split eval_problems"),
        _evaluation("eval_cuda", "Transfer to CUDA C++", "build-eval --split eval_cuda"),
        Split(
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
        Split(
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

#: Table -> its split, in the same order: an archive's tables and manifest name a split by its table.
SPLIT_TABLES: Final[dict[str, Split]] = {split.table: split for split in SPLITS.values()}

#: The splits whose rows are forecast and scored.
FORECAST_SPLITS: Final[dict[str, Split]] = {name: split for name, split in SPLITS.items() if split.kind != "train"}

#: The rows of recorded held-out searches, which are replayed and no split: they lie in no table of their own.
REPLAY: Final = _evaluation("replay", "Replay of recorded searches", "build")

#: The splits whose rows are candidates against a reference.
EVALUATIONS: Final[dict[str, Split]] = {name: split for name, split in SPLITS.items() if split.kind == "eval"}


def split_of(name: str) -> Split:
    """The split of that name, or the one whose table has it.

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
