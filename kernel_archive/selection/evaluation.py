"""An evaluation split: at most ``cap`` kernels per task and bin, of one GPU, from held-out searches.

Of a cell with more kernels than the cap, those are taken that were measured well, and that spread the rows over languages
and searches; of near copies one is taken. What is near to a training program is left out, so that the evaluation gives way
to training, and not the other way round.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.selection.definitions import (
    LEAST_BINS,
    EvalDefinition,
    OwnEvalDefinition,
    canonical_definition,
    variant_name,
)
from kernel_archive.selection.level import level
from kernel_archive.selection.selected import Selection, Side, cell_counts, row_table, select, split_row
from kernel_archive.selection.similarity import Copies, Program
from kernel_archive.text_quantities import quantities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernel_archive.selection.edges import Kernel
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Split


class AmbiguousGpuError(UsageError):
    """Raised when held-out kernels exist on several GPUs, none is the preferred one, and none was named."""


def selection_hash(key: str, kernel_id: str) -> str:
    """What orders the kernels of a cell: sha256 of the definition's key and the kernel id, as hex.

    >>> selection_hash("eval:", "00")[:8]
    '87ce2183'
    """
    return sha256_hex(f"{key}{kernel_id}".encode())


def choose_gpu(present: Mapping[str, int], preferred: str, asked: str | None = None) -> str | None:
    """The one GPU of a split, of those that qualifying kernels were measured on.

    Returns:
        The one that was asked for; else the preferred one when present, or where none is preferred the one with the most
        kernels; else the only one; ``None`` when there is none at all.

    Raises:
        UsageError: the named GPU has no qualifying kernel.
        AmbiguousGpuError: several GPUs, none preferred or named.

    >>> choose_gpu({"H200": 9}, "A100-80GB"), choose_gpu({"H200": 9, "A100-80GB": 1}, "A100-80GB")
    ('H200', 'A100-80GB')
    """
    names = sorted(present)
    preferred = preferred or max(present, key=lambda name: present[name], default="")
    listed = ", ".join(printable(n) for n in names) or "none"
    if asked is not None:
        wanted = canonical_gpu(asked)
        if wanted not in names:
            raise UsageError(
                f"no held-out kernel of these tasks was measured on GPU {printable(wanted)}; there are: {listed}"
            )
        return wanted
    if preferred in names:
        return preferred
    if len(names) > 1:
        raise AmbiguousGpuError(
            f"held-out kernels were measured on several GPUs ({listed}) and none of them is {preferred}. "
            "Choose one with --gpu"
        )
    return names[0] if names else None


def _gpu_told(rule: EvalDefinition, gpu: str | None, standard: EvalDefinition, per_gpu: Mapping[str, int]) -> str:
    """What the name of a variant says of its GPU; nothing where the choice is the canonical one."""

    def short(name: str) -> str:
        return re.sub(r"[^a-z0-9]+", "", name.lower())

    try:
        canonical = choose_gpu(per_gpu, standard.gpu)
    except AmbiguousGpuError:
        canonical = None
    if gpu != canonical:
        return short(gpu or "none")
    # The same rows here, but other ones as soon as the archive has kernels on the preferred GPU.
    return "" if rule.gpu == standard.gpu else f"prefers{short(rule.gpu)}"


def _every(rule: EvalDefinition) -> bool:
    return isinstance(rule, OwnEvalDefinition) and rule.tasks == "every"


def refusals(tables: ArchiveTables, rule: EvalDefinition, kernels: Iterable[Kernel]) -> dict[str, str | None]:
    """Held-out kernels by id, and why the definition's words don't allow them; ``None`` for one that they allow."""
    references = tables.references.select(["reference_id", "problem"])
    known = set(zip(*(column.to_pylist() for column in references.columns), strict=True))
    flags, problems = set(rule.exclude_flags), set(rule.problems)
    allowed = tables.searches_of(natural=rule.natural, builders=rule.builders)
    every = _every(rule)

    def reason(kernel: Kernel) -> str | None:
        if not every and kernel.problem not in problems:
            return "other_problem"
        if tables.roles.get(kernel.search_id) != rule.role:
            return "not_held_out"
        if kernel.search_id not in allowed:
            return "other_builder"
        if rule.languages and kernel.language not in rule.languages:
            return "other_language"
        if (kernel.reference_id, kernel.problem) not in known and not isinstance(rule, OwnEvalDefinition):
            return "unknown_reference"
        if kernel.program_id == kernel.reference_id and isinstance(rule, OwnEvalDefinition):
            return "reference_itself"  # the shipped definitions are what they were
        return "flagged" if flags.intersection(kernel.flags) else None

    return {kernel.kernel_id: reason(kernel) for kernel in kernels}


def _few_bins(rule: OwnEvalDefinition, held: Mapping[str, set[int]]) -> dict[str, int]:
    """Problems of which too few bins have kernels, with the number of those bins.

    Where the definition leaves the number open and no problem has as many, none is left out: a table with one program per
    problem can still be asked about.
    """
    few = {problem: len(bins) for problem, bins in sorted(held.items()) if len(bins) < (rule.bins or LEAST_BINS)}
    return {} if not rule.bins and len(few) == len(held) else few


def _bins(rule: EvalDefinition, kernels: Sequence[Kernel]) -> list[int]:
    found: list[int] = assign_bins(
        [k.speedup for k in kernels], rule.scheme, row_ids=[k.kernel_id for k in kernels]
    ).tolist()
    return found


def _programs(tables: ArchiveTables, kernels: Sequence[Kernel]) -> list[Program]:
    """The kernels' texts under the names of the kernels."""
    codes = tables.texts.fetch([k.program_id for k in kernels]).to_pylist()
    return [Program(k.kernel_id, k.problem, code) for k, code in zip(kernels, codes, strict=True)]


