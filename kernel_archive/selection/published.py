"""Splits that others published: kept with their ids and labels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from kernel_archive.bins import N_BINS, Scheme, assign_bins, scheme
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import kernel_id
from kernel_archive.problems import family_of, normalise_problem
from kernel_archive.program_text import language_of
from kernel_archive.readers.records import PublishedRow
from kernel_archive.selection.discovery import cutoff_counts
from kernel_archive.selection.selected import (
    Selection,
    count_values,
    label_facts,
    label_rows,
    with_ids,
)
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import SplitSpec

#: The rule that the published labels follow.
PUBLISHED_SCHEME: Final[Scheme] = "released"
#: Columns that name a kernel of the archive.
_KERNEL: Final = dict.fromkeys(("problem", "gpu", "program_id", "kernel_id"), pl.String)
#: Name this many rows whose label disagrees with the rule; all are counted.
_NAMED: Final = 20


def read_published(staged: Sequence[Path], archive: Archive) -> list[Selection]:
    """Read the published rows of staged files; return a split for each table that has some."""
    rows: list[PublishedRow] = []
    for path in staged:
        table = pq.read_table(path)
        names = [name for name in PublishedRow.__struct_fields__ if name in table.column_names]
        of_file = msgspec.convert(table.select(names).to_pylist(), list[PublishedRow])
        rows += sorted(of_file, key=lambda row: row.order)
    listed = [split for name, split in SPLIT_TABLES.items() if any(r.split == name for r in rows)]
    if not listed:
        return []
    kernels = archive.polars("kernels", columns=list(_KERNEL))
    return [published_split(split, rows, kernels=kernels) for split in listed]


def _faults(rows: Sequence[PublishedRow]) -> Iterator[Finding]:
    ids = Counter(row.row_id for row in rows)
    for row in rows:
        wrong = {
            ("duplicate-row", "a row id stands twice", "row_id"): ids[row.row_id] > 1,
            ("bad-speedup", "a speedup must be finite and above 0", "speedup"): not (
                np.isfinite(row.speedup) and row.speedup > 0
            ),
            ("bad-label", "a label is 1 to 8", "label"): not 1 <= row.label <= N_BINS,
        }
        place: dict[str, Any] = {"file": row.source_file, "line": row.source_line}
        for (code, message, field), is_wrong in wrong.items():
            if is_wrong:
                value = printable(repr(getattr(row, field)))
                yield Finding(code=code, message=message, field=field, value=value, **place)


def _kernel_ids(rows: pl.DataFrame, side: str, kernels: pl.DataFrame) -> pl.Series:
    """Name the kernels of one side: as the archive does, or as it would."""
    keys = ["problem", "gpu", "program_id"]
    single = kernels.unique(keys, keep="none")
    asked = rows.select("problem", "gpu", "against", program_id=f"{side}_program")
    both = asked.join(single, on=keys, how="left", maintain_order="left")
    ids = [
        name or kernel_id(problem=problem, reference_program_id=against, gpu=gpu, program=program)
        for problem, gpu, against, program, name in both.iter_rows()
    ]
    return pl.Series(ids, dtype=pl.String)


def published_split(
    split: SplitSpec, rows: Sequence[PublishedRow], *, kernels: pl.DataFrame | None = None
) -> Selection:
    """Make a split of published rows (those of other splits are left aside).

    Ids, texts and labels stay as they were published (scheme ``released``). The facts say how
    many labels change under the paper's table, and which are not those of the released rule.

    Raises:
        DataError: a row id stands twice, a speedup is not finite and above 0, or a label is not
            1 to 8.
    """
    chosen = [row for row in rows if row.split == split.table]
    if faults := list(_faults(chosen)):
        raise DataError(f"{len(faults)} faults in the published {split.table}", findings=faults)
    problems = [normalise_problem(row.problem) for row in chosen]
    languages = [language_of(row.candidate_code) for row in chosen]
    columns: dict[str, list[Any]] = {
        "row_id": [row.row_id for row in chosen],
        "problem": problems,
        split.task: problems,
        "family": [family_of(problem) for problem in problems],
        "gpu": [canonical_gpu(row.gpu) for row in chosen],
        "search_id": [row.source_search or "" for row in chosen],
        "pair_type": [row.pair_type or "pair" for row in chosen],
        "language": languages,
        "child_language": languages,
        "parent_language": [language_of(row.anchor_code) for row in chosen],
        split.anchor: [row.anchor_code for row in chosen],
        split.candidate: [row.candidate_code for row in chosen],
    }
    table = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    values = pl.Series(split.value, [row.speedup for row in chosen], pl.Float64)
    table = with_ids(split, table.with_columns(values), {})
    known = pl.DataFrame(schema=_KERNEL) if kernels is None else kernels.select(list(_KERNEL))
    # The candidate was timed against the anchor where the anchor is a reference.
    timed = pl.lit(value=True) if split.kind == "eval" else pl.col("pair_type") == "seed"
    against = pl.when(timed).then("anchor_program").otherwise(pl.lit(""))
    candidates = _kernel_ids(table.with_columns(against=against), "candidate", known)
    anchors = _kernel_ids(table.with_columns(against=pl.lit("")), "anchor", known)
    table = table.with_columns(
        candidates.alias(split.kernel),
        anchors.alias("parent_kernel_id"),
        anchor_program_id="anchor_program",
    )
    bins = np.array([row.label for row in chosen], np.int8)
    labelled, facts = label_rows(split, table, PUBLISHED_SCHEME, bins)
    gpus = table["gpu"].unique().to_list()
    files = sorted({row.source_file for row in chosen})
    return Selection(
        split=split,
        rows=labelled,
        origin="published",
        scheme=PUBLISHED_SCHEME,
        parameters={"files": files, "gpu": gpus[0] if len(gpus) == 1 else None},
        counts=facts | _facts(split, labelled),
    )


def _facts(split: SplitSpec, rows: pl.DataFrame) -> dict[str, Any]:
    """State how far the published labels are from those of the rules."""
    values, bins = rows[split.value].to_numpy(), rows["bin"].to_numpy()
    rule = assign_bins(values, PUBLISHED_SCHEME)
    table = rows.select("row_id", speedup=split.value, label="bin").with_columns(
        rule=pl.Series(rule)
    )
    wrong = table.filter(pl.col("rule") != pl.col("label"))
    facts: dict[str, Any] = {
        "changes_under_paper": int(np.count_nonzero(assign_bins(values, "paper") != bins)),
        "disagree_with_rule": {"rows": len(wrong), "first": wrong.head(_NAMED).to_dicts()},
    }
    if split.cutoffs:
        facts["cutoffs"] = cutoff_counts(values.tolist(), rows["family"], split.cutoffs)
    if split.kind == "train":
        facts["kinds"] = count_values(rows["pair_type"])
    return facts


def check_published(split: SplitSpec, table: pl.DataFrame, facts: SplitFacts) -> Iterator[Finding]:
    """Check the labels and facts of a stored published split."""
    values, bins = table[split.value].to_numpy(), table["bin"].to_numpy()
    rule = scheme(facts.scheme).name
    wrong = np.count_nonzero(assign_bins(values, rule) != bins)
    stated = facts.facts["disagree_with_rule"]["rows"]
    if wrong != stated:
        message = (
            f"{wrong} labels of the published split are not those of the scheme "
            f"{facts.scheme}, the facts say {stated}"
        )
        yield Finding(code="wrong-label", message=message, field=split.table)
    if not label_facts(values, bins, rule).items() <= facts.facts.items():
        message = "facts differ from those of the rows"
        yield Finding(code="split-facts", message=message, field=split.table)
