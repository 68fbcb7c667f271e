"""Proof that nothing of the evaluation stands in training.

Refused:

- a held-out search, or the content of one under another name, in ``kernels/train`` or training
  pairs;
- a program of an evaluation split or a near duplicate of it (the same tokens) in
  ``kernels/train`` or training pairs;
- where the split's definition says what a near copy is, also one of those (a share of their
  5-grams of tokens) in ``kernels/train``;
- a training search, a kernel of ``kernels/train`` or a training pair of a problem that is wholly
  held out;
- a search or a program pair of the discovery pairs, in either direction, in training pairs.

The anchor of a seed pair is the reference program, which every row of an evaluation shows: it is no
leak. Whether it is the reference is looked up in ``references``, not believed of the row's label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from kernel_archive.errors import Finding, LeakageError, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import MEMBER, members_of, name_rows, with_ids
from kernel_archive.selection.similarity import near_copies, token_grams
from kernel_archive.splits import SPLIT_TABLES

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
    kernels = tables.training.select(
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
    tables: ArchiveTables, where: str, trained: pl.DataFrame, held: pl.Series
) -> Iterator[_Leak]:
    """Look for held-out searches, and for their logs under another name."""
    sources = tables.searches.select(search="search_id", digest="source_digest")
    digests = sources.filter(pl.col("search").is_in(held.implode()), pl.col("digest") != "")
    first = trained.unique("search", keep="first", maintain_order=True).sort("search")
    first = first.join(sources, on="search", how="left", maintain_order="left").with_columns(
        held=pl.col("search").is_in(held.implode()),
        copied=pl.col("digest").is_in(digests["digest"].implode()),
        text=pl.format("{} ({} row {})", "search", pl.lit(where), "row"),
    )
    both = first.filter(pl.col("held"))["text"].to_list()
    yield _Leak("held-out-search", f"a held-out search is in {where}", where, both)
    copies = first.filter(~pl.col("held"), pl.col("copied"))["text"].to_list()
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


def _measured(tables: ArchiveTables, held: pl.Series) -> Iterator[_Leak]:
    """Look for kernels of training that a held-out search measured as well."""
    rows = tables.read("evaluations", ["search_id", "kernel_id", "outcome", "excluded"])
    passed = (pl.col("outcome") == "success") & pl.col("excluded").is_null()
    rows = rows.filter(passed & pl.col("search_id").is_in(held.implode())).unique("kernel_id")
    hits = tables.training.select("kernel_id").join(rows, on="kernel_id").sort("kernel_id")
    leaked = hits.select(pl.format("{} (measured in {})", "kernel_id", "search_id")).to_series()
    message = f"a kernel that a held-out search measured is in {TRAIN}"
    yield _Leak("held-out-search", message, TRAIN, leaked.to_list())


def _problems(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[_Leak]:
    """Look for what training holds of problems that are wholly held out."""
    given = {
        TRAIN: tables.training.select("kernel_id", "problem"),
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
    searches = edges["search_id"].filter(edges["search_id"] != "")
    shared = trained.filter(pl.col("search_id").is_in(searches.implode()))
    shared = shared.unique("search_id", keep="last").sort("search_id")
    leaked = shared.select(pl.format("{} (of search {})", "row_id", "search_id")).to_series()
    message = f"a search of {table} is in {where}"
    yield _Leak("discovery-search", message, where, leaked.to_list())
    for kind in ("program", "token"):
        sides = (f"anchor_{kind}", f"candidate_{kind}")
        ends = {"low": pl.min_horizontal(sides), "high": pl.max_horizontal(sides)}
        first = edges.select(pl.col("row_id").alias("same"), **ends)
        first = first.unique(["low", "high"], keep="first", maintain_order=True)
        hits = trained.with_columns(**ends).join(first, on=["low", "high"], maintain_order="left")
        rows = hits.select(pl.format("{} (is {} row {})", "row_id", pl.lit(table), "same"))
        fix = "Make the training pairs again: kernel-archive build-train"
        message = f"a {kind} pair of {table} is in {where}"
        yield _Leak("discovery-pair", message, where, rows.to_series().to_list(), fix)
        trained = trained.join(hits, on="row_id", how="anti", maintain_order="left")


def _near_copies(tables: ArchiveTables, selections: Mapping[str, Selection]) -> Iterator[_Leak]:
    """Look for rows whose program is a near copy, as the split's definition says."""
    stored = tables.archive.manifest.splits
    trained = {*tables.training["token_id"]}
    for table, split in SPLIT_TABLES.items():
        stated = selections.get(table) or stored.get(table)
        limit = None if stated is None else stated.parameters.get("near_copy")
        # What is no number selects nothing, either: a finding of its own.
        if split.kind != "eval" or not isinstance(limit, int | float):
            continue
        columns = ["row_id", split.task, split.candidate]
        chosen = selections.get(table)
        rows = (
            tables.read(table, columns)
            if chosen is None
            else pl.DataFrame(chosen.table.select(columns))
        )
        # The same tokens are a leak by every definition, which _programs names.
        other = [token_id(code) not in trained for code in rows[split.candidate]]
        leaked = []
        for (problem,), group in rows.filter(pl.Series(other, dtype=pl.Boolean)).group_by(
            split.task
        ):
            grams = token_grams(group[split.candidate].to_list())
            programs = dict(zip(group["row_id"], grams, strict=True))
            near = near_copies(programs, tables.training_grams(str(problem)), limit)
            leaked += [
                f"{row} ({copy.similarity:.2f} of the tokens of {TRAIN} row {copy.name})"
                for row, copy in near.items()
            ]
        message = f"a near copy of a program of {table} is in {TRAIN}"
        yield _Leak("near-copy-leak", message, TRAIN, sorted(leaked))


