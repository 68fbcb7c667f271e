"""Training pairs: reference to candidate, parent to child, and pairs of programs of one task over strata of their ratio.

No pair touches a program, or a near duplicate of one, that any held-out search has run or that is in an evaluation
split; only the reference of a seed pair is shared, which the evaluation itself shows to every forecaster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from kernel_archive.selection.definitions import TrainDefinition, load_definition, variant_name
from kernel_archive.selection.edges import Kernel, find_edges, kernels_by_id, speedup_ratio
from kernel_archive.selection.leakage import of_kind
from kernel_archive.selection.sampling import PairSpace, least_pairs, program_mark, quotas
from kernel_archive.selection.selected import (
    Selection,
    Side,
    counted,
    frame,
    pair_id,
    row_table,
    select,
    split_row,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Split


@dataclass(kw_only=True)
class HeldOut:
    """Of the programs of ``kernels/train`` those that no trainer may see as a pair, and pairs of them that are discovery pairs.

    Attributes:
        programs: program ids.
        pairs: unordered pairs of program ids and of token ids of discovery pairs.
    """

    programs: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    def holds_pair(self, a: Side, b: Side) -> bool:
        """Whether the two programs, or near duplicates of them, are a discovery pair in either direction."""
        return _both(a.program_id, b.program_id) in self.pairs or _both(a.token_id, b.token_id) in self.pairs


def _both(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


def held_out_programs(tables: ArchiveTables, members: Mapping[str, pa.Table]) -> HeldOut:
    """Everything that training must not touch: what held-out searches ran, also in vain, and what other splits hold.

    Rows of a published split need be in no search here.
    """
    evaluated = [*of_kind(members, "eval").values()]
    searches = [name for name, role in tables.roles.items() if role == "held_out"]
    ran = frame(tables.read("evaluations", ["search_id", "program_id"])).filter(pl.col("search_id").is_in(searches))
    programs = pl.concat([ran["program_id"], *(rows["candidate_program"] for rows in evaluated)]).unique().implode()
    tokens = [rows["candidate_token"] for rows in evaluated]
    for table in ("kernels", "failures"):
        known = frame(tables.read(table, ["program_id", "token_id"]))
        tokens.append(known["token_id"].filter(known["program_id"].is_in(programs)))
    train = frame(tables.read("kernels", ["program_id", "token_id"], "train"))
    held = pl.col("program_id").is_in(programs) | pl.col("token_id").is_in(pl.concat(tokens).unique().implode())
    found = HeldOut(programs={*train.filter(held)["program_id"]})
    sides = pl.Series([text for side in tables.reference_sides.values() for text in side[:2]], dtype=pl.String)
    ours = pl.concat([train["program_id"], train["token_id"], sides]).unique().implode()
    for rows in of_kind(members, "discovery").values():
        for ids in (("anchor_program", "candidate_program"), ("anchor_token", "candidate_token")):
            # Of a large archive's pairs hardly one is of two programs of training: the others are not kept.
            pairs = rows.filter(pl.all_horizontal(pl.col(ids).is_in(ours)))
            found.pairs.update(_both(*pair) for pair in pairs.select(ids).iter_rows())
    return found


def _row(
    split: Split, kind: str, anchor: Side, anchor_speedup: float, candidate: Kernel, search_id: str
) -> dict[str, Any]:
    return split_row(
        split,
        anchor,
        candidate.side,
        candidate.speedup / anchor_speedup,
        row_id=pair_id("train", anchor.program_id, candidate.kernel_id),
        pair_type=kind,
        **{**candidate.place, "search_id": search_id},
    )


def _sampled(
    split: Split,
    kernels: Sequence[Kernel],
    rule: TrainDefinition,
    held: HeldOut,
    taken: set[tuple[str, str]],
    facts: dict[str, Any],
    dropped: Counter[str],
) -> list[dict[str, Any]]:
    """The pairs of the third kind, task by task; those that were drawn and have no ratio are counted."""
    no_ratio: set[tuple[str, str]] = set()
    by_task: defaultdict[str, defaultdict[tuple[str, str], list[Kernel]]] = defaultdict(lambda: defaultdict(list))
    for kernel in kernels:
        by_task[kernel.problem][kernel.reference_id, kernel.gpu].append(kernel)
    pairs: list[dict[str, Any]] = []
    for task in sorted(by_task):
        groups = [sorted(by_task[task][key], key=lambda k: (k.speedup, k.kernel_id)) for key in sorted(by_task[task])]
        members = [kernel for group in groups for kernel in group]
        with np.errstate(over="ignore"):
            # Infinity is a right upper end of a stratum.
            space = PairSpace([np.array([k.speedup for k in group], np.float64) for group in groups], rule.strata)

        def allowed(i: int, j: int, members: list[Kernel] = members) -> bool:
            a, b = members[i], members[j]
            both = _both(a.kernel_id, b.kernel_id)
            if None in (speedup_ratio(a.speedup, b.speedup), speedup_ratio(b.speedup, a.speedup)):
                no_ratio.add(both)
                return False
            return both not in taken and not held.holds_pair(a.side, b.side)

        wanted = quotas(space.counts, rule.pairs_per_task)
        drawn: list[list[tuple[int, int]]] = [[] for _ in wanted]
        # A stratum can hold fewer pairs than it seems to, since edges are taken already: then the others give more.
        marks = np.array([program_mark(rule.seed, k.kernel_id) for k in members], np.uint64)
        for _ in range(len(wanted)):
            for k, n in enumerate(wanted):
                if n > len(drawn[k]):
                    drawn[k] = least_pairs(space, k, n, marks, allowed)
            short = [len(got) < n for got, n in zip(drawn, wanted, strict=True)]
            if not any(short):
                break
            room = [len(got) if lacks else n for got, n, lacks in zip(drawn, space.counts, short, strict=True)]
            wanted = quotas(room, rule.pairs_per_task)
        facts[task] = {"available": space.counts, "drawn": [len(got) for got in drawn]}
        for anchor, candidate in (pair for got in drawn for pair in got):
            a, c = members[anchor], members[candidate]
            pairs.append(_row(split, "pair", a.side, a.speedup, c, c.search_id))
    if no_ratio:
        dropped["ratio_out_of_range"] += len(no_ratio)
    return pairs


def select_train(split: Split, tables: ArchiveTables, rule: TrainDefinition, *, held_out: HeldOut) -> Selection:
    """Select the training pairs (docs/splits.md).

    ``row_id`` is made from anchor program and candidate kernel; rows are sorted by kind, problem, search and candidate.
    The same pairs come out for any order of the input, on any machine.

    Raises:
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("TrainDefinition", load_definition(split.name))
    dropped: Counter[str] = Counter()
    no_edges: Counter[str] = Counter()
    strata: dict[str, Any] = {}
    found = []
    for rows, *counts in tables.results(partial(_pairs_of, split=split, rule=rule, held=held_out)):
        found.append(rows)
        for total, more in zip((dropped, no_edges, strata), counts, strict=True):
            total.update(more)
    rows = together(found, "rank", "problem")
    per_task: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (task, kind), n in sorted(counted(rows, "problem", "pair_type").items()):
        per_task[task][kind] = n
    facts: dict[str, Any] = {
        "kinds": {kind: n for (kind,), n in sorted(counted(rows, "pair_type").items())},
        "kinds_per_task": dict(per_task),
        "excluded": dict(sorted(dropped.items())),
        "no_edges": dict(sorted(no_edges.items())),
        "strata": dict(sorted(strata.items())),
    }
    return select(
        split,
        rows,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(split, rule, standard),
        parameters=msgspec.to_builtins(rule),
        counts=facts,
    )


