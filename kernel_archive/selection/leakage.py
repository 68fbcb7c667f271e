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

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from kernel_archive.errors import Finding, LeakageError, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import MEMBER, members_of, name_rows, with_ids
from kernel_archive.selection.similarity import near_copies, token_grams
from kernel_archive.selection.tables import pair_key
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kernel_archive.selection.selected import Selection
    from kernel_archive.selection.tables import ArchiveTables

#: What each kind of leak is, in a sentence about the rows that are named.
_MESSAGES: Final = {
    "held-out-search": "training holds a held-out search, or its log under another name",
    "program-leak": "training holds a program that is asked about",
    "near-duplicate-leak": "training holds a program that is asked about, but for comments and "
    "white space",
    "near-copy-leak": "training holds a near copy of a program that is asked about",
    "held-out-problem": "training holds rows of a problem that nobody may train on",
    "discovery-search": "training pairs hold a search of the discovery pairs",
    "discovery-pair": "training pairs hold a program pair that is asked about",
}
_FIX: Final = (
    "Give its source the role held_out or archive, or keep the row out with an [[exclude]] entry, "
    "and build again; of discovery pairs, make the training pairs again: kernel-archive build-train"
)
TRAIN: Final = "kernels/train"
#: A kind of leak, and its rows: ``where`` in training, and ``text`` that names the row and why.
_Leak = tuple[str, pl.DataFrame]


def _leak(rows: pl.DataFrame, template: str, *columns: str) -> pl.DataFrame:
    return rows.select("where", text=pl.format(template, *columns))


