"""Proof that nothing of the evaluation stands in training: by search, by program, by near copy, by problem.

Refused:

- a held-out search, or the content of one under another name, in ``kernels/train`` or training pairs;
- a program of an evaluation split or a near duplicate of it (the same tokens) in ``kernels/train`` or training pairs;
- where the split's definition says what a near copy is, also one of those (:func:`check_near_copies`);
- a training search, a kernel of ``kernels/train`` or a training pair of a problem that is wholly held out;
- a search or a program pair of the discovery pairs, in either direction, in training pairs.

The anchor of a seed pair is the reference program, which every row of an evaluation shows: it is no leak. Whether it is
the reference is looked up in ``references``, not believed of the row's label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel_archive.errors import Finding, LeakageError, printable
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection.selected import Member, hashes
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernel_archive.selection.similarity import Program
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Kind, Split

#: So many rows are named per kind of leak; the rest is counted.
NAMED: Final = 10
_FIX: Final = (
    "Give its source the role held_out or archive, or keep the row out with an [[exclude]] entry, and build again"
)


def members_of(split: Split, parts: Iterable[pa.Table], tokens: Mapping[str, str] | None = None) -> list[Member]:
    """The rows of a split's table with the ids of their own texts: what it holds, whatever ids it states.

    Args:
        split: the split.
        parts: its rows.
        tokens: program id -> token id, where known already; all others are computed.
    """
    known: dict[str, tuple[str, str]] = {}
    by_program = dict(tokens or {})

    def ids(code: str) -> tuple[str, str]:
        found = known.get(code)
        if found is None:
            program = program_id(code)
            if program not in by_program:
                by_program[program] = token_id(code)
            found = known[code] = (program, by_program[program])
        return found

    members: list[Member] = []
    for part in parts:
        kinds = part["pair_type"].to_pylist() if split.kind == "train" else [""] * part.num_rows
        columns = (part[n].to_pylist() for n in ("row_id", split.task, "search_id", *split.programs))
        for kind, (row_id, problem, search, *codes) in zip(kinds, zip(*columns, strict=True), strict=True):
            programs, classes = zip(*map(ids, codes), strict=True)
            members.append(
                Member(
                    row_id=row_id,
                    problem=problem,
                    search_id=search,
                    programs=programs,
                    tokens=classes,
                    open_anchor=kind == "seed",
                )
            )
    return members


def _finding(code: str, message: str, field: str, rows: Sequence[str], severity: Any, fix: str = _FIX) -> Finding:
    named = ", ".join(printable(row, 200) for row in rows[:NAMED])
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return Finding(
        code=code,
        message=f"{message}: {len(rows)} rows, {named}{more}",
        field=field,
        value=printable(rows[0], 200),
        fix=fix,
        severity=severity,
    )


class _Seen:
    """Programs of one training table that are evaluated: by program and near-duplicate class; and its searches; with a row each."""

    def __init__(self, table: str, evaluated: set[str], severity: str = "error") -> None:
        self.table = table
        self.evaluated = evaluated
        self.severity = severity
        self.searches: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.tokens: dict[str, str] = {}

    def add(self, row: str, search: str, programs: Iterable[str], tokens: Iterable[str]) -> None:
        self.searches.setdefault(search, row)
        for program in self.evaluated.intersection(programs):
            self.programs.setdefault(program, row)
        for token in self.evaluated.intersection(tokens):
            self.tokens.setdefault(token, row)


def _of_kind(members: Mapping[str, Sequence[Member]], kind: Kind) -> dict[str, Sequence[Member]]:
    return {table: rows for table, rows in members.items() if SPLIT_TABLES[table].kind == kind}


def _rows(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns, a few as objects at a time."""
    for batch in table.select(names).to_batches(max_chunksize=10_000):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _training(
    tables: ArchiveTables, members: Mapping[str, Sequence[Member]], evaluated: set[str], lenient: bool
) -> list[_Seen]:
    """Everything that a trainer gets, of what is evaluated."""
    kernels = _Seen("kernels/train", evaluated)
    narrow = tables.read("kernels", ["kernel_id", "search_id", "program_id", "token_id"], "train")
    for row, search, program, token in _rows(narrow, *narrow.column_names):
        kernels.add(row, search, (program,), (token,))
    found = [kernels]
    references = {(row["problem"], program_id(row["code"])) for row in tables.references.to_pylist()}
    for table, rows in _of_kind(members, "train").items():
        seen = _Seen(table, evaluated, "warning" if lenient else "error")
        for m in rows:
            first = 1 if m.open_anchor and (m.problem, m.programs[0]) in references else 0
            seen.add(m.row_id, m.search_id, m.programs[first:], m.tokens[first:])
        found.append(seen)
    return found