def _filled(
    rule: EvalDefinition, cells: Mapping[str, Sequence[Kernel]], copies: Copies | None, dropped: Counter[str]
) -> list[Kernel]:
    """The rows of one bin, from its kernels by problem: in turns, every problem takes its next row."""
    taken: dict[str, list[Kernel]] = {problem: [] for problem in sorted(cells)}
    languages: Counter[str] = Counter()
    searches: Counter[tuple[str, str]] = Counter()

    def rank(kernel: Kernel) -> tuple[int, ...]:
        # Of equal ones the first is taken: they stand in the order of their hashes.
        held = {"language": languages[kernel.language], "search": searches[kernel.problem, kernel.search_id]}
        return (kernel.n_measurements < rule.measured, *(held[name] for name in rule.balance))

    def rows(problem: str) -> Iterator[Kernel]:
        """The rows of a cell one by one, each chosen when it is its turn; near copies of those before it are dropped."""
        waiting = sorted(cells[problem], key=lambda k: (selection_hash(rule.selection_key, k.kernel_id), k.kernel_id))
        while waiting and len(taken[problem]) < rule.cap:
            kernel = min(waiting, key=rank)
            waiting.remove(kernel)
            if copies is None or not copies.near(kernel.kernel_id, (k.kernel_id for k in taken[problem])):
                taken[problem].append(kernel)
                languages[kernel.language] += 1
                searches[problem, kernel.search_id] += 1
                yield kernel
            else:
                dropped["near_copy_in_cell"] += 1

    turns = [rows(problem) for problem in taken]
    while turns:
        turns = [cell for cell in turns if next(cell, None) is not None]
    return [kernel for kernels in taken.values() for kernel in kernels]


