"""For ``kernel-archive init``: write a query over a table, from the names of its columns.

A guess has a comment in the query, and a note for the person who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_archive.databases import sql_name, sql_texts
from kernel_archive.drafting import guesses
from kernel_archive.drafting.table_rows import PLACE, TableRows, answer_of
from kernel_archive.errors import printable
from kernel_archive.readers.sql import QueryError
from kernel_archive.readers.sql_doubts import failure_of

#: Look at this many rows of a table.
_SAMPLE: Final = 200
#: Said where the folder of a file is taken for its problem.
BY_FOLDER: Final = "the problem is a guess: the folder of each file. If all are of one: --problem"
#: Says no, in lower case; a word that says no more than that; a word of success.
_NO: Final = "IN ('false', '0', '0.0', 'no', 'fail', 'failed')"
_FAILED: Final = re.compile(r"(?i)\W*(fail(ed|ure)?|error|false|0|no|invalid)\W*")
_GOOD: Final = re.compile(r"(?i)\s*(ok|pass(ed)?|success(ful)?|correct|valid|true|1)\s*")
_NUMBER: Final = re.compile(r"[-+.\deE]+")
#: Cells of a column of errors that are no text.
_NO_TEXT: Final = re.compile(r"[-+.\deE]+|(?i:true|false|nan|inf)")


def write_query(
    folder: Path, file: str, table: TableRows, names: Sequence[str], *, is_each: bool
) -> tuple[str, list[str]]:
    """Write a query over a table, in each folder or one, and what a person must look at."""
    columns, notes = table.columns, list[str]()
    values = _cells(folder, file, table)
    beside, times = Path(file).parent, guesses.times(columns)
    timed = {theirs for theirs, _ in times.values()}
    matched, in_files = _placed({c: values[c] for c in columns if c not in timed}, names, beside)
    is_below = all(Path(c.found or file).is_relative_to(beside) for c in in_files.values())
    lines, joins = _joins(columns, in_files)
    for ours, (theirs, unit) in times.items():
        remark = f"{unit} by its name"
        if unit is None:
            remark = "LOOK: ms is a guess, its name states no unit"
            notes.append(f"the unit of {printable(theirs, 60)} is not in its name: ms is a guess")
        factor = guesses.UNITS[unit or "ms"]
        lines.append(f"TRY_CAST({columns[theirs]} AS DOUBLE) {factor} AS {ours},  -- {remark}")
    found = {*matched, *in_files, *(["speedup"] if len(times) > 1 else [])}
    if is_each and is_below and "problem" not in found:
        found.add("problem")
        notes.append(BY_FOLDER)
    lines += _verdict(matched, columns, values, notes)
    for ours, theirs in matched.items():
        cell, remark = columns[theirs], ""
        if ours == "problem":
            if level := _level(values):
                cell = f"concat_ws('_', 'level', {columns[level]}, {cell})"
            if "problem" not in guesses.words_of(theirs):
                remark = "  -- LOOK: is this the problem?"
        lines.append(f"{cell} AS {ours},{remark}")
    text = "\n".join([*lines, *joins])
    free = {c: values[c] for c, sql in columns.items() if sql not in text and c != PLACE}
    notes += _lacking(found, free)
    if free:
        unused = ", ".join(printable(c, 40) for c in [*free][:40])
        notes.append(f"nothing is read from these columns: {unused}")
    if table.line is not None and "node_id" not in matched:
        lines.append("'row-' || t.source_row AS node_id,")
    # Nothing above the matched file is read: where a program lies there, the folder is the match.
    file_text = "getvariable('file')" if is_below else sql_texts([file])
    head = " + 1" if "read_csv" in table.read else ""  # the header of a CSV file is row 1
    read = table.read.replace("getvariable('file')", file_text)
    query = [
        "-- Written by kernel-archive init from the names of the columns: read it first.",
        *(f"-- LOOK: {note}" for note in notes),
        "SELECT",
        *(f"  {line}" for line in lines),
        f"  {file_text} AS source_file,",
        f"  t.{table.line or 'source_row'} AS source_row",
        f"FROM (SELECT *, row_number() OVER (){head} AS source_row FROM {read}) t",
        *joins,
        "ORDER BY t.source_row",
    ]
    return "\n".join(query) + "\n", notes


def _cells(folder: Path, file: str, table: TableRows) -> dict[str, list[str]]:
    """Read the cells of each column in the first rows, without those that are missing."""
    select = ", ".join(f"{sql}::VARCHAR AS {sql_name(c)}" for c, sql in table.columns.items())
    try:
        answer = answer_of(folder, file, f"SELECT {select} FROM {table.read} t LIMIT {_SAMPLE}")
    except QueryError:
        return {column: [] for column in table.columns}
    return {c: answer[c].drop_null().to_pylist() for c in table.columns}


def _placed(
    values: dict[str, list[str]], names: Sequence[str], beside: Path
) -> tuple[dict[str, str], dict[str, guesses.FileColumn]]:
    """Map columns of ours to theirs, and to those that name files."""
    matched = guesses.matched(values)
    kernel = matched.get("code", "")
    if kernel.rpartition(".")[2] == "kernel" and not any("\n" in text for text in values[kernel]):
        # It holds names, not texts.
        matched = {"problem": kernel, **guesses.matched(c for c in values if c != kernel)}
    # Of files of one name those beside the table count, the last of the list.
    ordered = sorted(names, key=lambda name: Path(name).is_relative_to(beside))
    in_files = guesses.file_columns(values, matched.get("code"), ordered)
    if kernel and "code" in in_files and in_files["code"].name == matched.get("problem"):
        matched["problem"] = kernel
    if "code" not in {*matched, *in_files}:
        first = sorted(names, key=guesses.is_reference)
        if numbered := guesses.numbered_files(values, first, beside):
            in_files["code"] = numbered
            if values.get(matched.get("problem", "")) == values[numbered.name]:
                del matched["problem"]  # keys that number programs
    gpus = values.get(matched.get("gpu", ""), [])
    if gpus and all(re.fullmatch(r"cuda(:\d+)?|\d\d?", cell) for cell in gpus):
        del matched["gpu"]  # which of a machine's it is
    return {ours: theirs for ours, theirs in matched.items() if ours not in in_files}, in_files


def _level(values: dict[str, list[str]]) -> str | None:
    """Find the column of KernelBench's levels, whose problems have the same numbers."""
    levels = (c for c in values if guesses.words_of(c) in (["level"], ["level", "id"]))
    return next((c for c in levels if values[c] and all(map(str.isdigit, values[c]))), None)


