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
from kernel_archive.errors import printable

#: Look at this many rows of a table.
_SAMPLE: Final = 200
#: Said where the folder of a file is taken for its problem.
BY_FOLDER: Final = "the problem is a guess: the folder of each file. If all are of one: --problem"
#: Says no, in lower case; and a word that says no more than that.
_NO: Final = "IN ('false', '0', '0.0', 'no', 'fail', 'failed')"
_FAILED: Final = re.compile(r"(?i)\W*(fail(ed|ure)?|error|false|0|no|invalid)\W*")
_PASSED: Final = re.compile(r"(?i)ok|pass(ed)?|success(ful)?|correct|valid|true|1")
_NUMERAL: Final = re.compile(r"[-+.\deE]+")


def write_query(
    folder: Path, file: str, table: guesses.TableQuery, names: Sequence[str], *, is_each: bool
) -> tuple[str, list[str]]:
    """Write a query over a table, in each folder or one, and what a person must look at."""
    source, columns = table
    notes: list[str] = []
    select = ", ".join(f"{sql}::VARCHAR AS {sql_name(c)}" for c, sql in columns.items())
    sample = guesses.query_result(folder, file, f"SELECT {select} FROM {source} t LIMIT {_SAMPLE}")
    cells = sample.to_pydict()
    values = {c: [cell for cell in cells.get(c, []) if cell is not None] for c in columns}
    beside, times = Path(file).parent, guesses.time_columns(columns)
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
    outcome_lines, unknown_words = _outcome_lines(matched, columns, values)
    lines += outcome_lines
    notes += unknown_words
    for ours, theirs in matched.items():
        if ours in ("compiled", "correct", "outcome"):  # written by _outcome_lines
            continue
        is_guess = ours == "problem" and "problem" not in guesses.words_of(theirs)
        remark = "  -- LOOK: is this the problem?" if is_guess else ""
        level = _level(values) if ours == "problem" else None
        cell = f"concat_ws('_', 'level', {columns[level]}, {columns[theirs]})" if level else ""
        lines.append(f"{cell or columns[theirs]} AS {ours},{remark}")
    text = "\n".join([*lines, *joins])
    keys = (guesses.OBJECT_KEY_SQL, guesses.PLACE_SQL)
    free = {c: values[c] for c, sql in columns.items() if sql not in text and sql not in keys}
    notes += _lacking(found, free)
    if free:
        unused = ", ".join(printable(c, 40) for c in [*free][:40])
        notes.append(f"nothing is read from these columns: {unused}")
    # Of a CSV file the header is row 1; of nested JSON lines each item has the line around it.
    head = " + 1" if "read_csv" in source else ""
    line = "source_line" if "AS source_line" in source else "source_row"
    if line == "source_line" and "node_id" not in matched:
        lines.append("'row-' || t.source_row AS node_id,")
    query = [
        "-- Written by kernel-archive init from the names of the columns: read it first.",
        *(f"-- LOOK: {note}" for note in notes),
        "SELECT",
        *(f"  {line}" for line in lines),
        "  getvariable('file') AS source_file,",
        f"  t.{line} AS source_row",
        f"FROM (SELECT *, row_number() OVER (){head} AS source_row FROM {source}) t",
        *joins,
        "ORDER BY t.source_row",
    ]
    query_text = "\n".join(query) + "\n"
    if not is_below:
        # Nothing above the matched file is read, and a program lies there: the folder is the match.
        query_text = query_text.replace("getvariable('file')", "'" + file.replace("'", "''") + "'")
    return query_text, notes


def _placed(
    values: dict[str, list[str]], names: Sequence[str], beside: Path
) -> tuple[dict[str, str], dict[str, guesses.FileColumn]]:
    """Map columns of ours to theirs, and to those that name files."""
    matched = guesses.matched_columns(values)
    kernel = matched.get("code", "")
    if kernel.rpartition(".")[2] == "kernel" and not any("\n" in text for text in values[kernel]):
        # It holds names, not texts.
        matched = {"problem": kernel, **guesses.matched_columns(c for c in values if c != kernel)}
    # Of files of one name those beside the table count, the last of the list.
    ordered = sorted(names, key=lambda name: Path(name).is_relative_to(beside))
    in_files = guesses.file_columns(values, matched, ordered)
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
    numbers = [c for c, cells in free.items() if cells and all(map(_NUMERAL.fullmatch, cells))]
    texts = [c for c in free if guesses.WORDS["no_name"].isdisjoint(guesses.words_of(c))]
    texts = sorted({*texts} - {*numbers}, key=lambda c: (sum(map(len, free[c])), c))
    likely = [c for c in texts if not guesses.WORDS["problem"].isdisjoint(guesses.words_of(c))]
    nearest = {"problem": [*likely, *texts][:1], "code": texts[-1:], "speedup": numbers[:1]}
    for column, lack in guesses.KNOWN["lacks"].items():
        if column not in found:
            asked = (f". Is it the column {printable(c, 60)}?" for c in nearest[column])
            yield lack + "".join(asked)


def _outcome_lines(
    matched: dict[str, str], columns: dict[str, str], values: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Write the outcome, from columns that say true and false or in words; note unknown words."""
    cases, notes, errors = list[str](), list[str](), guesses.error_columns(columns, values)
    for ours, failure in (("compiled", "compile_failed"), ("correct", "incorrect")):
        if (theirs := matched.get(ours)) is not None:
            no = f"WHEN lower({columns[theirs]}::VARCHAR) {_NO}"
            cases += guesses.by_error(no, errors) if ours == "correct" else []
            cases.append(f"{no} THEN '{failure}'")
    last = "'success'"
    if (theirs := matched.get("outcome")) is not None:
        last = f"{columns[theirs]}::VARCHAR"
        for word in sorted(set(values[theirs]))[:20]:
            outcome = "success" if _PASSED.fullmatch(word.strip()) else guesses.failure_of(word)
            if outcome is not None:
                quote = word.replace("'", "''")
                if _FAILED.fullmatch(word):
                    cases += guesses.by_error(f"WHEN {last} = '{quote}'", errors)
                cases.append(f"WHEN {last} = '{quote}' THEN '{outcome}'")
                continue
            notes.append(
                f"what {printable(word, 40)} of {printable(theirs, 40)} means is not known: "
                "its rows are left out"
            )
    if not cases:
        return [], notes
    lines = ["CASE", *(f"  {case}" for case in cases), f"  ELSE {last} END AS outcome,"]
    if errors and "error_text" not in matched:
        lines.append(f"coalesce({', '.join(errors.values())}) AS error_text,")
    return lines, notes
