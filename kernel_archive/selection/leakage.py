"""Proof that nothing of the evaluation stands in training: by search, by program, by near copy, by problem.

Refused:

- a held-out search, or the content of one under another name, in ``kernels/train`` or training pairs;
- a program of an evaluation split or a near duplicate of it (the same tokens) in ``kernels/train`` or training pairs;
- where the split's definition says what a near copy is, also one of those (a share of their 5-grams of tokens);
- a training search, a kernel of ``kernels/train`` or a training pair of a problem that is wholly held out;
- a search or a program pair of the discovery pairs, in either direction, in training pairs.

The anchor of a seed pair is the reference program, which every row of an evaluation shows: it is no leak. Whether it is
the reference is looked up in ``references``, not believed of the row's label.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

import polars as pl
import pyarrow as pa

from kernel_archive.errors import Finding, LeakageError, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import MEMBER, frame, members_of, named, with_ids
from kernel_archive.selection.similarity import Program
from kernel_archive.splits import EVALUATIONS, SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.selection.selected import Selection
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Kind

    Severity = Literal["error", "warning"]

_FIX: Final = (
    "Give its source the role held_out or archive, or keep the row out with an [[exclude]] entry, and build again"
)


def present_members(tables: ArchiveTables, names: Iterable[str] = tuple(SPLIT_TABLES)) -> dict[str, pa.Table]:
    """Rows of the splits that an archive holds, by table, with the ids of their texts."""
    found = {}
    for name in names:
        if name in tables.archive.manifest.tables:
            split = SPLIT_TABLES[name]
            kinds = ("pair_type",) if split.kind == "train" else ()
            columns = ("row_id", split.task, "search_id", split.anchor, split.candidate, *kinds)
            parts = (members_of(split, with_ids(split, part, tables.tokens)) for part in tables.stored(name, columns))
            found[name] = pa.concat_tables([MEMBER.empty_table(), *parts])
    return found


def compared_programs(tables: ArchiveTables, selections: Mapping[str, Selection]) -> dict[str, list[Program]]:
    """Programs of the evaluation splits, by table, under the names of their rows: from their own texts."""
    rows: dict[str, list[Program]] = {}
    for split in EVALUATIONS.values():
        names = ("row_id", split.task, split.candidate)
        chosen = selections.get(split.table)
        for part in tables.stored(split.table, names) if chosen is None else chosen.parts():
            for values in zip(*(part[n].to_pylist() for n in names), strict=True):
                rows.setdefault(split.table, []).append(Program(*values))
    return rows


def leakage_findings(
    tables: ArchiveTables, members: Mapping[str, pa.Table], selections: Mapping[str, Selection] = MappingProxyType({})
) -> list[Finding]:
    """Leaks between the splits of an archive: one finding per kind and table, with the rows named.

    What training pairs hold that others published is a warning, since no build can mend it.

    Args:
        tables: the archive's tables. Only programs of ``references`` may be anchors of seed pairs freely; a kernel that
            a held-out search measured as well is found in ``evaluations``.
        members: rows of its splits, by table (:data:`~kernel_archive.selection.selected.MEMBER`).
        selections: splits that are about to take the place of those that the archive has.
    """
    facts = tables.archive.manifest.splits.items()
    published = any(SPLIT_TABLES[n].kind == "train" and f.origin == "published" for n, f in facts if n in SPLIT_TABLES)
    of_pairs: Severity = "warning" if published else "error"
    return [*check_leakage(tables, members, of_pairs), *_near_copies(tables, selections, of_pairs)]


def of_kind(members: Mapping[str, pa.Table], kind: Kind) -> dict[str, pl.DataFrame]:
    """The members of the splits of a kind, by table."""
    return {table: frame(rows) for table, rows in members.items() if SPLIT_TABLES[table].kind == kind}


def _leak(
    code: str, message: str, field: str, rows: Sequence[str], severity: Severity = "error", fix: str = _FIX
) -> Iterator[Finding]:
    """One finding about these rows; nothing where there are none."""
    if rows:
        yield Finding(
            code=code,
            message=f"{message}: {len(rows)} rows, {named(rows)}",
            field=field,
            value=printable(rows[0], 200),
            fix=fix,
            severity=severity,
        )


def _trained(tables: ArchiveTables, pairs: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Every program that a trainer gets, table by table: ``row``, ``search``, ``program``, ``token``."""
    kernels = tables.read("kernels", ["kernel_id", "search_id", "program_id", "token_id"], "train")
    found = {"kernels/train": frame(kernels.rename_columns(["row", "search", "program", "token"]))}
    references = [f"{row['problem']} {program_id(row['code'])}" for row in tables.references.to_pylist()]
    for table, rows in pairs.items():
        anchor = pl.concat_str("problem", "anchor_program", separator=" ")
        shared = pl.col("pair_type").eq_missing("seed") & anchor.is_in(references)
        both = {
            kind: pl.concat_list(pl.when(~shared).then(f"anchor_{kind}"), f"candidate_{kind}")
            for kind in ("program", "token")
        }
        found[table] = rows.select(row="row_id", search="search_id", **both).explode("program", "token")
    return found


