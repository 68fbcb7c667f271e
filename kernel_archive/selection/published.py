"""Splits that others published: kept with their ids, order and labels; counted, never selected again."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from kernel_archive.bins import N_BINS, Scheme, assign_bins, scheme
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import kernel_id, program_id, token_id
from kernel_archive.problems import family_of, normalise_problem
from kernel_archive.program_text import language_of
from kernel_archive.readers.records import PublishedRow
from kernel_archive.selection.discovery import cutoff_counts
from kernel_archive.selection.selected import (
    CANONICAL,
    Selection,
    Side,
    counted,
    frame,
    label_facts,
    row_table,
    select,
    split_row,
    with_ids,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.splits import Split

#: The rule that the published labels follow.
PUBLISHED_SCHEME: Final[Scheme] = "released"
#: Facts that stay as they are when rows get other labels.
_OF_THE_ORIGINAL: Final = ("changes_under_paper", "disagree_with_rule", "cutoffs", "kinds")
#: So many rows whose label disagrees with the rule are named.
_NAMED: Final = 20


def published_rows(table: pa.Table) -> list[PublishedRow]:
    """Records of a table with their fields as columns; other columns are left aside."""
    names = [name for name in PublishedRow.__struct_fields__ if name in table.column_names]
    return [msgspec.convert(row, PublishedRow) for row in table.select(names).to_pylist()]


def _faults(rows: Sequence[PublishedRow]) -> Iterator[Finding]:
    counted = Counter(row.row_id for row in rows)
    for row in rows:
        wrong = []
        if counted[row.row_id] > 1:
            wrong.append(("duplicate-row", "a row id stands twice", "row_id", printable(row.row_id)))
        if not (np.isfinite(row.speedup) and row.speedup > 0):
            wrong.append(("bad-speedup", "a speedup must be finite and above 0", "speedup", repr(row.speedup)))
        if not 1 <= row.label <= N_BINS:
            wrong.append(("bad-label", "a label is 1 to 8", "label", repr(row.label)))
        for code, message, field, value in wrong:
            file, line = row.source_file, row.source_line
            yield Finding(code=code, message=message, file=file, line=line, field=field, value=value)


def _known_kernels(kernels: pa.Table | None) -> dict[tuple[str, str, str], str]:
    """(problem, GPU, program) -> kernel id, where the archive has exactly one such kernel."""
    if kernels is None:
        return {}
    keys = ["problem", "gpu", "program_id"]
    rows = frame(kernels).unique(keys, keep="none").select(*keys, "kernel_id").iter_rows()
    return {(problem, gpu, program): name for problem, gpu, program, name in rows}


def published_split(split: Split, rows: Sequence[PublishedRow], *, kernels: pa.Table | None = None) -> Selection:
    """The published rows of one split as a table of this package.

    Ids, order, texts and labels stay as they were published (scheme ``released``). The facts say how many labels change
    under the paper's table, and which rows' published label is not that of the released rule.

    Rows of other splits are left aside. Where the archive has measured a program, its kernel id names it.

    Raises:
        DataError: a row id stands twice, a speedup is not finite and above 0, or a label is not 1 to 8.
    """
    chosen = [row for row in rows if row.split == split.table]
    faults = list(_faults(chosen))
    if faults:
        raise DataError(f"{len(faults)} faults in the published {split.table}", findings=faults)
    known = _known_kernels(kernels)
    token = cache(token_id)

    def side(row: PublishedRow, code: str, reference: str) -> Side:
        program, problem, gpu = program_id(code), normalise_problem(row.problem), canonical_gpu(row.gpu)
        named = known.get((problem, gpu, program))
        made = named or kernel_id(problem=problem, reference_program_id=reference, gpu=gpu, program=program)
        return Side(program, token(code), made)

    made: list[dict[str, Any]] = []
    for row in chosen:
        anchor = side(row, row.anchor_code, "")
        # The candidate was timed against the anchor where the anchor is a reference.
        against = anchor.program_id if split.kind == "eval" or row.pair_type == "seed" else ""
        language = language_of(row.candidate_code)
        made.append(
            split_row(
                split,
                anchor,
                side(row, row.candidate_code, against),
                row.speedup,
                row_id=row.row_id,
                problem=normalise_problem(row.problem),
                family=family_of(normalise_problem(row.problem)),
                gpu=canonical_gpu(row.gpu),
                search_id=row.source_search or "",
                pair_type=row.pair_type or "pair",
                language=language,
                parent_language=language_of(row.anchor_code),
                child_language=language,
            )
        )
    table = row_table(split, made)
    table = table.append_column(split.anchor, pa.array([row.anchor_code for row in chosen], pa.large_string()))
    table = table.append_column(split.candidate, pa.array([row.candidate_code for row in chosen], pa.large_string()))
    gpus = {row["gpu"] for row in made}
    return select(
        split,
        table,
        labels=np.array([row.label for row in chosen], np.int8),
        scheme=PUBLISHED_SCHEME,
        variant=CANONICAL,
        origin="published",
        parameters={
            "files": sorted({row.source_file for row in chosen}),
            "gpu": next(iter(gpus)) if len(gpus) == 1 else None,
        },
        counts=_facts(split, chosen, table),
    )


def _facts(split: Split, published: Sequence[PublishedRow], rows: pa.Table) -> dict[str, Any]:
    values = rows[split.value].to_numpy()
    bins = np.array([row.label for row in published], np.int8)
    rule = assign_bins(values, PUBLISHED_SCHEME)
    wrong = np.flatnonzero(rule != bins)
    facts: dict[str, Any] = {
        "changes_under_paper": int(np.count_nonzero(assign_bins(values, "paper") != bins)),
        "disagree_with_rule": {
            "rows": len(wrong),
            "first": [
                {"row_id": row.row_id, "speedup": row.speedup, "label": row.label, "rule": int(rule[i])}
                for i, row in ((i, published[i]) for i in wrong[:_NAMED].tolist())
            ],
        },
    }
    if split.cutoffs:
        facts["cutoffs"] = cutoff_counts(values.tolist(), rows["family"].to_pylist(), split.cutoffs)
    if split.kind == "train":
        facts["kinds"] = {kind: n for (kind,), n in sorted(counted(rows, "pair_type").items())}
    return facts


def published_labels(split: Split, table: pa.Table, facts: SplitFacts) -> Iterator[Finding]:
    """What is to be said of the labels and facts of a stored published split."""
    values, bins = table[split.value].to_numpy(), table["bin"].to_numpy()
    rule = scheme(facts.scheme).name
    wrong = np.count_nonzero(assign_bins(values, rule) != bins)
    stated = facts.facts["disagree_with_rule"]["rows"] if facts.name == CANONICAL else 0
    if wrong != stated:
        message = (
            f"{wrong} labels of the published split are not those of the scheme {facts.scheme}, the facts say {stated}"
        )
        yield Finding(code="wrong-label", message=message, field=split.table)
    if any(facts.facts.get(name) != number for name, number in label_facts(values, bins, rule).items()):
        yield Finding(code="split-facts", message="facts differ from those of the rows", field=split.table)


def relabelled(split: Split, table: pa.Table, rule: Scheme, facts: SplitFacts) -> Selection:
    """A published split with its labels made anew under a scheme: the same rows in the same order, and a variant."""
    bins = assign_bins(table[split.value].to_numpy(), rule, row_ids=table["row_id"].to_pylist())
    as_published = rule == PUBLISHED_SCHEME and facts.facts["disagree_with_rule"]["rows"] == 0
    return select(
        split,
        with_ids(split, table.drop_columns(["canary", "bin", "bin_scheme"])),
        labels=bins,
        scheme=rule,
        variant=CANONICAL if as_published else f"published-{rule}",
        origin="published",
        parameters=facts.parameters,
        counts={name: facts.facts[name] for name in _OF_THE_ORIGINAL if name in facts.facts},
    )
