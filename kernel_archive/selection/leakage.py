"""Proof that nothing of the evaluation stands in training.

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

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kernel_archive.errors import Finding, LeakageError, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import MEMBER, members_of, name_rows, with_ids
from kernel_archive.selection.similarity import TokenSet, token_sets
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernel_archive.selection.selected import Selection
    from kernel_archive.selection.tables import ArchiveTables

_FIX: Final = (
    "Give its source the role held_out or archive, or keep the row out with "
    "an [[exclude]] entry, and build again"
)
TRAIN: Final = "kernels/train"


class _Leak(NamedTuple):
    """Leaked rows of one kind in one table of training."""

    code: str
    message: str
    where: str
    rows: Sequence[str]
    fix: str = _FIX


def _of_kind(members: Mapping[str, pl.DataFrame], *kinds: str) -> dict[str, pl.DataFrame]:
    return {name: rows for name, rows in members.items() if SPLIT_TABLES[name].kind in kinds}


def _trained(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Collect every program that a trainer gets: ``row``, ``search``, ``program``, ``token``."""
    kernels = tables.training_ids.select(
        row="kernel_id", search="search_id", program="program_id", token="token_id"
    )
    rows = tables.references.select("problem", "code").iter_rows()
    references = [f"{problem} {program_id(code)}" for problem, code in rows]
    trained = {TRAIN: kernels}
    for table, pairs in _of_kind(members, "train").items():
        anchor = pl.concat_str("problem", "anchor_program", separator=" ")
        shared = pl.col("pair_type").eq_missing(pl.lit("seed")) & anchor.is_in(references)
        both = {
            kind: pl.concat_list(pl.when(~shared).then(f"anchor_{kind}"), f"candidate_{kind}")
            for kind in ("program", "token")
        }
        listed = pairs.select(row="row_id", search="search_id", **both)
        trained[table] = listed.explode("program", "token")
    return trained


def _searches(
    tables: ArchiveTables, where: str, trained: pl.DataFrame, held: set[str]
) -> Iterator[_Leak]:
    """Look for held-out searches, and for their logs under another name."""
    sources = dict(tables.searches.select("search_id", "source_digest").iter_rows())
    digests = {sources[name] for name in held if name in sources} - {None, ""}
    first = trained.unique("search", keep="first").sort("search").drop_nulls("search")
    rows = dict(first.select("search", "row").iter_rows())
    both = [f"{name} ({where} row {row})" for name, row in rows.items() if name in held]
    yield _Leak("held-out-search", f"a held-out search is in {where}", where, both)
    copies = [
        f"{name} ({where} row {row})"
        for name, row in rows.items()
        if name not in held and sources.get(name) in digests
    ]
    message = f"the log of a held-out search is in {where} under another name"
    yield _Leak("held-out-search", message, where, copies)


def _programs(
    where: str, trained: pl.DataFrame, table: str, asked: pl.DataFrame
) -> Iterator[_Leak]:
    """Look for programs of an evaluation split, or near duplicates of them."""
    for code, kind, words, but in (
        ("program-leak", "program", "is", ""),
        ("near-duplicate-leak", "token", "has the tokens of", " but for comments and white space"),
    ):
        column = f"candidate_{kind}"
        first = trained.unique(kind, keep="first", maintain_order=True)
        first = first.select("row", pl.col(kind).alias(column))
        hits = asked.join(first, on=column, maintain_order="left").select("row_id", "row")
        leaked = [f"{row_id} ({words} {where} row {row})" for row_id, row in hits.iter_rows()]
        yield _Leak(code, f"a program of {table}{but} is in {where}", where, leaked)
        asked = asked.join(first, on=column, how="anti", maintain_order="left")