def _trained(tables: ArchiveTables, members: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Collect every program that a trainer gets.

    ``where`` names the table; the rest is ``row``, ``search``, ``problem``, ``program``, ``token``.
    """
    columns = {"search": "search_id", "problem": "problem"}
    kernels = tables.training.select(
        pl.lit(TRAIN).alias("where"),
        row="kernel_id",
        **columns,
        program="program_id",
        token="token_id",
    )
    pairs = members.get("train_pairs", MEMBER.to_frame())
    rows = tables.references.select("problem", "code").iter_rows()
    references = [f"{problem} {program_id(code)}" for problem, code in rows]
    anchor = pl.concat_str("problem", "anchor_program", separator=" ")
    shared = pl.col("pair_type").eq_missing(pl.lit("seed")) & anchor.is_in(references)
    sides = [
        rows.select(
            pl.lit("train_pairs").alias("where"),
            row="row_id",
            **columns,
            program=f"{side}_program",
            token=f"{side}_token",
        )
        for side, rows in (("anchor", pairs.filter(~shared)), ("candidate", pairs))
    ]
    return pl.concat([kernels, *sides])


def _searches(tables: ArchiveTables, trained: pl.DataFrame, held_out: pl.Series) -> Iterator[_Leak]:
    """Look for held-out searches, their logs under another name, and what they measured."""
    sources = tables.searches.select(search="search_id", digest="source_digest")
    digests = sources.filter(pl.col("search").is_in(held_out.implode()), pl.col("digest") != "")
    rows = trained.unique(["where", "search"], keep="first", maintain_order=True)
    rows = rows.join(sources, on="search", how="left", maintain_order="left")
    is_held = pl.col("search").is_in(held_out.implode())
    is_copy = pl.col("digest").is_in(digests["digest"].implode())
    yield "held-out-search", _leak(rows.filter(is_held), "{} ({} row {})", "search", "where", "row")
    template = "{}, under another name ({} row {})"
    copies = rows.filter(is_copy & ~is_held)
    yield "held-out-search", _leak(copies, template, "search", "where", "row")
    measured = tables.read("evaluations", ["search_id", "kernel_id", "outcome", "excluded"])
    passed = (pl.col("outcome") == "success") & pl.col("excluded").is_null()
    measured = measured.filter(passed & pl.col("search_id").is_in(held_out.implode()))
    hits = trained.filter(pl.col("where") == TRAIN).join(
        measured.unique("kernel_id"), left_on="row", right_on="kernel_id"
    )
    yield "held-out-search", _leak(hits, "{} (measured in {})", "row", "search_id")


def _programs(trained: pl.DataFrame, asked: pl.DataFrame) -> Iterator[_Leak]:
    """Look for programs of an evaluation split, and for near duplicates of them."""
    for code, kind in (("program-leak", "program"), ("near-duplicate-leak", "token")):
        first = trained.unique(["where", kind], keep="first", maintain_order=True)
        hits = asked.join(first, left_on=f"candidate_{kind}", right_on=kind, maintain_order="left")
        if kind == "token":
            hits = hits.filter(pl.col("program") != pl.col("candidate_program"))
        yield code, _leak(hits, "{} (is {} row {})", "row_id", "where", "row")


def _pairs(pairs: pl.DataFrame, edges: pl.DataFrame) -> Iterator[_Leak]:
    """Look for searches and program pairs of the discovery pairs among training pairs."""
    pairs = pairs.with_columns(where=pl.lit("train_pairs"))
    searches = edges["search_id"].filter(edges["search_id"] != "")
    shared = pairs.filter(pl.col("search_id").is_in(searches.implode()))
    shared = shared.unique("search_id", keep="last").sort("search_id")
    yield "discovery-search", _leak(shared, "{} (of search {})", "row_id", "search_id")
    for kind in ("program", "token"):
        key = pair_key(f"anchor_{kind}", f"candidate_{kind}").alias("pair")
        first = edges.select(key, edge="row_id").unique("pair", keep="first", maintain_order=True)
        hits = pairs.with_columns(key).join(first, on="pair", maintain_order="left")
        yield "discovery-pair", _leak(hits, "{} (is row {})", "row_id", "edge")


def _foreign_texts(tables: ArchiveTables, trained: pl.DataFrame) -> pl.DataFrame:
    """Read the programs of training pairs that no training kernel has: problem, row and text."""
    pairs = trained.filter(pl.col("where") == "train_pairs")
    foreign = pairs.join(tables.training, left_on="program", right_on="program_id", how="anti")
    if foreign.is_empty():
        return pl.DataFrame(schema={"problem": pl.String, "row": pl.String, "code": pl.String})
    columns = ["row_id", "anchor_code", "candidate_code"]
    rows = tables.archive.polars("train_pairs", columns=columns)
    texts = rows.unpivot(index="row_id", value_name="code").rename({"row_id": "row"})
    ids = pl.Series([program_id(code) for code in texts["code"]], dtype=pl.String)
    return texts.with_columns(program=ids).join(foreign, on=["row", "program"])


def _near_copies(
    tables: ArchiveTables, trained: pl.DataFrame, selections: Mapping[str, Selection]
) -> Iterator[_Leak]:
    """Look for rows whose program is a near copy, as the split's definition says."""
    tokens = {*trained["token"]}
    foreign = _foreign_texts(tables, trained)
    for split in EVALUATIONS.values():
        chosen = selections.get(split.table)
        stated = chosen or tables.archive.manifest.splits.get(split.table)
        limit = None if stated is None else stated.parameters.get("near_copy")
        # What is no number selects nothing, either: a finding of its own.
        if not isinstance(limit, int | float):
            continue
        rows = pl.DataFrame(chosen.table) if chosen else tables.archive.polars(split.table)
        for (problem,), group in rows.group_by(split.problem_column):
            # The same tokens are a leak by every definition, which _programs names.
            names = group.select("row_id", split.candidate).iter_rows()
            codes = {row: code for row, code in names if token_id(code) not in tokens}
            programs = dict(zip(codes, token_grams(list(codes.values())), strict=True))
            pairs = foreign.filter(pl.col("problem") == problem)
            in_pairs = dict(zip(pairs["row"], token_grams(pairs["code"].to_list()), strict=True))
            training = {TRAIN: tables.training_grams(str(problem)), "train_pairs": in_pairs}
            leaked = [
                (where, f"{row} ({near.similarity:.2f} of row {near.name})")
                for where, others in training.items()
                for row, near in near_copies(programs, others, limit).items()
            ]
            schema = {"where": pl.String, "text": pl.String}
            yield "near-copy-leak", pl.DataFrame(leaked, schema=schema, orient="row")


def _leaks(
    tables: ArchiveTables, members: Mapping[str, pl.DataFrame], selections: Mapping[str, Selection]
) -> Iterator[_Leak]:
    """Look for every kind of leak."""
    kinds = {name: SPLIT_TABLES[name].kind for name in members}
    trained = _trained(tables, members)
    empty = MEMBER.to_frame()
    asked = pl.concat([empty, *(members[n] for n, kind in kinds.items() if kind == "eval")])
    searches = asked["search_id"].filter(asked["search_id"] != "")
    held_out = pl.concat([tables.searches_with("held_out")["search_id"], searches]).unique()
    yield from _searches(tables, trained, held_out)
    yield from _programs(trained, asked)
    begun = tables.searches_with("training").select(
        pl.lit("searches").alias("where"), "problem", row="search_id"
    )
    rows = pl.concat([begun, trained.select("where", "problem", "row").unique(maintain_order=True)])
    rows = rows.filter(pl.col("problem").is_in(list(HELD_OUT_PROBLEMS)))
    yield "held-out-problem", _leak(rows, "{} (of {})", "row", "problem")
    for table, kind in kinds.items():
        if kind in ("close", "discovery"):
            yield from _pairs(members.get("train_pairs", empty), members[table])
    yield from _near_copies(tables, trained, selections)


def present_members(
    tables: ArchiveTables, names: Iterable[str] = tuple(SPLIT_TABLES)
) -> dict[str, pl.DataFrame]:
    """Read the rows of the splits that an archive holds, by table, with the ids of their texts."""
    members = {}
    for name in names:
        if name in tables.archive.manifest.tables:
            split = SPLIT_TABLES[name]
            kinds = ("pair_type",) if split.kind == "train" else ()
            columns = (
                "row_id",
                split.problem_column,
                "search_id",
                split.anchor,
                split.candidate,
                *kinds,
            )
            parts = [
                members_of(split, with_ids(split, pl.DataFrame(batch)))
                for batch in tables.archive.batches(name, columns)
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
    leaked: dict[tuple[str, str], dict[str, None]] = {}
    for code, rows in _leaks(tables, members, selections or {}):
        for where, text in rows.iter_rows():
            leaked.setdefault((code, where), {})[text] = None
    return [
        Finding(
            code=code,
            message=f"{_MESSAGES[code]}: {len(texts)} rows of {where}, {name_rows([*texts])}",
            field=where,
            value=printable(next(iter(texts)), 200),
            fix=_FIX,
            severity="warning" if published and where in SPLIT_TABLES else "error",
        )
        for (code, where), texts in leaked.items()
    ]


def prove(
    tables: ArchiveTables, members: Mapping[str, pl.DataFrame], selections: Mapping[str, Selection]
) -> dict[str, Any]:
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