def select_eval(split: Split, tables: ArchiveTables, rule: EvalDefinition, *, gpu: str | None = None) -> Selection:
    """Select an evaluation split (docs/splits.md).

    Kernels of the definition's problems, languages and one GPU, measured in searches of its role and with a known reference
    program, at most ``cap`` per task and bin. Of a full cell those are taken that the definition prefers (well measured;
    of a language or search with few rows so far), then those with the smallest :func:`selection_hash`; near copies are
    taken once. Rows are sorted by task, bin and that hash, then by kernel id. Nothing depends on the order of the input.

    ``gpu`` is the GPU, where the definition's rule should not choose.

    Raises:
        UsageError: the GPU asked for has no kernel here.
        AmbiguousGpuError: the GPU must be named.
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("EvalDefinition", canonical_definition(split, tables))
    dropped: Counter[str] = Counter()
    eligible: Counter[str] = Counter()
    others: int = pc.count_distinct(tables.read("kernels", ["kernel_id"], "test")["kernel_id"]).as_py()
    of_parts = partial(tables.results, wanted=None if _every(rule) else rule.problems, whole=_SHARED in rule.balance)
    bins_held: dict[tuple[str, str], set[int]] = {}
    for reasons, gpus, bins, rows in of_parts(partial(_counts, rule=rule)):
        dropped += reasons
        eligible += gpus
        bins_held |= bins
        others -= rows
    if others:
        dropped["other_problem"] += others
    if rule.near_copy is not None:
        dropped["near_training"] = 0
    per_gpu = dict(sorted(eligible.items()))
    chosen_gpu = choose_gpu(per_gpu, rule.gpu, gpu)
    dropped["other_gpu"] = sum(n for name, n in per_gpu.items() if name != chosen_gpu)
    few_bins: dict[str, int] = {}
    if isinstance(rule, OwnEvalDefinition) and _every(rule):
        few_bins = _few_bins(rule, {problem: bins for (on, problem), bins in bins_held.items() if on == chosen_gpu})
    available: Counter[tuple[str, int]] = Counter()
    chosen: list[tuple[str, int, Kernel]] = []
    exchanged = 0
    for found in of_parts(partial(_taken, rule=rule, gpu=chosen_gpu, few=few_bins)):
        chosen += found.rows
        exchanged += found.exchanged
        available.update(found.available)
        dropped.update(found.dropped)
        tables.neighbours.learn(found.nears)
    chosen.sort(key=lambda item: (*item[:2], selection_hash(rule.selection_key, item[2].kernel_id), item[2].kernel_id))
    taken = [kernel for *_, kernel in chosen]
    tokens = Counter(k.token_id for k in taken)
    # Tasks without any kernel stand in the cells too: a gap must show.
    held = cell_counts(((problem, bin_) for problem, bin_, _ in chosen), rule.problems)
    facts: dict[str, Any] = (
        {
            "cells": held,
            "available": cell_counts(available, rule.problems),
            "short_cells": sum(n < rule.cap for counts in held.values() for n in counts),
            "excluded": dict(sorted(dropped.items())),
            "gpus": per_gpu,
            "references": len({(k.problem, k.reference_id) for k in taken}),
            "near_duplicates": sum(n for n in tokens.values() if n > 1),
            "languages": cell_counts((k.language, bin_) for _, bin_, k in chosen),
            "measured": sum(k.n_measurements >= rule.measured for k in taken),
            "largest_search": max(
                Counter((problem, bin_, k.search_id) for problem, bin_, k in chosen).values(), default=0
            ),
        }
        | ({"few_bins": few_bins} if few_bins else {})
        | ({"exchanged": exchanged} if rule.level is not None else {})
    )
    return select(
        split,
        row_table(split, _rows(split, tables, taken)),
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(split, rule, standard, gpu=_gpu_told(rule, chosen_gpu, standard, per_gpu)),
        parameters={**msgspec.to_builtins(rule), "preferred_gpu": rule.gpu, "gpu": chosen_gpu},
        counts=facts,
    )


#: Where rows are spread over languages, a problem's depend on what the others have of a language in the bin.
_SHARED: Final = "language"


def _counts(
    tables: ArchiveTables, *, rule: EvalDefinition
) -> tuple[Counter[str], Counter[str], dict[tuple[str, str], set[int]], int]:
    """Why kernels of a part are not asked about, GPUs of the others, their bins by GPU and problem, and how many kernels it has."""
    reasons = refusals(tables, rule, tables.tested)
    others = [kernel for kernel in tables.tested if reasons[kernel.kernel_id] is None]
    held: dict[tuple[str, str], set[int]] = {}
    for kernel, bin_ in zip(others, _bins(rule, others), strict=True) if _every(rule) else ():
        held.setdefault((kernel.gpu, kernel.problem), set()).add(bin_)
    return Counter(filter(None, reasons.values())), Counter(k.gpu for k in others), held, len(tables.tested)


@dataclass
class _Taken:
    """Rows of a part with problem and bin; how many levelling exchanged; what there was, what was left out; training programs."""

    rows: list[tuple[str, int, Kernel]] = field(default_factory=list)
    exchanged: int = 0
    available: Counter[tuple[str, int]] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    nears: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)


def _taken(tables: ArchiveTables, *, rule: EvalDefinition, gpu: str | None, few: Mapping[str, int]) -> _Taken:
    """The rows of a part, problem by problem where one does not depend on another."""
    found = _Taken()
    groups: dict[str, list[Kernel]] = {}
    reasons = refusals(tables, rule, tables.tested)
    for kernel in tables.tested:
        if reasons[kernel.kernel_id] is not None or kernel.gpu != gpu:
            continue
        if kernel.problem in few:
            found.dropped["few_bins"] += 1
        else:
            groups.setdefault("" if _SHARED in rule.balance else kernel.problem, []).append(kernel)
    for kernels in groups.values():
        _take(tables, rule, kernels, found)
    found.nears = tables.neighbours.known((k.problem, k.program_id) for *_, k in found.rows)
    return found


def _take(tables: ArchiveTables, rule: EvalDefinition, candidates: Sequence[Kernel], found: _Taken) -> None:
    """Add the rows of some candidates; what there is and what is left out is counted."""
    copies = None
    if rule.near_copy is not None:
        programs = _programs(tables, candidates)
        nears = tables.neighbours.of(programs)
        near = {name for name, nearest in nears.items() if nearest.similarity >= rule.near_copy}
        # What has the very tokens of a training program should not be there at all: it is kept, so that the check of leaks
        # refuses it, and not passed over in silence.
        tokens = pa.array([k.token_id for k in candidates if k.kernel_id in near], pa.string())
        train = tables.of(None).read("kernels", ["token_id"], "train")["token_id"]
        trained = set(tokens.filter(pc.is_in(tokens, train)).to_pylist())
        near -= {k.kernel_id for k in candidates if k.token_id in trained}
        found.dropped["near_training"] += sum(k.kernel_id in near for k in candidates)
        candidates = [k for k in candidates if k.kernel_id not in near]
        copies = Copies([p for p in programs if p.name not in near], rule.near_copy)
    cells: dict[int, dict[str, list[Kernel]]] = {}
    listed = list(zip(candidates, _bins(rule, candidates), strict=True))
    for kernel, bin_ in listed:
        cells.setdefault(bin_, {}).setdefault(kernel.problem, []).append(kernel)
        found.available[kernel.problem, bin_] += 1
    chosen = [(k.problem, bin_, k) for bin_ in sorted(cells) for k in _filled(rule, cells[bin_], copies, found.dropped)]
    levelled = chosen if rule.level is None else _levelled(tables, rule, rule.level, chosen, listed, copies)
    found.exchanged += len({k.kernel_id for *_, k in chosen} - {k.kernel_id for *_, k in levelled})
    found.rows += levelled


def _levelled(
    tables: ArchiveTables,
    rule: EvalDefinition,
    limit: float,
    chosen: Sequence[tuple[str, int, Kernel]],
    candidates: Sequence[tuple[Kernel, int]],
    copies: Copies | None,
) -> list[tuple[str, int, Kernel]]:
    """The rows after levelling, task by task.

    Nothing comes in that is measured less often than the definition prefers.
    """
    before = {kernel.kernel_id for *_, kernel in chosen}
    by_problem: dict[str, list[tuple[Kernel, int]]] = {}
    for kernel, bin_ in sorted(candidates, key=lambda item: item[0].kernel_id):
        if kernel.kernel_id in before or kernel.n_measurements >= rule.measured:
            by_problem.setdefault(kernel.problem, []).append((kernel, bin_))
    out: list[tuple[str, int, Kernel]] = []
    for problem, members in sorted(by_problem.items()):
        if all(kernel.kernel_id in before for kernel, _ in members):
            out += [(problem, bin_, kernel) for kernel, bin_ in members]
            continue
        names = [kernel.kernel_id for kernel, _ in members]
        codes = tables.texts.fetch([kernel.program_id for kernel, _ in members]).to_pylist()
        texts = [list(quantities(code).values()) for code in codes]

        def fits(comes: int, beside: Sequence[int], names: list[str] = names) -> bool:
            return copies is None or not copies.near(names[comes], (names[i] for i in beside))

        taken = level(
            np.array(texts, dtype=np.float64),
            np.array([kernel.speedup for kernel, _ in members]),
            np.array([bin_ for _, bin_ in members]),
            np.array([kernel.kernel_id in before for kernel, _ in members]),
            limit=limit,
            fits=fits,
        )
        out += [(problem, bin_, kernel) for (kernel, bin_), t in zip(members, taken.tolist(), strict=True) if t]
    return out


def _rows(split: Split, tables: ArchiveTables, taken: Iterable[Kernel]) -> list[dict[str, Any]]:
    """The kernels as rows, each with what its reference states of the problem."""
    shown = ("benchmark_cases", "rtol", "atol")
    stated = {
        (row["problem"], row["reference_id"]): {name: row[name] for name in shown}
        for row in tables.references.drop_columns("code").to_pylist()
    }
    return [
        split_row(
            split,
            Side(k.reference_id, "", None),
            k.side,
            k.speedup,
            row_id=k.kernel_id,
            **k.place,
            **stated.get((k.problem, k.reference_id), {}),
            **{name: getattr(k, name) for name in ("language", "n_measurements", "speedup_min", "speedup_max")},
        )
        for k in taken
    ]
