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
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

import polars as pl

from kernel_archive.selection.definitions import HELD_OUT, TrainDefinition
from kernel_archive.selection.discovery import EDGE_COLUMNS, EDGE_ENDS, find_edges
from kernel_archive.selection.selected import (
    ChosenRows,
    count_values,
    ids_of_kinds,
    pair_keys,
    with_pair_ids,
)
from kernel_archive.selection.tables import ArchiveTables, has_flag, leave_out, pair_key

#: Least ratios of the strata: 2 to the power of :data:`~.definitions.STRATA`, correctly rounded.
STRATUM_RATIOS: Final = (1.0, 1.0717734625362931, 1.4142135623730951, 2.0, 4.0)
#: Hash at most this many pairs of a stratum; of more, only those whose slower program has a small
#: mark.
MAX_HASHED: Final = 400_000
#: Column of a row -> column of an edge, which is what every kind of pair is made as.
_COLUMNS: Final = {
    "search_id": "search_id",
    "speedup": "ratio",
    "anchor_program": "parent_program_id",
    "anchor_program_id": "parent_program_id",
    "anchor_token": "parent_token_id",
    "problem": "child_problem",
    "family": "child_family",
    "gpu": "child_gpu",
    "candidate_kernel_id": "child_kernel_id",
    "candidate_program": "child_program_id",
    "candidate_token": "child_token_id",
}
#: Make edges of this many pairs at a time: few are taken, and one has twenty columns.
_EDGES_AT_A_TIME: Final = 5_000


class Forbidden(NamedTuple):
    """What training may not hold."""

    programs: pl.Series  # ids of programs of ``kernels/train`` that are held out
    pairs: pl.Series  # pair_key of two program ids, and of token ids, that are asked about

    @property
    def has_edge(self) -> pl.Expr:
        """Whether an edge's two programs, or near duplicates of them, are asked about as a pair."""
        keys = [pair_key(f"parent_{k}_id", f"child_{k}_id") for k in ("program", "token")]
        return pl.any_horizontal(key.is_in(self.pairs.implode()) for key in keys)


