"""Training pairs: reference to candidate, parent to child, and sampled pairs of one task.

No pair touches a program, or a near duplicate of one, that any held-out search has run or that is
in an evaluation split; only the reference of a seed pair is shared, which the evaluation itself
shows to every forecaster.

Of the sampled pairs those with the least hashes of their two ids are taken: no order of rows
matters, and adding a program changes few of them.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import polars as pl

from kernel_archive.selection.definitions import (
    TrainDefinition,
    load_definition,
    make_selection,
    variant_name,
)
from kernel_archive.selection.edges import EDGE_COLUMNS, find_edges, without
from kernel_archive.selection.selected import Selection, count_values, pair_id
from kernel_archive.selection.tables import has_flag
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec

#: Hash at most this many pairs of a stratum; of more, only those whose slower program has a small
#: mark.
MAX_HASHED: Final = 400_000
#: Columns of the candidate that a row has.
_CANDIDATE: Final = {
    "problem": "problem",
    "family": "family",
    "gpu": "gpu",
    "candidate_kernel_id": "kernel_id",
    "candidate_program": "program_id",
    "candidate_token": "token_id",
}
_COLUMNS: Final = (
    "pair_type",
    "speedup",
    "search_id",
    "anchor_program",
    "anchor_token",
    *_CANDIDATE,
)


class HeldOut(NamedTuple):
    """What no trainer may see.

    Attributes:
        programs: ids of programs of ``kernels/train`` that are held out.
        pairs: pairs of program ids, and of token ids, of which one is asked about, as
            :func:`pair_key` writes them.
    """

    programs: pl.Series
    pairs: pl.Series

    def holds_row(self, anchor: str, candidate: str) -> pl.Expr:
        """Whether a row's two programs, or near duplicates of them, are asked about as a pair.

        ``parent_{}_id`` and ``child_{}_id`` name columns of ``program`` and ``token`` ids.
        """
        keys = [pair_key(anchor.format(k), candidate.format(k)) for k in ("program", "token")]
        return pl.any_horizontal(key.is_in(self.pairs.implode()) for key in keys)


def pair_key(first: str, second: str) -> pl.Expr:
    """Write the ids of two columns as one text, whichever comes first."""
    ids = (first, second)
    return pl.concat_str(pl.min_horizontal(ids), pl.max_horizontal(ids), separator=" ")


def held_out_programs(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> HeldOut:
    """Collect what training must not touch.

    What held-out searches ran, also in vain, and what other splits hold.
    """
    evaluated = [rows for name, rows in members.items() if SPLIT_TABLES[name].kind == "eval"]
    searches = tables.searches_with("held_out")["search_id"].implode()
    ran = tables.read("evaluations", ["search_id", "program_id"])
    ran = ran.filter(pl.col("search_id").is_in(searches))
    programs = pl.concat([ran["program_id"], *(rows["candidate_program"] for rows in evaluated)])
    tokens = [rows["candidate_token"] for rows in evaluated]
    for table in ("kernels", "failures"):
        listed = tables.read(table, ["program_id", "token_id"])
        tokens.append(listed.filter(pl.col("program_id").is_in(programs.implode()))["token_id"])
    forbidden = tables.training.filter(
        pl.col("program_id").is_in(programs.implode())
        | pl.col("token_id").is_in(pl.concat(tokens).implode())
    )
    pairs = [pl.Series([], dtype=pl.String)]
    for name, rows in members.items():
        if SPLIT_TABLES[name].kind in ("close", "discovery"):
            for kind in ("program", "token"):
                key = pair_key(f"anchor_{kind}", f"candidate_{kind}")
                pairs.append(rows.select(key.alias("pair"))["pair"])
    return HeldOut(forbidden["program_id"].unique(), pl.concat(pairs).unique())


def select_train(
    split: SplitSpec, tables: ArchiveTables, rule: TrainDefinition, *, held_out: HeldOut
) -> Selection:
    """Select the training pairs (docs/splits.md).

    ``row_id`` is made from anchor program and candidate kernel; rows are sorted by kind, problem,
    search and candidate. The same pairs come out for any order of the input, on any machine.
    """
    dropped: Counter[str] = Counter()
    searches = tables.searches_with(rule.role)["search_id"].implode()
    kernels = tables.kernels("train").sort("kernel_id")
    kernels = without(
        kernels,
        {
            "other_role": ~pl.col("search_id").is_in(searches),
            "held_out": pl.col("program_id").is_in(held_out.programs.implode()),
            "unknown_reference": pl.col("reference_id").fill_null("") == "",
            "flagged": has_flag(rule.exclude_flags),
        },
        dropped,
    )
    evaluations = tables.read("evaluations", EDGE_COLUMNS)
    discovered = held_out.holds_row("parent_{}_id", "child_{}_id")
    edges, no_edges = find_edges(
        evaluations.filter(pl.col("search_id").is_in(searches)),
        kernels,
        {"discovery_pair": discovered},
    )
    kinds = {
        "seed": _seeds(tables, kernels, held_out, dropped),
        "parent_edit": _edits(edges),
        "pair": _sampled(rule, kernels, held_out, edges),
    }
    rows = _first_kind([kinds[kind] for kind in rule.priority], dropped)
    per_task: dict[str, dict[str, int]] = {}
    groups = rows.group_by("problem", "pair_type").len().sort("problem", "pair_type")
    for task, kind, n in groups.iter_rows():
        per_task.setdefault(task, {})[kind] = n
    facts: dict[str, Any] = {
        "kinds": count_values(rows["pair_type"]),
        "kinds_per_task": per_task,
        "excluded": dict(sorted(dropped.items())),
        "no_edges": dict(sorted(no_edges.items())),
    }
    standard = cast("TrainDefinition", load_definition(split.name))
    return make_selection(split, tables, rows, rule, variant_name(split, rule, standard), facts)


def _seeds(
    tables: ArchiveTables, kernels: pl.DataFrame, held_out: HeldOut, dropped: Counter[str]
) -> pl.DataFrame:
    """Pair every kernel with its reference."""
    references = tables.references.select("reference_id", "problem", anchor_token="token_id")
    rows = kernels.join(
        references, on=["reference_id", "problem"], how="left", maintain_order="left"
    ).with_columns(pair_type=pl.lit("seed"), anchor_program="reference_id", **_CANDIDATE)
    reasons = {
        "reference_without_code": pl.col("anchor_token").is_null(),
        "reference_itself": pl.col("program_id") == pl.col("reference_id"),
        "discovery_pair": held_out.holds_row("anchor_{}", "candidate_{}"),
    }
    return without(rows, reasons, dropped).select(_COLUMNS)


def _edits(edges: pl.DataFrame) -> pl.DataFrame:
    """Turn edges into pairs of parent and child."""
    return edges.with_columns(
        pair_type=pl.lit("parent_edit"),
        speedup="ratio",
        anchor_program="parent_program_id",
        anchor_token="parent_token_id",
        **{name: f"child_{source}" for name, source in _CANDIDATE.items()},
    ).select(_COLUMNS)


def _sampled(
    rule: TrainDefinition, kernels: pl.DataFrame, held_out: HeldOut, edges: pl.DataFrame
) -> pl.DataFrame:
    """Draw the pairs of the third kind, task by task, spread evenly over the strata.

    Left out are pairs that are asked about, those that are edges already, and those whose ratio no
    number holds.
    """
    # A pair with the reference is a seed pair, or one the wrong way round.
    kernels = kernels.filter(pl.col("program_id") != pl.col("reference_id"))
    present = edges.select(pair_key("parent_kernel_id", "child_kernel_id").alias("pair"))["pair"]
    ratio = pl.col("speedup")
    barred = (
        held_out.holds_row("anchor_{}", "candidate_{}")
        | pair_key("anchor_kernel_id", "candidate_kernel_id").is_in(present.implode())
        | ~(ratio.is_finite() & (ratio > 0) & (1 / ratio).is_finite())
    )
    drawn = [_pair_rows(kernels, pl.DataFrame({"anchor": [], "candidate": []}))]
    for programs in kernels.partition_by("problem"):
        programs = programs.sort("reference_id", "gpu", "speedup", "kernel_id")  # noqa: PLW2901
        groups = programs.partition_by("reference_id", "gpu", maintain_order=True)
        marks = [program_mark(rule.seed, name) for name in programs["kernel_id"]]
        strata = stratum_pairs(
            [group["speedup"].to_numpy() for group in groups],
            rule.strata,
            np.array(marks, np.uint64),
        )
        rows = [_pair_rows(programs, pairs).filter(~barred) for pairs in strata]
        shares = quotas([len(stratum) for stratum in rows], rule.pairs_per_task)
        drawn += [stratum.head(n) for stratum, n in zip(rows, shares, strict=True)]
    return pl.concat(drawn).select(_COLUMNS)


def _pair_rows(programs: pl.DataFrame, positions: pl.DataFrame) -> pl.DataFrame:
    """Turn positions of anchors and candidates into pairs."""
    anchors = programs[positions["anchor"].cast(pl.Int64)].select(
        anchor_program="program_id",
        anchor_token="token_id",
        anchor_kernel_id="kernel_id",
        anchor_speedup="speedup",
    )
    candidates = programs[positions["candidate"].cast(pl.Int64)]
    return pl.concat([candidates, anchors], how="horizontal").with_columns(
        pl.lit("pair").alias("pair_type"),
        pl.col("speedup") / pl.col("anchor_speedup"),
        **_CANDIDATE,
    )


def _first_kind(kinds: Sequence[pl.DataFrame], dropped: Counter[str]) -> pl.DataFrame:
    """Keep one row per anchor and candidate, of the first kind that has it."""
    rows = pl.concat([rows.with_columns(rank=pl.lit(i, pl.Int8)) for i, rows in enumerate(kinds)])
    pairs = rows.select("anchor_program", "candidate_kernel_id").iter_rows()
    ids = pl.Series("row_id", [pair_id("train", *pair) for pair in pairs], pl.String)
    rows = rows.with_columns(ids, anchor_program_id="anchor_program")
    rows = rows.with_columns(first=pl.col("pair_type").first().over("row_id"))
    again = rows.filter(~pl.col("row_id").is_first_distinct())
    for kind, other in again.select("pair_type", "first").iter_rows():
        dropped[f"{kind}_stands_as_{other}"] += 1
    order = ("rank", "problem", "search_id", "candidate_kernel_id", "row_id")
    return rows.unique("row_id", keep="first", maintain_order=True).sort(order)


def stratum_factors(strata: Sequence[float]) -> list[float]:
    """Return the least ratios of the strata: 2 to the power of their lower ends.

    They are correctly rounded on every machine.

    >>> stratum_factors([0.0, 0.5, 1.0])
    [1.0, 1.4142135623730951, 2.0]
    """
    return [float(Decimal(2) ** Decimal(repr(float(low)))) for low in strata]


def quotas(available: Sequence[int], wanted: int) -> list[int]:
    """Spread ``wanted`` evenly over strata.

    >>> quotas([1000, 40, 0], 500)
    [460, 40, 0]
    """
    rest = min(wanted, sum(available))
    # The highest level to which all strata can be filled, those with less up to their brim.
    level = bisect_right(range(rest + 1), rest, key=lambda x: sum(min(n, x) for n in available)) - 1
    shares = [min(n, level) for n in available]
    for i, n in enumerate(available):
        if n > level and sum(shares) < rest:
            shares[i] += 1
    return shares


def program_mark(seed: int, kernel_id: str) -> int:
    """Make a number of a kernel, evenly spread over 64 bits.

    >>> program_mark(0, "a") == program_mark(0, "a") != program_mark(1, "a")
    True
    """
    return int.from_bytes(hashlib.sha256(f"pairs:{seed}:{kernel_id}".encode()).digest()[:8], "big")


def stratum_pairs(
    groups: Sequence[NDArray[np.float64]], strata: Sequence[float], marks: NDArray[np.uint64]
) -> Iterator[pl.DataFrame]:
    """Yield the pairs of each stratum of a task, those with the least hashes first.

    Args:
        groups: ascending speedups of each group of comparable programs.
        strata: lower ends of the strata of log2 of the ratio.
        marks: :func:`program_mark` of every program, group after group.

    Yields:
        ``anchor`` and ``candidate``: positions of the two programs, turned as the hash says.
    """
    offsets = np.cumsum([0, *map(len, groups)])
    for low, high in pairwise([*stratum_factors(strata), math.inf]):
        first, sizes = np.zeros(len(marks), np.int64), np.zeros(len(marks), np.int64)
        for offset, speedups in zip(offsets, groups, strict=False):
            # Infinity is a right upper end of a stratum.
            with np.errstate(over="ignore"):
                least, most = speedups * low, speedups * high
            start = np.maximum(np.searchsorted(speedups, least), np.arange(len(speedups)) + 1)
            own = slice(offset, offset + len(speedups))
            first[own] = offset + start
            sizes[own] = np.maximum(np.searchsorted(speedups, most) - start, 0)
        slower = _few_enough(sizes, marks)
        counts = sizes[slower]
        slow = np.repeat(slower, counts)
        step = np.arange(len(slow)) - np.repeat(np.cumsum(counts) - counts, counts)
        fast = first[slow] + step
        hashes = _pair_hashes(marks[slow], marks[fast])
        turned = hashes % np.uint64(2) == 1
        pairs = {
            "hash": hashes,
            "anchor": np.where(turned, fast, slow),
            "candidate": np.where(turned, slow, fast),
        }
        yield pl.DataFrame(pairs).sort("hash", maintain_order=True).drop("hash")


def _few_enough(sizes: NDArray[np.int64], marks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Choose slower programs whose pairs are at most :data:`MAX_HASHED`, by their marks."""
    programs = np.flatnonzero(sizes)
    bits = 64
    while sizes[programs].sum() > MAX_HASHED and bits > 1:
        bits -= 1
        programs = programs[marks[programs] < np.uint64(1) << np.uint64(bits)]
    return programs


def _pair_hashes(slow: NDArray[np.uint64], fast: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash pairs of marks by splitmix64: no order of programs, no state of a generator is in it."""
    x = slow ^ (fast << np.uint64(1) | fast >> np.uint64(63))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(factor)
    return x ^ x >> np.uint64(31)
