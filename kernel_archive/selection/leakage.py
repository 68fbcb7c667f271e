"""Proof that training holds nothing of the evaluation.

Refused:

- a held-out search, or the content of one under another name, in ``kernels/train`` or training
  pairs;
- a program of an evaluation split or a near duplicate of it (the same tokens) in
  ``kernels/train`` or training pairs;
- where the split's definition says what a near copy is, also one of those (a share of their
  5-grams of tokens);
- a training search, a kernel of ``kernels/train`` or a training pair of a problem that is wholly
  held out;
- a search or a program pair of the discovery pairs, in either direction, in training pairs.

The anchor of a seed pair is the reference program, which every row of an evaluation shows: it is no
leak. Whether it is the reference is looked up in ``references``, not believed of the row's label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import polars as pl

from kernel_archive.databases import memory_database
from kernel_archive.errors import Finding, LeakageError, counted, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import (
    LEAK_IDS,
    Selection,
    ids_of_kinds,
    leak_ids,
    name_rows,
    pair_keys,
    with_ids,
)
from kernel_archive.selection.similarity import Grams, near_copies
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import REFERENCE_SPLITS, SPLIT_TABLES
from kernel_archive.toml_files import toml_beside

_STATED: Final = toml_beside(__file__)
#: Kind of leak -> its message and query.
_CHECKS: Final = {check["code"]: check for check in _STATED["check"]}
_FIX: Final = (
    "Give its source the role held_out or archive, or keep the row out with an [[exclude]] entry, "
    "and build again; of discovery pairs, make the training pairs again: kernel-archive build-train"
)


def _leaks(
    tables: ArchiveTables, members: Mapping[str, pl.DataFrame], selections: Mapping[str, Selection]
) -> Iterator[tuple[str, str, str]]:
    """Look for every kind of leak; yield the kind, the place in training and what is there."""
    pairs, edges = ids_of_kinds(members, "train"), ids_of_kinds(members, "close", "discovery")
    successes = tables.successes(["kernel_id", "search_id"])
    frames = {
        "kernels": tables.training,
        "pairs": pairs,
        "asked": ids_of_kinds(members, "eval", "validity"),
        "edges": edges,
        "pair_keys": pair_keys(pairs),
        "edge_keys": pair_keys(edges),
        "searches": tables.searches.select("search_id", "role", "problem", "source_digest"),
        "successes": successes.join(tables.training, on="kernel_id", how="semi"),
        "shown": tables.references.select(
            "problem", program=pl.col("code").map_elements(program_id, pl.String)
        ),
        "held_out_problems": pl.DataFrame({"problem": sorted(HELD_OUT_PROBLEMS)}),
    }
    with memory_database() as connection:
        for name, rows in frames.items():  # without a copy: training may have a million programs
            connection.register(name, rows.to_arrow(compat_level=pl.CompatLevel.newest()))
        for name, query in _STATED["views"].items():
            connection.execute(f"CREATE VIEW {name} AS {query}")
        for kind, check in _CHECKS.items():
            if "query" in check:
                for place, text in connection.sql(f"{check['query']} ORDER BY ALL").fetchall():
                    yield kind, place, text
        tokens = connection.sql("SELECT DISTINCT token FROM trained").pl()["token"]
        foreign = connection.sql(_STATED["foreign"]).pl()
    for place, text in _near_copies(tables, tokens, foreign, selections):
        yield "near-copy-leak", place, text


def _foreign_grams(tables: ArchiveTables, foreign: pl.DataFrame) -> dict[str, dict[str, Grams]]:
    """Make the 5-grams of ``foreign`` programs: in training pairs, and no training kernel's.

    By problem, then by row.
    """
    if foreign.is_empty():
        return {}
    columns = ["row_id", "problem", "anchor_code", "candidate_code"]
    rows = tables.archive.polars("train_pairs", columns=columns)
    texts = rows.unpivot(index=["row_id", "problem"], value_name="code")
    texts = texts.with_columns(program=pl.col("code").map_elements(program_id, pl.String))
    texts = texts.join(foreign, on=["row_id", "program"], how="semi")
    return {
        str(problem): dict(zip(group["row_id"], tables.text_grams(group["code"]), strict=True))
        for (problem,), group in texts.group_by("problem")
    }


def _near_copies(
    tables: ArchiveTables,
    trained: pl.Series,
    foreign: pl.DataFrame,
    selections: Mapping[str, Selection],
) -> Iterator[tuple[str, str]]:
    """Look for rows whose program is a near copy, as the split's definition says.

    ``trained`` are the token ids of all training programs.
    """
    foreign_grams = _foreign_grams(tables, foreign)
    for split in REFERENCE_SPLITS.values():
        chosen = selections.get(split.table)
        facts = chosen.base_facts if chosen else tables.archive.manifest.splits.get(split.table)
        limit = None if facts is None else facts.parameters.get("near_copy")
        # Parameters of another type select nothing, which the check of splits reports.
        if not isinstance(limit, int | float):
            continue
        rows = pl.DataFrame(chosen.table) if chosen else tables.archive.polars(split.table)
        # The same tokens are a leak by every definition, which has a query of its own.
        tokens = pl.Series([*map(token_id, rows[split.candidate])], dtype=pl.String)
        rows = rows.filter(~tokens.is_in(trained.implode()))
        for (problem,), group in rows.group_by(split.problem, maintain_order=True):
            codes = dict(group.select("row_id", split.candidate).iter_rows())
            programs = dict(zip(codes, tables.text_grams(codes.values()), strict=True))
            kernels = tables.training_grams(str(problem))
            pairs = foreign_grams.get(str(problem), {})
            for place, others in (("kernels/train", kernels), ("train_pairs", pairs)):
                for row, (name, similarity) in near_copies(programs, others, limit).items():
                    yield place, f"{row} ({similarity:.2f} of row {name})"


def read_leak_ids(
    tables: ArchiveTables, split_tables: Iterable[str] = tuple(SPLIT_TABLES)
) -> dict[str, pl.DataFrame]:
    """Read the rows of the splits that an archive holds, by table, with the ids of their texts."""
    members = {}
    for name in split_tables:
        if name in tables.archive.manifest.tables:
            split = SPLIT_TABLES[name]
            columns = ["row_id", split.problem, "search_id", split.anchor, split.candidate]
            columns += ["pair_type"] if split.kind == "train" else []
            parts = [
                leak_ids(split, with_ids(split, pl.DataFrame(batch)))
                for batch in tables.archive.batches(name, columns=columns)
            ]
            members[name] = pl.concat([LEAK_IDS.to_frame(), *parts])
    return members


def leakage_findings(
    tables: ArchiveTables,
    members: Mapping[str, pl.DataFrame],
    selections: Mapping[str, Selection] | None = None,
) -> list[Finding]:
    """Find leaks of the evaluation into training: one finding per kind and table.

    ``members`` are the rows of all splits by table, ``selections`` those that are about to take the
    place of the archive's own. What training pairs hold is a warning where others published them,
    since no build can mend it.
    """
    facts = tables.archive.manifest.splits.get("train_pairs")
    published = facts is not None and facts.origin == "published"
    leaked: dict[tuple[str, str], dict[str, None]] = {}
    for code, place, text in _leaks(tables, members, selections or {}):
        leaked.setdefault((code, place), {})[text] = None
    return [
        Finding(
            code=code,
            message=f"{_CHECKS[code]['message']}: {counted(len(texts), 'row')} of {place}, "
            f"{name_rows([*texts])}",
            field=place,
            value=printable(next(iter(texts)), 200),
            fix=_FIX,
            severity="warning" if published and place in SPLIT_TABLES else "error",
        )
        for (code, place), texts in leaked.items()
    ]


def refuse_leaks(
    tables: ArchiveTables, members: Mapping[str, pl.DataFrame], selections: Mapping[str, Selection]
) -> None:
    """Refuse leaks but those that are only a warning, which ``validate`` shows.

    Raises:
        LeakageError: a finding is an error; the error carries all of them.
    """
    findings = leakage_findings(tables, members, selections)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        summary = "; ".join(f.message for f in errors)
        raise LeakageError(f"the splits would leak: {summary}", findings=errors)