def _measured(tables: ArchiveTables, held: set[str]) -> Iterator[_Leak]:
    """Look for kernels of training that a held-out search measured as well."""
    rows = tables.read("evaluations", ["search_id", "kernel_id", "outcome", "excluded"])
    passed = (pl.col("outcome") == "success") & pl.col("excluded").is_null()
    rows = rows.filter(passed & pl.col("search_id").is_in(held))
    rows = rows.unique("kernel_id", keep="last", maintain_order=True)
    hits = tables.training_ids.select("kernel_id").join(rows, on="kernel_id").sort("kernel_id")
    leaked = [
        f"{name} (measured in {search})"
        for name, search in hits.select("kernel_id", "search_id").iter_rows()
    ]
    message = f"a kernel that a held-out search measured is in {TRAIN}"
    yield _Leak("held-out-search", message, TRAIN, leaked)


def _problems(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[_Leak]:
    """Look for what training holds of problems that are wholly held out."""
    given = {
        TRAIN: tables.training_ids.select("kernel_id", "problem"),
        "searches": tables.searches_with("training").select("search_id", "problem"),
    }
    pairs = _of_kind(members, "train")
    given |= {table: rows.select("row_id", "problem") for table, rows in pairs.items()}
    for table, rows in given.items():
        hits = rows.filter(pl.col("problem").is_in(list(HELD_OUT_PROBLEMS))).iter_rows()
        leaked = [f"{name} (of {problem})" for name, problem in hits]
        message = f"{table} has rows of a problem that nobody may train on"
        yield _Leak("held-out-problem", message, table, leaked)


def _pairs(where: str, trained: pl.DataFrame, table: str, edges: pl.DataFrame) -> Iterator[_Leak]:
    """Look for searches and program pairs of the discovery pairs among training pairs."""
    searches = edges["search_id"].filter(edges["search_id"] != "").unique()
    shared = trained.filter(pl.col("search_id").is_in(searches.implode()))
    shared = shared.unique("search_id", keep="last").sort("search_id")
    rows = shared.select("search_id", "row_id").iter_rows()
    leaked = [f"{row} (of search {search})" for search, row in rows]
    yield _Leak("discovery-search", f"a search of {table} is in {where}", where, leaked)
    for kind in ("program", "token"):
        sides = (f"anchor_{kind}", f"candidate_{kind}")
        ends = {"low": pl.min_horizontal(sides), "high": pl.max_horizontal(sides)}
        first = edges.select(pl.col("row_id").alias(f"same_{kind}"), **ends)
        first = first.unique(["low", "high"], keep="first")
        keys = {"on": ["low", "high"], "how": "left", "maintain_order": "left"}
        trained = trained.with_columns(**ends).join(first, **keys)  # type: ignore[arg-type]
    hits = trained.select("row_id", pl.coalesce("same_program", "same_token")).drop_nulls()
    leaked = [f"{row} (is {table} row {hit})" for row, hit in hits.iter_rows()]
    fix = "Make the training pairs again: kernel-archive build-train"
    yield _Leak("discovery-pair", f"a program pair of {table} is in {where}", where, leaked, fix)


def _near_copies(tables: ArchiveTables, selections: Mapping[str, Selection]) -> Iterator[_Leak]:
    """Look for rows whose program is a near copy, as the split's definition says."""
    trained = tables.training_ids
    for table, programs in evaluated_programs(tables, selections).items():
        stated: Any = selections.get(table)
        if stated is None:  # not "or": a selection without rows is false
            stated = tables.archive.manifest.splits.get(table)
        threshold = None if stated is None else stated.parameters.get("near_copy")
        # What is no number selects nothing, either: a finding of its own.
        if not isinstance(threshold, int | float):
            continue
        # The same tokens are a leak by every definition, which _programs names.
        tokens = [token for _, token in programs]
        same = {*trained["token_id"].filter(trained["token_id"].is_in(tokens))}
        others = [program for program, token in programs if token not in same]
        nears = tables.neighbours.near_copies(others, threshold)
        kernels = {*trained["kernel_id"]} if nears else set()
        for where in (TRAIN, "train_pairs"):
            leaked = [
                f"{row} ({near.similarity:.2f} of the tokens of {where} row {near.program})"
                for row, near in nears.items()
                if (near.program in kernels) == (where == TRAIN)
            ]
            message = f"a near copy of a program of {table} is in {where}"
            yield _Leak("near-copy-leak", message, where, leaked)


def _leaks(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[_Leak]:
    """Look for every kind of leak but near copies."""
    evaluated, pairs = _of_kind(members, "eval"), _of_kind(members, "train")
    held = {*tables.searches_with("held_out")["search_id"]}
    held.update(name for rows in evaluated.values() for name in rows["search_id"] if name)
    for where, trained in _trained(tables, members).items():
        yield from _searches(tables, where, trained, held)
        for table, asked in evaluated.items():
            yield from _programs(where, trained, table, asked)
    yield from _measured(tables, held)
    yield from _problems(tables, members)
    for table, edges in _of_kind(members, "close", "discovery").items():
        for where, trained in pairs.items():
            yield from _pairs(where, trained, table, edges)


def present_members(
    tables: ArchiveTables, names: Iterable[str] = tuple(SPLIT_TABLES)
) -> dict[str, pl.DataFrame]:
    """Read the rows of the splits that an archive holds, by table, with the ids of their texts."""
    members = {}
    for name in names:
        if name in tables.archive.manifest.tables:
            split = SPLIT_TABLES[name]
            kinds = ("pair_type",) if split.kind == "train" else ()
            columns = ("row_id", split.task, "search_id", split.anchor, split.candidate, *kinds)
            parts = (
                members_of(split, with_ids(split, part, tables.tokens))
                for part in tables.stored(name, columns)
            )
            members[name] = pl.concat([MEMBER.to_frame(), *parts])
    return members


def evaluated_programs(
    tables: ArchiveTables, selections: Mapping[str, Selection]
) -> dict[str, list[tuple[TokenSet, str]]]:
    """Make the token set and token id of every row of the evaluation splits."""
    programs: dict[str, list[tuple[TokenSet, str]]] = {}
    for split in EVALUATIONS.values():
        columns = ("row_id", split.task, split.candidate)
        chosen = selections.get(split.table)
        parts: Iterator[pl.DataFrame] = (
            tables.stored(split.table, columns)
            if chosen is None
            else (pl.DataFrame(part.select(columns)) for part in chosen.parts())
        )
        for part in parts:
            rows = list(part.iter_rows())
            tokens = [token_id(code) for _, _, code in rows]
            sets = token_sets(rows, tables.grams)
            programs.setdefault(split.table, []).extend(zip(sets, tokens, strict=True))
    return programs


def leakage_findings(
    tables: ArchiveTables,
    members: Mapping[str, pl.DataFrame],
    selections: Mapping[str, Selection] = MappingProxyType({}),
) -> list[Finding]:
    """Find leaks of the evaluation into training: one finding per kind and table.

    What training pairs hold is a warning where others published them, since no build can mend it.

    Args:
        tables: the archive's tables.
        members: rows of its splits, by table.
        selections: splits that are about to take the place of those that the archive has.
    """
    facts = tables.archive.manifest.splits
    published = "train_pairs" in facts and facts["train_pairs"].origin == "published"
    return [
        Finding(
            code=leak.code,
            message=f"{leak.message}: {len(leak.rows)} rows, {name_rows(leak.rows)}",
            field=leak.where,
            value=printable(leak.rows[0], 200),
            fix=leak.fix,
            severity="warning" if published and leak.where in SPLIT_TABLES else "error",
        )
        for leak in (*_leaks(tables, members), *_near_copies(tables, selections))
        if leak.rows
    ]


def refuse_leakage(findings: Iterable[Finding]) -> list[Finding]:
    """Raise for leaks; return what is only a warning.

    Raises:
        LeakageError: a finding is an error; the error carries all of them.
    """
    warnings = list(findings)
    errors = [f for f in warnings if f.severity == "error"]
    if errors:
        summary = "; ".join(f.message for f in errors)
        raise LeakageError(f"the splits would leak: {summary}", findings=errors)
    return warnings