def _leaks(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> Iterator[_Leak]:
    """Look for every kind of leak but near copies."""
    evaluated, pairs = _of_kind(members, "eval"), _of_kind(members, "train")
    searches = [tables.searches_with("held_out")["search_id"]]
    searches += [rows["search_id"].filter(rows["search_id"] != "") for rows in evaluated.values()]
    held = pl.concat(searches).unique()
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
            parts = [
                members_of(split, with_ids(split, part)) for part in tables.batches(name, columns)
            ]
            members[name] = pl.concat([MEMBER.to_frame(), *parts])
    return members


def leakage_findings(
    tables: ArchiveTables,
    members: Mapping[str, pl.DataFrame],
    selections: Mapping[str, Selection] | None = None,
) -> list[Finding]:
    """Find leaks of the evaluation into training: one finding per kind and table.

    What training pairs hold is a warning where others published them, since no build can mend it.

    Args:
        tables: the archive's tables.
        members: rows of its splits, by table.
        selections: splits that are about to take the place of those that the archive has.
    """
    facts = tables.archive.manifest.splits.get("train_pairs")
    published = facts is not None and facts.origin == "published"
    return [
        Finding(
            code=leak.code,
            message=f"{leak.message}: {len(leak.rows)} rows, {name_rows(leak.rows)}",
            field=leak.where,
            value=printable(leak.rows[0], 200),
            fix=leak.fix,
            severity="warning" if published and leak.where in SPLIT_TABLES else "error",
        )
        for leak in (*_leaks(tables, members), *_near_copies(tables, selections or {}))
        if leak.rows
    ]


def prove(
    tables: ArchiveTables,
    members: Mapping[str, pl.DataFrame],
    selections: Mapping[str, Selection],
) -> dict[str, list[dict[str, object]]]:
    """Refuse leaks; return what is only a warning, for the manifest's reports.

    Raises:
        LeakageError: a finding is an error; the error carries all of them.
    """
    findings = leakage_findings(tables, members, selections)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        summary = "; ".join(f.message for f in errors)
        raise LeakageError(f"the splits would leak: {summary}", findings=errors)
    return {"warnings": msgspec.to_builtins(findings)}