def _joins(
    columns: dict[str, str], in_files: dict[str, guesses.FileColumn]
) -> tuple[list[str], list[str]]:
    """Write what is read from files that columns name, and the joins with them."""
    lines, joins = [], []
    for ours, column in in_files.items():
        path = columns[column.name]
        path = f"replace({path}, '\\', '/')" if column.is_windows else path
        path = f"{sql_texts([column.before])} || {path}" if column.before else path
        path += f" || {sql_texts([column.ending])}" if column.ending else ""
        alias = "program" if ours == "code" else "reference"
        shown = printable(column.name, 40)
        lines.append(f"{alias}.content AS {ours},  -- the file that {shown} names")
        lines += [f"{path} AS program_file,"] if ours == "code" else []
        joins.append(
            f"LEFT JOIN read_text({column.files}) {alias}\n"
            f"  ON ends_with('/' || {alias}.filename, '/' || ltrim({path}, './'))"
        )
    return lines, joins


def _lacking(found: set[str], free: dict[str, list[str]]) -> Iterator[str]:
    """Say which needed columns have no known name, each with the likeliest of those left."""
    numbers = [c for c, cells in free.items() if cells and all(map(_NUMBER.fullmatch, cells))]
    texts = [c for c in free if guesses.WORDS["no_name"].isdisjoint(guesses.words_of(c))]
    texts = sorted({*texts} - {*numbers}, key=lambda c: (sum(map(len, free[c])), c))
    likely = [c for c in texts if not guesses.WORDS["problem"].isdisjoint(guesses.words_of(c))]
    nearest = {"problem": [*likely, *texts][:1], "code": texts[-1:], "speedup": numbers[:1]}
    for column, lack in guesses.KNOWN["lacks"].items():
        if column not in found:
            asked = (f". Is it the column {printable(c, 60)}?" for c in nearest[column])
            yield lack + "".join(asked)


def _verdict(
    matched: dict[str, str], columns: dict[str, str], values: dict[str, list[str]], notes: list[str]
) -> list[str]:
    """Write the outcome, from columns that say true and false or in words."""
    errors = _errors(columns, values)
    cases: list[str] = []
    for ours, failure in (("compiled", "compile_failed"), ("correct", "incorrect")):
        if (theirs := matched.pop(ours, None)) is not None:
            no = f"WHEN lower({columns[theirs]}::VARCHAR) {_NO}"
            cases += _by_error(no, errors) if ours == "correct" else []
            cases.append(f"{no} THEN '{failure}'")
    last = "'success'"
    if (theirs := matched.pop("outcome", None)) is not None:
        last = f"{columns[theirs]}::VARCHAR"
        for word in sorted(set(values[theirs]))[:20]:
            outcome = "success" if _GOOD.fullmatch(word) else failure_of(word)
            if outcome is None:
                shown = f"{printable(word, 40)} of {printable(theirs, 40)}"
                notes.append(f"what {shown} means is not known: its rows are left out")
                continue
            is_word = f"WHEN {last} = {sql_texts([word])}"
            cases += _by_error(is_word, errors) if _FAILED.fullmatch(word) else []
            cases.append(f"{is_word} THEN '{outcome}'")
    if not cases:
        return []
    lines = ["CASE", *(f"  {case}" for case in cases), f"  ELSE {last} END AS outcome,"]
    if errors and "error_text" not in matched:
        lines.append(f"coalesce({', '.join(errors.values())}) AS error_text,")
    return lines


def _errors(columns: dict[str, str], values: dict[str, list[str]]) -> dict[str, str]:
    """Map the columns that may hold the texts of errors to their SQL."""
    return {
        column: f"{sql}::VARCHAR"
        for column, sql in columns.items()
        if not guesses.WORDS["error"].isdisjoint(guesses.words_of(column))
        and guesses.WORDS["no_text"].isdisjoint(guesses.words_of(column))
        and not any(map(_NO_TEXT.fullmatch, values[column]))
    }


def _by_error(failed: str, errors: dict[str, str]) -> Iterator[str]:
    """Write which failure a failed row's error says: by the column's name, else by its words."""
    for column, text in errors.items():
        name = column.rpartition(".")[2].lower()
        named = next((failure for failure, words in guesses.ERRORS if re.search(words, name)), None)
        rules = [(f"regexp_matches(lower({text}), '{w}')", f) for f, w in guesses.ERRORS]
        if named is not None:
            rules = [(f"{text} <> ''", named)]
        elif "exception" in name:
            rules.append((f"{text} <> ''", "runtime_error"))
        for condition, failure in rules:
            yield f"{failed} AND {condition} THEN '{failure}'  -- LOOK: by its error"