def check_leakage(
    tables: ArchiveTables, members: Mapping[str, pa.Table], of_pairs: Severity = "error"
) -> list[Finding]:
    """Everything of the evaluation that training holds, whole programs and searches; what pairs hold with this severity."""
    found: list[Finding] = []
    evaluated, pairs = of_kind(members, "eval"), of_kind(members, "train")
    held = {name for name, role in tables.roles.items() if role == "held_out"}
    logs = dict(frame(tables.searches).select("search_id", "source_digest").iter_rows())
    held_logs = {logs[name] for name in held} - {None, ""}
    held.update(name for rows in evaluated.values() for name in rows["search_id"] if name)
    for where, trained in _trained(tables, pairs).items():
        severity = of_pairs if where in pairs else "error"
        rows = dict(trained.unique("search", keep="first").sort("search").select("search", "row").iter_rows())
        both = [name for name in rows if name in held]
        copies = [name for name in rows if name not in held and logs.get(name) in held_logs]
        for names, message in (
            (both, f"a held-out search is in {where}"),
            (copies, f"the log of a held-out search is in {where} under another name"),
        ):
            leaked = [f"{name} ({where} row {rows[name]})" for name in names]
            found += _leak("held-out-search", message, where, leaked, severity)
        for table, asked in evaluated.items():
            found += _program_leaks(where, trained, table, asked, severity)
    found += _measured_leaks(tables, held)
    found += _problem_leaks(tables, pairs, of_pairs)
    for table, edges in of_kind(members, "discovery").items():
        for where, trained in pairs.items():
            found += _pair_leaks(where, trained, table, edges, of_pairs)
    return found


def _near_copies(tables: ArchiveTables, selections: Mapping[str, Selection], of_pairs: Severity) -> Iterator[Finding]:
    """Rows of evaluation splits whose program is a near copy, as the split's definition says, of one that training holds."""
    facts = tables.archive.manifest.splits
    train = frame(tables.read("kernels", ["kernel_id", "token_id"], "train"))
    for table, programs in compared_programs(tables, selections).items():
        stated: Selection | SplitFacts | None = selections.get(table) or facts.get(table)
        threshold = None if stated is None else stated.parameters.get("near_copy")
        if not isinstance(threshold, int | float):  # what is no number selects nothing, either: a finding of its own
            continue
        # The same tokens are a leak by every definition: check_leakage names those.
        tokens = [token_id(program.code) for program in programs]
        trained = {*train["token_id"].filter(train["token_id"].is_in(tokens))}
        others = [program for program, token in zip(programs, tokens, strict=True) if token not in trained]
        nears = [near for near in tables.neighbours.of(others).values() if near.similarity >= threshold]
        kernels = {*train["kernel_id"].filter(train["kernel_id"].is_in([near.program for near in nears]))}
        for where in ("kernels/train", "train_pairs"):
            leaked = [
                f"{near.row} ({near.similarity:.2f} of the tokens of {where} row {near.program})"
                for near in nears
                if (near.program in kernels) == (where == "kernels/train")
            ]
            message = f"a near copy of a program of {table} is in {where}"
            yield from _leak("near-copy-leak", message, where, leaked, of_pairs if where == "train_pairs" else "error")


