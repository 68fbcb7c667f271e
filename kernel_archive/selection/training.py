"""Training pairs.

Reference to candidate, parent to child, and pairs of programs of one task over strata of their
ratio.

No pair touches a program, or a near duplicate of one, that any held-out search has run or that is
in an evaluation split; only the reference of a seed pair is shared, which the evaluation itself
shows to every forecaster.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import polars as pl

from kernel_archive.selection.definitions import TrainDefinition, load_definition, variant_name
from kernel_archive.selection.discovery import has_flag
from kernel_archive.selection.edges import EDGE_COLUMNS, find_edges
from kernel_archive.selection.sampling import PairSpace, least_pairs, program_mark, quotas
from kernel_archive.selection.selected import Selection, count_values, label_rows, pair_id
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec

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


@dataclass(kw_only=True)
class HeldOut:
    """What no trainer may see.

    Attributes:
        programs: ids of programs of ``kernels/train`` that are held out.
        pairs: unordered pairs of program ids, and of token ids, of discovery pairs.
    """

    programs: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    def holds_pair(self, programs: tuple[str, str], tokens: tuple[str, str]) -> bool:
        """Whether the two programs, or near duplicates of them, are a discovery pair."""
        return _both(*programs) in self.pairs or _both(*tokens) in self.pairs

    def holds_row(self, anchor: str, candidate: str) -> pl.Expr:
        """Whether a row's two programs are a discovery pair."""
        listed = pl.Series([f"{a} {b}" for a, b in self.pairs], dtype=pl.String).implode()

        def is_pair(kind: str) -> pl.Expr:
            names = [anchor.format(kind), candidate.format(kind)]
            ends = pl.min_horizontal(names), pl.max_horizontal(names)
            return pl.concat_str(*ends, separator=" ").is_in(listed)

        return is_pair("program") | is_pair("token")