def _pairs_of(
    tables: ArchiveTables, *, split: Split, rule: TrainDefinition, held: HeldOut
) -> tuple[pa.Table, Counter[str], Counter[str], dict[str, Any]]:
    """The pairs of a part of the archive in their order, why others are none, why evaluations gave no edge, and the strata."""
    dropped: Counter[str] = Counter()
    strata: dict[str, Any] = {}
    training = {name for name, role in tables.roles.items() if role == rule.role}
    eligible: dict[str, Kernel] = {}
    flags = set(rule.exclude_flags)
    for kernel in kernels_by_id(tables.train).values():
        if kernel.search_id not in training:
            dropped["other_role"] += 1
        elif kernel.program_id in held.programs:
            dropped["held_out"] += 1
        elif not kernel.reference_id:
            dropped["unknown_reference"] += 1
        elif flags.intersection(kernel.flags):
            dropped["flagged"] += 1
        else:
            eligible[kernel.kernel_id] = kernel
    ordered = [eligible[name] for name in sorted(eligible)]
    made: dict[str, list[dict[str, Any]]] = {"seed": []}
    for kernel in ordered:
        anchor = tables.reference_sides.get((kernel.reference_id, kernel.problem))
        if anchor is None:
            dropped["reference_without_code"] += 1
        elif kernel.program_id == anchor.program_id:
            dropped["reference_itself"] += 1
        elif held.holds_pair(anchor, kernel.side):
            dropped["discovery_pair"] += 1
        else:
            made["seed"].append(_row(split, "seed", anchor, 1.0, kernel, kernel.search_id))

    def keep(parent: Kernel, child: Kernel) -> str | None:
        return "discovery_pair" if held.holds_pair(parent.side, child.side) else None

    edges, no_edges = find_edges(tables.evaluations, training, eligible, keep=keep)
    made["parent_edit"] = [
        _row(split, "parent_edit", e.parent.side, e.parent.speedup, e.child, e.search_id) for e in edges
    ]
    taken = {_both(e.parent.kernel_id, e.child.kernel_id) for e in edges}
    # A pair with the reference is a seed pair, or one the wrong way round.
    programs = [kernel for kernel in ordered if kernel.program_id != kernel.reference_id]
    made["pair"] = _sampled(split, programs, rule, held, taken, strata, dropped)
    chosen: dict[str, dict[str, Any]] = {}
    for kind in rule.priority:
        for row in made[kind]:
            if row["row_id"] in chosen:
                dropped[f"{kind}_stands_as_{chosen[row['row_id']]['pair_type']}"] += 1
            else:
                chosen[row["row_id"]] = row
    rank: dict[str, int] = {kind: i for i, kind in enumerate(rule.priority)}
    ranked = ({**row, "rank": rank[row["pair_type"]]} for row in chosen.values())
    rows = sorted(ranked, key=itemgetter("rank", "problem", "search_id", "candidate_kernel_id", "row_id"))
    return row_table(split, rows, rank=pa.int8()), dropped, no_edges, strata
