"""An evaluation split.

At most ``cap`` kernels per task and bin, of one GPU, from held-out searches.

Of a cell with more kernels than the cap, those with the smallest hashes are taken, one of
near copies. What is near to a training program is left out: the evaluation gives way
to training, not the other way round.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import polars as pl

from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.selection.definitions import (
    LEAST_BINS,
    EvalDefinition,
    KernelDefinition,
    OwnEvalDefinition,
    canonical_definition,
    recorded_definition,
    variant_name,
)
from kernel_archive.selection.discovery import has_flag
from kernel_archive.selection.selected import Selection, cell_counts, count_values, label_rows
from kernel_archive.selection.similarity import TokenSet, overlap, token_sets
from kernel_archive.selection.tables import ArchiveTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import SplitSpec

#: Why a kernel is not asked about, and what to change.
WAYS_OUT: Final = {
    "not_held_out": (
        "its search is not held out",
        'role = "held_out" in its [[source]], or [eval] roles = { held_out = ["PROBLEM"] }',
    ),
    "other_problem": (
        "[eval] tasks does not name its problem",
        "add the problem to tasks, or leave tasks out",
    ),
    "other_builder": ("the split asks about other builders", "an [eval] of your own in the recipe"),
    "other_language": (
        "[eval] languages does not name its language",
        "add the language, or leave languages out",
    ),
    "unknown_reference": (
        "no text of its reference program is known",
        'reference = "references/{problem}.py" in its [[source]], or map reference_code',
    ),
    "reference_itself": (
        "it is the reference itself",
        "nothing: its speedup is that of two runs of one program",
    ),
    "flagged": ("an audit flag keeps it out", "see kernel-archive audit"),
    "measured_too_seldom": (
        "it was measured less often than the split asks for",
        "measure it again",
    ),
    "other_gpu": (
        "it was measured on another GPU than the split's",
        'gpu = "NAME" in [eval], or build-eval --gpu NAME',
    ),
    "few_bins": (
        "its problem has kernels in too few bins",
        "bins = 1 in [eval], or name the problem in tasks",
    ),
    "not_taken": (
        "the cell is full, or it is nearly the same as a row or a training program",
        "cap in [eval], or build-eval --cap; hold the training program out, too",
    ),
}


class AmbiguousGpuError(UsageError):
    """Raised when held-out kernels exist on several GPUs and none is preferred or named."""


def selection_hash(key: str, kernel_id: str) -> str:
    """Return what orders the kernels of a cell.

    >>> selection_hash("eval:", "00")[:8]
    '87ce2183'
    """
    return sha256_hex(f"{key}{kernel_id}".encode())


def choose_gpu(present: Mapping[str, int], preferred: str, asked: str | None = None) -> str | None:
    """Choose the one GPU of a split, of those that qualifying kernels were measured on.

    Returns:
        The one that was asked for; else the preferred one when present, or where none is preferred
        the one with the most kernels; else the only one; ``None`` when there is none at all.

    Raises:
        UsageError: the named GPU has no qualifying kernel.
        AmbiguousGpuError: several GPUs, none preferred or named.

    >>> choose_gpu({"H200": 9}, "A100-80GB"), choose_gpu({"H200": 9, "A100-80GB": 1}, "A100-80GB")
    ('H200', 'A100-80GB')
    """
    names = sorted(present)
    preferred = preferred or max(names, key=lambda name: present[name], default="")
    listed = ", ".join(printable(n) for n in names) or "none"
    if asked is not None:
        wanted = canonical_gpu(asked)
        if wanted not in names:
            raise UsageError(
                "no held-out kernel of these tasks was measured on GPU "
                f"{printable(wanted)}. GPUs with such kernels: {listed}"
            )
        return wanted
    if preferred in names:
        return preferred
    if len(names) > 1:
        raise AmbiguousGpuError(
            f"held-out kernels were measured on several GPUs ({listed}) and none of "
            f"them is {preferred}. "
            "Choose one with --gpu"
        )
    return names[0] if names else None


def gpu_part(
    rule: KernelDefinition, gpu: str | None, standard: KernelDefinition, per_gpu: Mapping[str, int]
) -> str:
    """Say the GPU for the name of a variant; nothing where the choice is the canonical one."""

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


def _every(rule: KernelDefinition) -> bool:
    return isinstance(rule, OwnEvalDefinition) and rule.tasks == "every"


def with_reasons(
    tables: ArchiveTables, rule: KernelDefinition, kernels: pl.DataFrame
) -> pl.DataFrame:
    """Add ``bin``, and ``reason``: why the definition's words don't allow a kernel, or null."""
    own = isinstance(rule, OwnEvalDefinition)
    searches = tables.searches_with(natural=rule.natural, builders=rule.builders)
    held_out = tables.searches_with(rule.role)
    known = tables.references.select(pl.concat_str("reference_id", "problem", separator="\0"))
    reference = pl.concat_str("reference_id", "problem", separator="\0")
    reasons = {
        "other_problem": ~pl.col("problem").is_in(rule.problems) & (not _every(rule)),
        "not_held_out": ~pl.col("search_id").is_in(held_out["search_id"].to_list()),
        "other_builder": ~pl.col("search_id").is_in(searches["search_id"].to_list()),
        "other_language": ~pl.col("language").is_in(rule.languages) & bool(rule.languages),
        "unknown_reference": ~reference.is_in(known["reference_id"].to_list()) & (not own),
        # The shipped definitions keep what they selected before this rule.
        "reference_itself": (pl.col("program_id") == pl.col("reference_id")) & own,
        "flagged": has_flag(rule.exclude_flags),
        "measured_too_seldom": pl.col("n_measurements") < rule.measured,
    }
    first = pl.coalesce(pl.when(when).then(pl.lit(name)) for name, when in reasons.items())
    rows = kernels.with_columns(reason=first)
    # Speedups that are no number are named only where they matter.
    allowed = rows["reason"].is_null()
    ids = rows["kernel_id"].filter(allowed)
    bins = assign_bins(
        rows["speedup"].filter(allowed).to_numpy(), rule.scheme, row_ids=ids.to_list()
    )
    labels = pl.DataFrame({"kernel_id": ids, "bin": bins}, schema_overrides={"bin": pl.Int8})
    return rows.join(labels, on="kernel_id", how="left", maintain_order="left")


def _few_bins(rule: EvalDefinition, kernels: pl.DataFrame) -> dict[str, int]:
    """Count the bins of problems that have kernels in too few of them.

    Where the definition leaves the number open and no problem has as many, none is left out: a
    table with one program per problem can still be asked about.
    """
    if not (isinstance(rule, OwnEvalDefinition) and _every(rule)):
        return {}
    bins = dict(
        kernels.group_by("problem").agg(pl.col("bin").n_unique()).sort("problem").iter_rows()
    )
    few = {problem: n for problem, n in bins.items() if n < (rule.bins or LEAST_BINS)}
    return {} if not rule.bins and len(few) == len(bins) else few


@dataclass(kw_only=True)
class EvalChoice:
    """The choice of the rows of a split, and what it counted on the way.

    Attributes:
        rows: kernel ids of the rows.
        available: candidates per problem and bin.
        dropped: reasons why other candidates were not taken.
    """

    tables: ArchiveTables
    rule: EvalDefinition
    rows: list[str] = field(default_factory=list)
    available: Counter[tuple[str, int]] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add_problem(self, kernels: pl.DataFrame) -> None:
        """Fill the cells of one problem with the candidates of the smallest hashes."""
        key = self.rule.selection_key
        hashes = [selection_hash(key, name) for name in kernels["kernel_id"]]
        kernels = kernels.with_columns(hash=pl.Series(hashes, dtype=pl.String))
        kernels = kernels.sort("hash", "kernel_id")
        sets: dict[str, TokenSet] = {}
        if self.rule.near_copy is not None:
            sets = read_token_sets(self.tables, kernels)
            near = near_training(self.tables, kernels, sets, self.rule.near_copy)
            self.dropped["near_training"] += len(near)
            kernels = kernels.filter(~pl.col("kernel_id").is_in(near))
        self.available.update(kernels.select("problem", "bin").iter_rows())
        cells: dict[int, list[str]] = {}
        for name, number in kernels.select("kernel_id", "bin").iter_rows():
            cell = cells.setdefault(number, [])
            if len(cell) >= self.rule.cap:
                continue
            if sets and self._is_near(sets[name], [sets[other] for other in cell]):
                self.dropped["near_copy_in_cell"] += 1
            else:
                cell.append(name)
        self.rows += chain(*cells.values())

    def _is_near(self, program: TokenSet, others: Sequence[TokenSet]) -> bool:
        limit = cast("float", self.rule.near_copy)
        return any(overlap(program.grams, other.grams) >= limit for other in others)


def read_token_sets(tables: ArchiveTables, kernels: pl.DataFrame) -> dict[str, TokenSet]:
    """Make the token sets of kernels, by kernel id."""
    sets: dict[str, TokenSet] = {}
    for block in kernels.iter_slices(tables.texts.block_rows):
        codes = tables.texts.fetch(block["program_id"].to_list()).to_pylist()
        programs = zip(block["kernel_id"], block["problem"], codes, strict=True)
        sets |= {made.name: made for made in token_sets(programs, tables.grams)}
    return sets


def near_training(
    tables: ArchiveTables, kernels: pl.DataFrame, sets: Mapping[str, TokenSet], limit: float
) -> list[str]:
    """Find kernels that are near copies of a training program, but not its very tokens.

    What has the very tokens should not be there at all: it is kept, so that the check of leaks
    refuses it.
    """
    names = tables.neighbours.near_copies(sets.values(), limit)
    trained = tables.training_ids["token_id"].implode()
    near = pl.col("kernel_id").is_in(list(names)) & ~pl.col("token_id").is_in(trained)
    return kernels.filter(near)["kernel_id"].to_list()


def select_eval(
    split: SplitSpec, tables: ArchiveTables, rule: EvalDefinition, *, gpu: str | None = None
) -> Selection:
    """Select an evaluation split (docs/splits.md).

    Kernels of the definition's problems, languages and one GPU, measured often enough in searches
    of its role and with a known reference program. Each task and bin takes the ``cap`` kernels with
    the smallest :func:`selection_hash`, without near copies of each other. Rows stand in the order
    of a hash of their ids. Nothing depends on the order of the input.

    ``gpu`` is the GPU, where the definition's rule should not choose.

    Raises:
        UsageError: the GPU asked for has no kernel here.
        AmbiguousGpuError: the GPU must be named.
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("EvalDefinition", canonical_definition(split, tables))
    kernels = with_reasons(tables, rule, tables.kernels("test"))
    choice = EvalChoice(tables=tables, rule=rule)
    choice.dropped.update(kernels["reason"].drop_nulls().to_list())
    if rule.near_copy is not None:
        choice.dropped["near_training"] = 0
    allowed = kernels.filter(pl.col("reason").is_null())
    per_gpu = count_values(allowed["gpu"])
    chosen_gpu = choose_gpu(per_gpu, rule.gpu, gpu)
    choice.dropped["other_gpu"] = sum(n for name, n in per_gpu.items() if name != chosen_gpu)
    allowed = allowed.filter(pl.col("gpu") == (chosen_gpu or ""))
    few = _few_bins(rule, allowed)
    asked = allowed.filter(~pl.col("problem").is_in(list(few)))
    if len(asked) < len(allowed):
        choice.dropped["few_bins"] = len(allowed) - len(asked)
    for group in asked.partition_by("problem"):
        choice.add_problem(group)
    rows, counts = label_rows(split, _rows(tables, asked, choice.rows), rule.scheme)
    return Selection(
        split=split,
        rows=rows,
        source=tables.texts,
        scheme=rule.scheme,
        variant=variant_name(
            split, rule, standard, gpu=gpu_part(rule, chosen_gpu, standard, per_gpu)
        ),
        parameters={**msgspec.to_builtins(rule), "preferred_gpu": rule.gpu, "gpu": chosen_gpu},
        counts={
            **counts,
            **_facts(rule, choice, rows, per_gpu),
            **({"few_bins": few} if few else {}),
        },
    )