def _both(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


def held_out_programs(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> HeldOut:
    """Collect what training must not touch.

    What held-out searches ran, also in vain, and what other splits hold.
    """
    evaluated = [rows for name, rows in members.items() if SPLIT_TABLES[name].kind == "eval"]
    searches = tables.searches_with("held_out")["search_id"].to_list()
    ran = tables.read("evaluations", ["search_id", "program_id"]).filter(
        pl.col("search_id").is_in(searches)
    )
    programs = pl.concat([ran["program_id"], *(rows["candidate_program"] for rows in evaluated)])
    programs = programs.unique().implode()
    tokens = [rows["candidate_token"] for rows in evaluated]
    for table in ("kernels", "failures"):
        listed = tables.read(table, ["program_id", "token_id"])
        tokens.append(listed["token_id"].filter(listed["program_id"].is_in(programs)))
    train = tables.training_ids
    held = pl.col("program_id").is_in(programs) | pl.col("token_id").is_in(
        pl.concat([pl.Series([], dtype=pl.String), *tokens]).unique().implode()
    )
    found = HeldOut(programs={*train.filter(held)["program_id"]})
    columns = [train["program_id"], train["token_id"]]
    columns += [tables.references["reference_id"], tables.references["token_id"]]
    trained = pl.concat(columns).unique().implode()
    for name, rows in members.items():
        if SPLIT_TABLES[name].kind not in ("close", "discovery"):
            continue
        for ids in (("anchor_program", "candidate_program"), ("anchor_token", "candidate_token")):
            # Of a large archive's pairs hardly one is of two programs of training: the others are
            # not kept.
            pairs = rows.filter(pl.all_horizontal(pl.col(ids).is_in(trained)))
            found.pairs.update(_both(*pair) for pair in pairs.select(ids).iter_rows())
    return found


def select_train(
    split: SplitSpec, tables: ArchiveTables, rule: TrainDefinition, *, held_out: HeldOut
) -> Selection:
    """Select the training pairs (docs/splits.md).

    ``row_id`` is made from anchor program and candidate kernel; rows are sorted by kind, problem,
    search and candidate. The same pairs come out for any order of the input, on any machine.

    Raises:
        DataError: a speedup is not finite and above 0.
    """
    dropped: Counter[str] = Counter()
    searches = tables.searches_with(rule.role)["search_id"].to_list()
    kernels = _eligible(tables, rule, searches, held_out, dropped)
    seeds = _seeds(tables, kernels, held_out, dropped)
    evaluations = tables.read("evaluations", EDGE_COLUMNS).filter(
        pl.col("search_id").is_in(searches)
    )
    discovered = held_out.holds_row("parent_{}_id", "child_{}_id")
    edges, no_edges = find_edges(evaluations, kernels, {"discovery_pair": discovered})
    sample = PairSample(rule, held_out, edges.select("parent_kernel_id", "child_kernel_id").rows())
    # A pair with the reference is a seed pair, or one the wrong way round.
    drawn = sample.draw(kernels.filter(pl.col("program_id") != pl.col("reference_id")))
    if sample.no_ratio:
        dropped["ratio_out_of_range"] += len(sample.no_ratio)
    kinds = {"seed": seeds, "parent_edit": _edits(edges), "pair": drawn}
    rows = _first_kind([kinds[kind] for kind in rule.priority], dropped)
    per_task: dict[str, dict[str, int]] = {}
    groups = rows.group_by("problem", "pair_type").len().sort("problem", "pair_type")
    for task, kind, n in groups.iter_rows():
        per_task.setdefault(task, {})[kind] = n
    labelled, facts = label_rows(split, rows, rule.scheme)
    return Selection(
        split=split,
        rows=labelled,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(split, rule, cast("TrainDefinition", load_definition(split.name))),
        parameters=msgspec.to_builtins(rule),
        counts={
            **facts,
            "kinds": count_values(rows["pair_type"]),
            "kinds_per_task": per_task,
            "excluded": dict(sorted(dropped.items())),
            "no_edges": dict(sorted(no_edges.items())),
            "strata": sample.strata,
        },
    )


def _eligible(
    tables: ArchiveTables,
    rule: TrainDefinition,
    searches: Sequence[str],
    held_out: HeldOut,
    dropped: Counter[str],
) -> pl.DataFrame:
    """Select the kernels that pairs may be made of, by id; count why the others are not."""
    reason = (
        pl.when(~pl.col("search_id").is_in(searches))
        .then(pl.lit("other_role"))
        .when(pl.col("program_id").is_in(list(held_out.programs)))
        .then(pl.lit("held_out"))
        .when(pl.col("reference_id").fill_null("") == "")
        .then(pl.lit("unknown_reference"))
        .when(has_flag(rule.exclude_flags))
        .then(pl.lit("flagged"))
    )
    rows = tables.kernels("train").with_columns(reason=reason)
    dropped.update(rows["reason"].drop_nulls().to_list())
    return rows.filter(pl.col("reason").is_null()).drop("reason").sort("kernel_id")


def _seeds(
    tables: ArchiveTables, kernels: pl.DataFrame, held_out: HeldOut, dropped: Counter[str]
) -> pl.DataFrame:
    """Pair every kernel with its reference."""
    references = tables.references.select(
        "reference_id", "problem", anchor_token="token_id", has_code=pl.lit(value=True)
    ).unique(["reference_id", "problem"], keep="last")
    rows = kernels.join(
        references, on=["reference_id", "problem"], how="left", maintain_order="left"
    ).with_columns(pair_type=pl.lit("seed"), anchor_program="reference_id", **_CANDIDATE)
    reason = (
        pl.when(pl.col("has_code").is_null())
        .then(pl.lit("reference_without_code"))
        .when(pl.col("program_id") == pl.col("reference_id"))
        .then(pl.lit("reference_itself"))
        .when(held_out.holds_row("anchor_{}", "candidate_{}"))
        .then(pl.lit("discovery_pair"))
    )
    rows = rows.with_columns(reason=reason)
    dropped.update(rows["reason"].drop_nulls().to_list())
    return rows.filter(pl.col("reason").is_null()).select(_COLUMNS)


def _edits(edges: pl.DataFrame) -> pl.DataFrame:
    """Turn edges into pairs of parent and child."""
    return edges.with_columns(
        pair_type=pl.lit("parent_edit"),
        speedup="ratio",
        anchor_program="parent_program_id",
        anchor_token="parent_token_id",
        **{name: f"child_{source}" for name, source in _CANDIDATE.items()},
    ).select(_COLUMNS)


class PairSample:
    """The pairs of the third kind, drawn task by task.

    Attributes:
        strata: pairs per stratum that there are, and that were drawn, by task.
        no_ratio: pairs that were drawn and have no ratio.
    """

    def __init__(
        self, rule: TrainDefinition, held_out: HeldOut, edges: Sequence[tuple[str, str]]
    ) -> None:
        """Leave out pairs that are held out, and those that are edges already."""
        self._rule, self._held_out = rule, held_out
        self._edges = {_both(*edge) for edge in edges}
        self.strata: dict[str, Any] = {}
        self.no_ratio: set[tuple[str, str]] = set()

    def draw(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Draw the pairs of all tasks."""
        tables = [_pair_rows(kernels, [], [])]
        for (task,), programs in kernels.sort("problem").group_by("problem", maintain_order=True):
            members = programs.sort("reference_id", "gpu", "speedup", "kernel_id")
            pairs = self._draw_task(str(task), members)
            tables.append(_pair_rows(members, [a for a, _ in pairs], [c for _, c in pairs]))
        return pl.concat(tables)

    def _draw_task(self, task: str, members: pl.DataFrame) -> list[tuple[int, int]]:
        """Draw positions of anchor and candidate, spread evenly over the strata."""
        groups = members.group_by("reference_id", "gpu", maintain_order=True)
        space = PairSpace([rows["speedup"].to_numpy() for _, rows in groups], self._rule.strata)
        speedups = members["speedup"].to_numpy()
        ids = list(members.select("kernel_id", "program_id", "token_id").iter_rows())

        def allowed(i: int, j: int) -> bool:
            both = _both(ids[i][0], ids[j][0])
            with np.errstate(over="ignore", under="ignore"):
                ratios = speedups[i] / speedups[j], speedups[j] / speedups[i]
            if not all(np.isfinite(ratio) and ratio > 0 for ratio in ratios):
                self.no_ratio.add(both)
                return False
            programs, tokens = (ids[i][1], ids[j][1]), (ids[i][2], ids[j][2])
            return both not in self._edges and not self._held_out.holds_pair(programs, tokens)

        marks = np.array([program_mark(self._rule.seed, name) for name, *_ in ids], np.uint64)
        wanted = quotas(space.counts, self._rule.pairs_per_task)
        drawn: list[list[tuple[int, int]]] = [[] for _ in wanted]
        # A stratum can hold fewer pairs than it seems to, since edges are taken already: then the
        # others give more.
        for _ in range(len(wanted)):
            for k, n in enumerate(wanted):
                if n > len(drawn[k]):
                    drawn[k] = least_pairs(space, k, n, marks, allowed)
            if all(len(pairs) == n for pairs, n in zip(drawn, wanted, strict=True)):
                break
            limits = zip(drawn, wanted, space.counts, strict=True)
            room = [len(pairs) if len(pairs) < n else most for pairs, n, most in limits]
            wanted = quotas(room, self._rule.pairs_per_task)
        self.strata[task] = {"available": space.counts, "drawn": [len(pairs) for pairs in drawn]}
        return [pair for pairs in drawn for pair in pairs]


def _pair_rows(
    members: pl.DataFrame, anchors: Sequence[int], candidates: Sequence[int]
) -> pl.DataFrame:
    """Turn positions of anchors and candidates into pairs."""
    anchor = members[list(anchors)].select(
        anchor_program="program_id", anchor_token="token_id", anchor_speedup="speedup"
    )
    rows = pl.concat([members[list(candidates)], anchor], how="horizontal")
    return rows.with_columns(
        pl.lit("pair").alias("pair_type"),
        pl.col("speedup") / pl.col("anchor_speedup"),
        **_CANDIDATE,
    ).select(_COLUMNS)


def _first_kind(kinds: Sequence[pl.DataFrame], dropped: Counter[str]) -> pl.DataFrame:
    """Keep one row per anchor and candidate, of the first kind that has it."""
    rows = pl.concat([rows.with_columns(rank=pl.lit(i, pl.Int8)) for i, rows in enumerate(kinds)])
    pairs = rows.select("anchor_program", "candidate_kernel_id").iter_rows()
    ids = pl.Series("row_id", [pair_id("train", *pair) for pair in pairs], pl.String)
    rows = rows.with_columns(ids, anchor_program_id="anchor_program")
    first = rows.unique("row_id", keep="first", maintain_order=True)
    again = rows.filter(~pl.col("row_id").is_first_distinct()).select("row_id", "pair_type")
    kept = first.select("row_id", kept="pair_type")
    for kind, other in again.join(kept, on="row_id").select("pair_type", "kept").iter_rows():
        dropped[f"{kind}_stands_as_{other}"] += 1
    order = ("rank", "problem", "search_id", "candidate_kernel_id", "row_id")
    return first.sort(order)
