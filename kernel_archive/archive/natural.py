"""A check of builders that promise natural programs: a text must not tell how fast it is.

A builder whose recipe says ``natural`` promises programs that somebody wrote whole, one by one,
wanting them to work. Three breaches can be seen in the archive: words in comments and names that
tell the speed, evaluation rows that a flag makes unfit to be asked about, and texts whose length
goes with the speedup within a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kernel_archive.errors import Finding
from kernel_archive.program_text import telling_words
from kernel_archive.splits import SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike

    from kernel_archive.archive.open import Archive

#: Warn about a larger rank correlation of a text's quantity with the speedup, within a task.
LARGEST_RANK: Final = 0.25
#: Skip tasks with fewer rows: there chance alone passes 0.25 every other time.
LEAST_ROWS: Final = 40


def natural_faults(archive: Archive) -> Iterator[Finding]:
    """Find breaches of the promise; nothing in an archive whose builders don't promise it."""
    builders = [str(b["name"]) for b in archive.manifest.builders if b.get("natural")]
    if not builders:
        return
    yield from _telling_words(archive, builders)
    for split in SPLITS.values():
        facts = archive.manifest.splits.get(split.table)
        if split.kind != "eval" or facts is None or facts.origin == "withheld":
            continue
        if facts.parameters.get("natural"):
            yield from _flagged_rows(archive, split.table)
            yield from _telling_lengths(archive, split.table)


def _telling_words(archive: Archive, builders: Sequence[str]) -> Iterator[Finding]:
    for table in ("kernels", "failures"):
        query = f"""SELECT kernel_id, code FROM {table}
                    WHERE list_contains(?, split_part(search_id, '/', 1)) ORDER BY kernel_id"""
        for row in archive.sql(query, [list(builders)]).to_pylist():
            words = telling_words(row["code"])
            if words:
                yield Finding(
                    code="telling-word",
                    message=f"{row['kernel_id']}: a comment or name says how fast the program is",
                    field=f"{table}.code",
                    value=", ".join(words),
                    fix="Exclude it in the recipe: it gives its label away",
                )


def _flagged_rows(archive: Archive, table: str) -> Iterator[Finding]:
    query = f"""SELECT row_id, flag
                FROM {table} JOIN (SELECT kernel_id, unnest(flags) AS flag FROM kernels)
                    USING (kernel_id)
                WHERE flag IN ('artificial', 'unfit') ORDER BY ALL"""
    for row in archive.sql(query).to_pylist():
        flag = row["flag"]
        yield Finding(
            code=f"{flag}-row",
            message=f"the program is unfit to be asked about: it has the flag {flag}",
            field=f"{table}.row_id",
            value=row["row_id"],
            fix=f'Make the split by a definition that names it: exclude_flags = ["{flag}"]',
        )


def _telling_lengths(archive: Archive, table: str) -> Iterator[Finding]:
    columns = ["row_id", "task", "language", "speedup", "candidate_code"]
    rows = archive.polars(table, columns=columns).sort("task", "language", "row_id")
    for (task, language), part in rows.group_by("task", "language", maintain_order=True):
        if len(part) < LEAST_ROWS:
            continue
        texts = part["candidate_code"]
        lengths = {
            "characters": texts.str.len_chars(),
            "lines": texts.str.count_matches(r"(?m)^.*\S"),
        }
        for quantity, values in lengths.items():
            correlation = rank_correlation(values, part["speedup"])
            if abs(correlation) > LARGEST_RANK:
                yield Finding(
                    code="telling-length",
                    message=f"{quantity} go with the speedup of {task} in {language} "
                    f"(Spearman, {len(part)} rows)",
                    field=table,
                    value=f"{correlation:+.2f}",
                    severity="warning",
                    fix=f"Add programs until it is at most {LARGEST_RANK} either way",
                )


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float:
    """Compute Spearman's rank correlation, ties by mean rank; 0 where one side is constant."""
    frame = pl.DataFrame({"a": a, "b": b})
    return float(frame.select(pl.corr("a", "b", method="spearman").fill_nan(0).fill_null(0)).item())