def _problem_leaks(tables: ArchiveTables, pairs: Mapping[str, pl.DataFrame], of_pairs: Severity) -> Iterator[Finding]:
    """What training holds of problems that are wholly held out."""
    searches = frame(tables.searches).filter(pl.col("role") == "training").select("search_id", "problem")
    given = {
        "kernels/train": frame(tables.of(HELD_OUT_PROBLEMS).read("kernels", ["kernel_id", "problem"], "train")),
        "searches": searches,
        **{table: rows.select("row_id", "problem") for table, rows in pairs.items()},
    }
    for table, rows in given.items():
        hits = rows.filter(pl.col("problem").is_in(HELD_OUT_PROBLEMS)).iter_rows()
        message = f"a problem that is wholly held out is in {table}"
        leaked = [f"{name} (of {problem})" for name, problem in hits]
        yield from _leak("held-out-problem", message, table, leaked, of_pairs if table in pairs else "error")


def _program_leaks(
    where: str, trained: pl.DataFrame, table: str, asked: pl.DataFrame, severity: Severity
) -> Iterator[Finding]:
    for code, kind, words, but in (
        ("program-leak", "program", "is", ""),
        ("near-duplicate-leak", "token", "has the tokens of", " but for comments and white space"),
    ):
        first = trained.unique(kind, keep="first").select("row", pl.col(kind).alias(f"candidate_{kind}"))
        hits = asked.join(first, on=f"candidate_{kind}", maintain_order="left")
        leaked = [f"{row_id} ({words} {where} row {row})" for row_id, row in hits.select("row_id", "row").iter_rows()]
        yield from _leak(code, f"a program of {table}{but} is in {where}", where, leaked, severity)
        asked = asked.join(first, on=f"candidate_{kind}", how="anti", maintain_order="left")


def _measured_leaks(tables: ArchiveTables, held: set[str]) -> Iterator[Finding]:
    rows = frame(tables.read("evaluations", ["search_id", "kernel_id", "outcome", "excluded"]))
    counts = (pl.col("outcome") == "success") & pl.col("excluded").is_null() & pl.col("search_id").is_in(held)
    measured = rows.filter(counts).unique("kernel_id", keep="last").select("kernel_id", "search_id")
    train = frame(tables.read("kernels", ["kernel_id"], "train"))
    hits = train.join(measured, on="kernel_id").sort("kernel_id").iter_rows()
    message = "a kernel that a held-out search measured is in kernels/train"
    leaked = [f"{name} (measured in {search})" for name, search in hits]
    yield from _leak("held-out-search", message, "kernels/train", leaked)


def _pair_leaks(
    where: str, trained: pl.DataFrame, table: str, edges: pl.DataFrame, severity: Severity
) -> Iterator[Finding]:
    searches = edges["search_id"].filter(edges["search_id"] != "")
    shared = trained.filter(pl.col("search_id").is_in(searches.implode())).unique("search_id", keep="last")
    leaked = [
        f"{row} (of search {search})"
        for search, row in shared.sort("search_id").select("search_id", "row_id").iter_rows()
    ]
    yield from _leak("discovery-search", f"a search of {table} is in {where}", where, leaked, severity)
    for kind in ("program", "token"):
        sides = (f"anchor_{kind}", f"candidate_{kind}")
        ends = {"low": pl.min_horizontal(sides), "high": pl.max_horizontal(sides)}
        first = edges.select(pl.col("row_id").alias(f"same_{kind}"), **ends).unique(["low", "high"], keep="first")
        trained = trained.with_columns(**ends).join(first, on=["low", "high"], how="left", maintain_order="left")
    hits = trained.select("row_id", pl.coalesce("same_program", "same_token")).drop_nulls().iter_rows()
    leaked = [f"{row} (is {table} row {hit})" for row, hit in hits]
    fix = "Make the training pairs again: kernel-archive build-train"
    yield from _leak("discovery-pair", f"a program pair of {table} is in {where}", where, leaked, severity, fix)


def refuse_leakage(findings: Iterable[Finding]) -> list[Finding]:
    """Raise for leaks; hand back what is only a warning.

    Raises:
        LeakageError: a finding is an error; the error carries all of them.
    """
    found = list(findings)
    errors = [f for f in found if f.severity == "error"]
    if errors:
        summary = "; ".join(f.message for f in errors)
        raise LeakageError(f"the splits would leak: {summary}", findings=errors)
    return found