def check_leakage(
    tables: ArchiveTables, members: Mapping[str, Sequence[Member]], *, lenient: bool = False
) -> list[Finding]:
    """Everything of the evaluation that training holds.

    Args:
        tables: the archive's tables. Only programs of ``references`` may be anchors of seed pairs freely; a kernel that
            a held-out search measured as well is found in ``evaluations``.
        members: rows of the archive's splits, by table.
        lenient: the training pairs were published like that: what they hold is a warning, since no build can mend it.

    Returns:
        One finding per kind of leak and table, with the rows named; empty when there is none.
    """
    found: list[Finding] = []
    evaluated = _of_kind(members, "eval")
    held = {name for name, role in tables.roles.items() if role == "held_out"}
    digest_of = dict(
        zip(tables.searches["search_id"].to_pylist(), tables.searches["source_digest"].to_pylist(), strict=True)
    )
    digests = {digest_of[name] for name in held if digest_of[name]}
    held.update(m.search_id for rows in evaluated.values() for m in rows if m.search_id)
    asked = {name for rows in evaluated.values() for m in rows for name in (m.programs[-1], m.tokens[-1])}
    for seen in _training(tables, members, asked, lenient):
        found.extend(_search_leaks(seen, held, digest_of, digests))
        for table, rows in evaluated.items():
            found.extend(_program_leaks(seen, table, rows))
    found.extend(_measured_leaks(tables, held))
    found.extend(_problem_leaks(tables, members, lenient))
    for edges in _of_kind(members, "discovery").items():
        for pairs in _of_kind(members, "train").items():
            found.extend(_pair_leaks(edges, pairs, "warning" if lenient else "error"))
    return found


def check_near_copies(
    tables: ArchiveTables, programs: Mapping[str, tuple[float, Sequence[Program]]], *, lenient: bool = False
) -> list[Finding]:
    """Rows of evaluation splits whose program is a near copy of one that training holds.

    Args:
        tables: the archive's tables.
        programs: table -> similarity from which two programs are near copies, and its programs under their rows' names.
        lenient: as for :func:`check_leakage`; what ``kernels/train`` holds is an error all the same.
    """
    narrow = tables.read("kernels", ["kernel_id", "token_id"], "train")
    tokens = pa.array([token_id(program.code) for _, rows in programs.values() for program in rows], pa.string())
    trained = set(tokens.filter(pc.is_in(tokens, narrow["token_id"])).to_pylist())
    found: list[Finding] = []
    for table, (threshold, rows) in programs.items():
        leaked: dict[str, list[str]] = {}
        # The same tokens are a leak by every definition: check_leakage names those.
        others = [program for program in rows if token_id(program.code) not in trained]
        nears = [near for near in tables.neighbours.of(others).values() if near.similarity >= threshold]
        names = pa.array([near.program for near in nears], pa.string())
        kernels = set(names.filter(pc.is_in(names, narrow["kernel_id"])).to_pylist())
        for near in nears:
            where = "kernels/train" if near.program in kernels else "train_pairs"
            shared = f"{near.similarity:.2f} of the tokens of {where} row {near.program}"
            leaked.setdefault(where, []).append(f"{near.row} ({shared})")
        for where, named in sorted(leaked.items()):
            message = f"a near copy of a program of {table} is in {where}"
            severity = "warning" if lenient and where != "kernels/train" else "error"
            found.append(_finding("near-copy-leak", message, where, named, severity))
    return found


def _problem_leaks(tables: ArchiveTables, members: Mapping[str, Sequence[Member]], lenient: bool) -> Iterator[Finding]:
    """What training holds of problems that are wholly held out."""
    held = set(HELD_OUT_PROBLEMS)
    rows = tables.of(held).read("kernels", ["kernel_id", "problem"], "train")
    named = {"kernels/train": [f"{name} (of {problem})" for name, problem in _rows(rows, *rows.column_names)]}
    named["searches"] = [
        f"{row['search_id']} (of {row['problem']})"
        for row in tables.searches.to_pylist()
        if row["role"] == "training" and row["problem"] in held
    ]
    for table, pairs in _of_kind(members, "train").items():
        named[table] = [f"{m.row_id} (of {m.problem})" for m in pairs if m.problem in held]
    for table, leaked in named.items():
        if leaked:
            severity = "warning" if lenient and table == "train_pairs" else "error"
            message = f"a problem that is wholly held out is in {table}"
            yield _finding("held-out-problem", message, table, leaked, severity)