def _facts(
    rule: EvalDefinition, choice: EvalChoice, rows: pl.DataFrame, per_gpu: dict[str, int]
) -> dict[str, Any]:
    """State the facts of a choice."""
    cells = cell_counts(rows.select("problem", "bin").iter_rows(), rule.problems)
    return {
        "cells": cells,
        "available": cell_counts(choice.available.elements(), rule.problems),
        "short_cells": sum(n < rule.cap for counts in cells.values() for n in counts),
        "excluded": dict(sorted(choice.dropped.items())),
        "gpus": per_gpu,
        "references": rows.select("problem", "anchor_program").n_unique() if len(rows) else 0,
        "near_duplicates": int(rows["candidate_token"].is_duplicated().sum()),
        "languages": cell_counts(rows.select("language", "bin").iter_rows()),
    }


def _rows(tables: ArchiveTables, kernels: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Turn the chosen kernels into rows, each with what its reference states of the problem."""
    ids = pl.DataFrame({"kernel_id": names}, schema={"kernel_id": pl.String})
    stated = tables.references.drop("code", "token_id").unique(
        ["reference_id", "problem"], keep="last"
    )
    rows = ids.join(kernels.drop("bin"), on="kernel_id", how="left", maintain_order="left")
    rows = rows.join(stated, on=["reference_id", "problem"], how="left", maintain_order="left")
    return rows.with_columns(
        row_id="kernel_id",
        task="problem",
        anchor_program="reference_id",
        anchor_token=pl.lit(""),
        candidate_program="program_id",
        candidate_token="token_id",
    )


def left_out(archive: Archive, split: SplitSpec) -> dict[tuple[str, str], list[int]]:
    """Count the kernels that a split does not ask about, in each of the eight bins.

    The key is the problem and the reason (a key of :data:`WAYS_OUT`).
    """
    tables, facts = ArchiveTables(archive), archive.manifest.splits[split.table]
    rule = cast("EvalDefinition", recorded_definition(split, facts.parameters))
    train = tables.kernels("train").with_columns(reason=pl.lit("not_held_out"))
    tested = with_reasons(tables, rule, tables.kernels("test")).drop("bin")
    kernels = pl.concat([train.join(tested, on="kernel_id", how="anti"), tested])
    taken = archive.polars(split.table, columns=["row_id"])["row_id"].to_list()
    reason = (
        pl.when(pl.col("reason").is_null() & (pl.col("gpu") != (facts.parameters.get("gpu") or "")))
        .then(pl.lit("other_gpu"))
        .when(
            pl.col("reason").is_null()
            & pl.col("problem").is_in(list(facts.facts.get("few_bins", ())))
        )
        .then(pl.lit("few_bins"))
        .otherwise(pl.col("reason").fill_null("not_taken"))
    )
    rows = kernels.filter(~pl.col("kernel_id").is_in(taken)).with_columns(reason=reason)
    bins = assign_bins(rows["speedup"].to_numpy(), rule.scheme).tolist()
    keys = rows.select("problem", "reason").iter_rows()
    return cell_counts(zip(keys, bins, strict=True))  # type: ignore[return-value]
