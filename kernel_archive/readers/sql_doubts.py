"""What is doubted of the rows of an ``sql`` source, and which count: SQL over the query's answer.

A doubt is one finding about all rows that it concerns. A row that contradicts itself counts only in
``evaluations``, with the reason; a row that says too little is left out. The doubts are data:
``sql_judged.sql`` and ``sql_doubts.toml``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from kernel_archive.databases import memory_database
from kernel_archive.errors import Finding, counted, printable
from kernel_archive.gpus import same_gpu
from kernel_archive.toml_files import toml_beside

#: Columns that a query may return -> their type in DuckDB, and what each means.
COLUMNS: Final[dict[str, list[str]]] = toml_beside(__file__, "sql_columns.toml")
_ROWS_NAMED: Final = 5  # in one finding
_MEMORY: Final = "4GiB"
#: What is doubted of which rows, in SQL over ``judged``.
_DOUBTS: Final[list[dict[str, Any]]] = toml_beside(__file__, "sql_doubts.toml")["doubt"]


class Judge:
    """The judged rows of one answer; ``file_of`` names the file of a row, or the run."""

    def __init__(self, answer: pa.Table, file_of: Callable[[str | None], str]) -> None:
        self._file_of = file_of
        self._columns = [name for name in COLUMNS if name in answer.column_names]
        self._connection = memory_database(threads=1, memory_limit=_MEMORY)
        self._judge_rows(answer)
        #: What was doubted, each once; where no row counts, that is the last one.
        self.findings = [*self._bad_values()]
        self.findings += [finding for doubt in _DOUBTS for finding in self._doubted(doubt)]
        refusal = self._refusal()
        self.refused = refusal is not None  # whether no row counts
        if refusal is not None:
            self.findings.append(refusal)

    def _judge_rows(self, answer: pa.Table) -> None:
        """Make the tables of ``sql_judged.sql`` for the columns that the answer has."""
        text, truth = duckdb.sqltypes.VARCHAR, duckdb.sqltypes.BOOLEAN
        self._connection.create_function("same_gpu", same_gpu, [text, text], truth)
        self._connection.register("answer", answer)
        both_times = {"runtime_us", "reference_runtime_us"} <= {*self._columns}
        self._connection.execute("SET VARIABLE has_outcome = ?", ["outcome" in self._columns])
        self._connection.execute("SET VARIABLE both_times = ?", [both_times])
        values = []
        for name, (kind, _) in COLUMNS.items():
            cell = name if name in self._columns else "NULL"
            is_whole = kind in ("INTEGER", "BIGINT")
            cell = f"TRY_CAST({cell} AS DOUBLE)" if is_whole else cell
            values.append(f"TRY_CAST({cell} AS {kind}) AS {name}")
        lists = {
            "{cells}": [f'cell("{name}") AS {name}' for name in self._columns],
            "{values}": values,
            "{others}": [n for n in COLUMNS if n not in ("code", "source_file", "source_row")],
        }
        script = Path(__file__).with_name("sql_judged.sql").read_text(encoding="utf-8")
        for name, parts in lists.items():
            script = script.replace(name, ", ".join(parts))
        self._connection.execute(script)

    def _fetch_all(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    def _refusal(self) -> Finding | None:
        """Return the finding that no row counts, if that follows from rows and findings."""
        total, counting = self._fetch_all(
            "SELECT count(*), count(*) FILTER (left_out IS NULL AND excluded IS NULL) FROM judged"
        )[0]
        has_errors = any(finding.severity == "error" for finding in self.findings)
        has_bad_baseline = any(finding.code == "bad-baseline" for finding in self.findings)
        if not (has_bad_baseline or not total or (has_errors and not counting)):
            return None
        message = f"none of {counted(total, 'row')} counts" if total else "the query returns no row"
        fix = "Correct the query: see above, and what its joins and WHERE leave"
        fix += "" if total else "; or let path match only files that hold results"
        where: dict[str, Any] = {"file": self._file_of(None), "field": "query", "fix": fix}
        return Finding(code="nothing-counts", message=message, **where)

    def _doubted(self, doubt: dict[str, Any]) -> Iterator[Finding]:
        """Yield the finding of a doubt, if it concerns any row."""
        facts = {key: doubt[key] for key in ("code", "severity", "field")}
        n_rows, file, line, rows, message = self._fetch_all(
            f"""SELECT count(*), arg_min(source_file, row_n), arg_min(source_row, row_n),
                       list(coalesce(source_row, row_n) ORDER BY row_n)[:{_ROWS_NAMED}],
                       arg_min(said, row_n)
                FROM (SELECT *, {doubt["says"]} AS said FROM judged WHERE {doubt["rows"]})"""
        )[0]
        if not n_rows:
            return
        if n_rows > 1:
            listed = ", ".join(map(str, rows)) + (", ..." if n_rows > len(rows) else "")
            message = f"{message}: {n_rows:,} rows ({listed})"
        where = {"file": self._file_of(file), "line": line, "fix": doubt.get("fix")}
        yield Finding(message=printable(message, 500), **facts, **where)

    def _bad_values(self) -> Iterator[Finding]:
        """Yield a finding for each column with cells that are no number, or no true or false."""
        for name in (name for name in self._columns if COLUMNS[name][0] != "VARCHAR"):
            n_cells, file, first, value = self._fetch_all(
                f"""SELECT count(*), arg_min(given.source_file, row_n),
                           arg_min(coalesce(given.source_row, row_n), row_n),
                           arg_min(cells.{name}, row_n)
                    FROM cells JOIN given USING (row_n)
                    WHERE given.{name} IS NULL AND cells.{name} IS NOT NULL"""
            )[0]
            if n_cells:
                kinds = {"DOUBLE": "number", "BOOLEAN": "true or false"}
                kind = kinds.get(COLUMNS[name][0], "whole number")
                yield Finding(
                    code="bad-value",
                    severity="warning",
                    message=f"no {kind} in {counted(n_cells, 'cell')}, first in row {first}",
                    file=self._file_of(file),
                    field=name,
                    value=printable(value, 60),
                    fix="They count as missing",
                )

    def counts(self) -> Counter[str]:
        """Count the rows, and those that are left out, by the reason."""
        reasons = dict(
            self._fetch_all("SELECT left_out, count(*) FROM judged GROUP BY ALL ORDER BY ALL")
        )
        counts = Counter(rows=sum(reasons.values()))
        for reason, n_rows in reasons.items():
            if reason is not None:
                counts["rows_left_out"] += n_rows
                counts[f"rows_{reason.replace('-', '_')}"] = n_rows
        return counts

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of an evaluation for each row that is not left out, in order."""
        reader = self._connection.sql("SELECT * FROM evaluation").to_arrow_reader(1000)
        for batch in reader:
            yield from batch.to_pylist()