def _search_leaks(
    seen: _Seen, held: set[str], digest_of: Mapping[str, str | None], digests: set[str | None]
) -> Iterator[Finding]:
    both = sorted(name for name in seen.searches if name in held)
    copies = sorted(name for name in seen.searches if name not in held and digest_of.get(name) in digests)
    for names, message in (
        (both, f"a held-out search is in {seen.table}"),
        (copies, f"the log of a held-out search is in {seen.table} under another name"),
    ):
        if names:
            rows = [f"{name} ({seen.table} row {seen.searches[name]})" for name in names]
            yield _finding("held-out-search", message, seen.table, rows, seen.severity)


def _program_leaks(seen: _Seen, table: str, members: Sequence[Member]) -> Iterator[Finding]:
    same: list[str] = []
    near: list[str] = []
    for m in members:
        candidate, token = m.programs[-1], m.tokens[-1]
        if candidate in seen.programs:
            same.append(f"{m.row_id} (is {seen.table} row {seen.programs[candidate]})")
        elif token in seen.tokens:
            near.append(f"{m.row_id} (has the tokens of {seen.table} row {seen.tokens[token]})")
    if same:
        message = f"a program of {table} is in {seen.table}"
        yield _finding("program-leak", message, seen.table, same, seen.severity)
    if near:
        message = f"a program of {table} but for comments and white space is in {seen.table}"
        yield _finding("near-duplicate-leak", message, seen.table, near, seen.severity)


def _measured_leaks(tables: ArchiveTables, held: set[str]) -> Iterator[Finding]:
    rows = tables.read("evaluations", ["search_id", "kernel_id", "outcome", "excluded"])
    counts = pc.and_(pc.equal(rows["outcome"], "success"), pc.is_null(rows["excluded"]))
    ours = rows.filter(pc.and_(counts, pc.is_in(rows["search_id"], pa.array(sorted(held), pa.string()))))
    train = tables.read("kernels", ["kernel_id"], "train")["kernel_id"]
    ours = ours.filter(pc.is_in(ours["kernel_id"], train))
    where = dict(_rows(ours, "kernel_id", "search_id"))
    leaked = sorted(name for name in train.filter(pc.is_in(train, ours["kernel_id"])).to_pylist())
    if leaked:
        named = [f"{name} (measured in {where[name]})" for name in leaked]
        message = "a kernel that a held-out search measured is in kernels/train"
        yield _finding("held-out-search", message, "kernels/train", named, "error")


def _pair_leaks(
    edges: tuple[str, Sequence[Member]], training: tuple[str, Sequence[Member]], severity: str
) -> Iterator[Finding]:
    (table, theirs), (ours, rows) = edges, training
    searches = {m.search_id for m in theirs if m.search_id}
    shared = {m.search_id: f"{m.row_id} (of search {m.search_id})" for m in rows if m.search_id in searches}
    if shared:
        named = [shared[name] for name in sorted(shared)]
        yield _finding("discovery-search", f"a search of {table} is in {ours}", ours, named, severity)

    def both(members: Iterable[Member]) -> Iterator[tuple[str, ...]]:
        return (tuple(sorted(ids)) for m in members for ids in (m.programs, m.tokens))

    # Of a large archive's pairs hardly one is in training: the others are not kept.
    common = set(np.intersect1d(hashes(both(theirs)), hashes(both(rows))).tolist())
    pairs: dict[tuple[str, ...], str] = {}
    for m in theirs if common else ():
        for ids in both([m]):
            if hash(ids) in common:
                pairs.setdefault(ids, m.row_id)
    leaked = []
    for m in rows if pairs else ():
        hit = next(filter(None, map(pairs.get, both([m]))), None)
        if hit is not None:
            leaked.append(f"{m.row_id} (is {table} row {hit})")
    if leaked:
        fix = "Make the training pairs again: kernel-archive build-train"
        yield _finding("discovery-pair", f"a program pair of {table} is in {ours}", ours, leaked, severity, fix)


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