def find_forbidden(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Forbidden:
    """Collect what held-out searches ran, failures included, and what other splits ask about."""
    # A validity split asks about programs of held-out searches alone, which ``ran`` holds.
    evaluated, pairs = ids_of_kinds(members, "eval"), ids_of_kinds(members, "close", "discovery")
    is_held_out = tables.of_searches(pl.col("role") == HELD_OUT)
    ran = tables.read("evaluations", ["search_id", "program_id"], where=is_held_out)
    programs = pl.concat([ran["program_id"], evaluated["candidate_program"]]).implode()
    ids = ["program_id", "token_id"]
    texts = pl.concat([tables.read(table, ids) for table in ("kernels", "failures")])
    texts = texts.filter(pl.col("program_id").is_in(programs))
    tokens = pl.concat([texts["token_id"], evaluated["candidate_token"]]).implode()
    leaking = tables.training.filter(
        pl.col("program_id").is_in(programs) | pl.col("token_id").is_in(tokens)
    )
    return Forbidden(leaking["program_id"].unique(), pair_keys(pairs)["key"].unique())


def select_train(
    tables: ArchiveTables, definition: TrainDefinition, members: Mapping[str, pl.DataFrame]
) -> ChosenRows:
    """Select the training pairs (docs/splits.md).

    ``row_id`` is made from anchor program and candidate kernel; rows are sorted by kind, problem,
    search and candidate. The same pairs come out for any order of the input, on any machine.
    ``members`` are the rows of other splits by table, which training must not touch.
    """
    forbidden = find_forbidden(tables, members)
    dropped: Counter[str] = Counter()
    of_role = tables.of_searches(pl.col("role") == "training", definition.allows_builder(tables))
    reasons = {
        "other_role": ~of_role,
        "held_out": pl.col("program_id").is_in(forbidden.programs.implode()),
        "unknown_reference": pl.col("reference_id").fill_null("") == "",
        "flagged": has_flag(definition.exclude_flags),
    }
    kernels = tables.kernels("train", [*EDGE_ENDS, "flags"]).sort("kernel_id")
    kernels = leave_out(kernels, reasons, dropped).select(EDGE_ENDS)
    evaluations = tables.read("evaluations", EDGE_COLUMNS, where=of_role)
    edges, no_edges = find_edges(evaluations, kernels, {"discovery_pair": forbidden.has_edge})
    kinds = {
        "seed": _seeds(tables, kernels, forbidden, dropped),
        "parent_edit": edges,
        "pair": _sampled(definition, kernels, forbidden, edges),
    }
    rows = pl.concat(
        edges.select(pair_type=pl.lit(kind), rank=pl.lit(rank), **_COLUMNS)
        for rank, (kind, edges) in enumerate(kinds.items())
    )
    rows = with_pair_ids(rows, "train", "anchor_program", "candidate_kernel_id")
    # One row per anchor and candidate, of the first kind that has it.
    rows = rows.with_columns(first=pl.col("pair_type").first().over("row_id"))
    repeated = rows.filter(~pl.col("row_id").is_first_distinct())
    dropped.update(repeated.select(pl.format("{}_stands_as_{}", "pair_type", "first")).to_series())
    rows = rows.unique("row_id", keep="first", maintain_order=True)
    rows = rows.sort("rank", "problem", "search_id", "candidate_kernel_id", "row_id")
    by_task = rows.select("problem", "pair_type").sort("problem")
    tasks = by_task.group_by("problem", maintain_order=True)
    facts = {
        "kinds": count_values(rows["pair_type"]),
        "kinds_per_task": {str(task): count_values(group["pair_type"]) for (task,), group in tasks},
        "excluded": dict(sorted(dropped.items())),
        "no_edges": dict(sorted(no_edges.items())),
    }
    return ChosenRows(rows, facts)


def _seeds(
    tables: ArchiveTables, kernels: pl.DataFrame, forbidden: Forbidden, dropped: Counter[str]
) -> pl.DataFrame:
    """Make edges from every kernel's reference to it."""
    references = tables.references.select(
        child_problem="problem", parent_program_id="reference_id", parent_token_id="token_id"
    )
    rows = kernels.select(pl.all().name.prefix("child_")).with_columns(
        search_id="child_search_id", ratio="child_speedup", parent_program_id="child_reference_id"
    )
    keys = ["child_problem", "parent_program_id"]
    reasons = {
        "reference_without_code": pl.col("parent_token_id").is_null(),
        "reference_itself": pl.col("child_program_id") == pl.col("parent_program_id"),
        "discovery_pair": forbidden.has_edge,
    }
    rows = rows.join(references, on=keys, how="left", maintain_order="left")
    return leave_out(rows, reasons, dropped)


def _sampled(
    definition: TrainDefinition, kernels: pl.DataFrame, forbidden: Forbidden, edges: pl.DataFrame
) -> pl.DataFrame:
    """Draw edges between any two programs, task by task, spread evenly over the strata.

    It leaves out pairs that are asked about, those that are edges already, and those whose ratio no
    number holds.
    """
    # A pair with the reference is a seed pair, or one the wrong way round.
    kernels = kernels.filter(pl.col("program_id") != pl.col("reference_id"))
    marks = [kernel_mark(definition.seed, name) for name in kernels["kernel_id"]]
    kernels = kernels.with_columns(pl.Series("mark", marks, pl.UInt64))
    key = pair_key("parent_kernel_id", "child_kernel_id")
    ratio = pl.col("ratio")
    allowed = (
        ~forbidden.has_edge
        & ~key.is_in(edges.select(key.alias("pair"))["pair"].implode())
        & (ratio.is_finite() & (ratio > 0) & (1 / ratio).is_finite())
    )
    # No stratum gives more than all are to give together.
    wanted = definition.pairs_per_task
    drawn = [stratum_pairs(kernels.clear(), 1, math.inf, allowed, wanted)]
    for programs in kernels.partition_by("problem"):
        ends = pairwise([*STRATUM_RATIOS, math.inf])
        strata = [stratum_pairs(programs, *e, allowed, wanted) for e in ends]
        shares = quotas([len(rows) for rows in strata], wanted)
        drawn += [rows.head(n) for rows, n in zip(strata, shares, strict=True)]
    return pl.concat(drawn)


def stratum_pairs(
    programs: pl.DataFrame, low: float, high: float, allowed: pl.Expr, wanted: int
) -> pl.DataFrame:
    """Pair a task's programs of one reference and GPU, the pairs with the least hashes first.

    Args:
        programs: kernels of one task with their :func:`kernel_mark` as ``mark``.
        low: least ratio of the faster speedup to the slower one.
        high: the ratio that is too large.
        allowed: which edges count.
        wanted: at most this many.

    Returns:
        Edges: ``parent_`` and ``child_`` columns, ``ratio`` and ``search_id``. The hash says which
        program is the parent.
    """
    programs = programs.sort("reference_id", "gpu", "speedup", "kernel_id").with_row_index("place")
    speedup, comparable = pl.col("speedup"), ("reference_id", "gpu")
    begin = pl.col("place").min().over(comparable)
    least = begin + speedup.search_sorted(speedup * low).over(comparable)
    end = begin + speedup.search_sorted(speedup * high).over(comparable)
    first = pl.max_horizontal(least, pl.col("place") + 1)
    slower = programs.select("place", "mark", first=first, end=end)
    slower = slower.filter(pl.col("first") < pl.col("end"))
    # Halve the programs that may be the slower one until few enough pairs are left to hash.
    bits = 64
    while slower.select((pl.col("end") - pl.col("first")).sum()).item() > MAX_HASHED and bits > 1:
        bits -= 1
        slower = slower.filter(pl.col("mark") < pl.lit(2**bits, pl.UInt64))
    pairs = slower.select("mark", slow="place", fast=pl.int_ranges("first", "end")).explode("fast")
    marks = programs["mark"].gather(pairs["fast"])
    pairs = pairs.with_columns(hash=_pair_hash(pl.col("mark"), pl.lit(marks))).sort("hash")
    is_swapped = pl.col("hash") % 2 == 1
    pairs = pairs.select(
        parent=pl.when(is_swapped).then("fast").otherwise("slow"),
        child=pl.when(is_swapped).then("slow").otherwise("fast"),
    )
    edges = [_edges(programs, pairs.clear())]
    for part in pairs.iter_slices(_EDGES_AT_A_TIME):
        edges.append(_edges(programs, part).filter(allowed))
        if sum(map(len, edges)) >= wanted:
            break
    return pl.concat(edges).head(wanted)


def _edges(programs: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Make edges of pairs of places of programs."""
    sides = [
        programs[pairs[side]].select(pl.all().name.prefix(f"{side}_")) for side in pairs.columns
    ]
    return pl.concat(sides, how="horizontal").with_columns(
        search_id="child_search_id", ratio=pl.col("child_speedup") / pl.col("parent_speedup")
    )


def _pair_hash(slow: pl.Expr, fast: pl.Expr) -> pl.Expr:
    """Hash pairs of marks by splitmix64: no order of programs, no state of a generator is in it.

    Products wrap around; a quotient by a power of two is a shift.
    """
    x = slow ^ (fast * 2 | fast // 2**63)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x // 2**shift) * pl.lit(factor, pl.UInt64)
    return x ^ x // 2**31


def kernel_mark(seed: int, kernel_id: str) -> int:
    """Make a number of a kernel, evenly spread over 64 bits.

    >>> kernel_mark(0, "a") == kernel_mark(0, "a") != kernel_mark(1, "a")
    True
    """
    return int.from_bytes(hashlib.sha256(f"pairs:{seed}:{kernel_id}".encode()).digest()[:8], "big")


def quotas(available: Sequence[int], wanted: int) -> list[int]:
    """Spread ``wanted`` evenly over strata: they take turns as long as they have something left.

    >>> quotas([1000, 40, 0], 500)
    [460, 40, 0]
    """
    rounds = range(max(available, default=0))
    turns = (i for turn in rounds for i, n in enumerate(available) if n > turn)
    taken = Counter(islice(turns, wanted))
    return [taken[i] for i in range(len(available))]
