"""A check of builders that promise programs written one by one: a program's text must not give away how fast it is.

A builder whose recipe says ``natural`` promises programs that somebody wrote whole, one by one, wanting them to work.
Three things would break the promise and can be seen from the archive: words in comments and names that tell the speed,
evaluation rows with patterns that only lose time, and length or comments that go with speed within a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.errors import Finding
from kernel_archive.program_text import telling_words
from kernel_archive.splits import SPLITS
from kernel_archive.text_quantities import quantities

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kernel_archive.archive.open import Archive

#: Largest rank correlation of a quantity of the text with the speedup, within a task of an evaluation split.
LARGEST_RANK: Final = 0.25
#: The quantities of :func:`~kernel_archive.text_quantities.quantities` that are held against it.
AUDITED: Final = ("characters", "lines", "comment_characters")
#: Rows from which a rank correlation says something: below, chance alone passes 0.25 every other time.
LEAST_ROWS: Final = 40


def natural_faults(archive: Archive) -> Iterator[Finding]:
    """What is wrong with the archive's natural programs; nothing for an archive without such builders."""
    natural = [str(builder["name"]) for builder in archive.manifest.builders if builder.get("natural")]
    if not natural:
        return
    yield from _told(archive, natural)
    for split in SPLITS.values():
        facts = archive.manifest.splits.get(split.table)
        open_labels = facts is not None and facts.origin != "withheld"
        if split.kind == "eval" and facts is not None and open_labels and facts.parameters.get("natural"):
            yield from _patterns(archive, split.table)
            yield from _ranks(archive, split.table)


def _told(archive: Archive, natural: Sequence[str]) -> Iterator[Finding]:
    marks = ", ".join("?" for _ in natural)
    for table in ("kernels", "failures"):
        query = (
            f"SELECT kernel_id, code FROM {table} WHERE split_part(search_id, '/', 1) IN ({marks}) ORDER BY kernel_id"
        )
        for row in archive.sql(query, list(natural)).to_pylist():
            words = telling_words(row["code"])
            if words:
                yield Finding(
                    code="telling-word",
                    message=f"{row['kernel_id']}: a comment or name says how fast the program is or is meant to be",
                    field=f"{table}.code",
                    value=", ".join(words),
                    fix="Exclude it in the recipe: it gives its label away",
                )


def _patterns(archive: Archive, table: str) -> Iterator[Finding]:
    query = f"""SELECT e.row_id, flag
                FROM {table} e JOIN (SELECT kernel_id, unnest(flags) AS flag FROM kernels) k USING (kernel_id)
                WHERE flag IN ('artificial', 'unfit') ORDER BY ALL"""
    for row_id, flag in zip(*archive.sql(query).to_pydict().values(), strict=True):
        yield Finding(
            code=f"{flag}-row",
            message=f"the program is none to ask about: the archive has the flag {flag} for it",
            field=f"{table}.row_id",
            value=row_id,
            fix=f'Make the split by a definition that names it: exclude_flags = ["{flag}"]',
        )


def _ranks(archive: Archive, table: str) -> Iterator[Finding]:
    rows = archive.sql(f"SELECT task, language, speedup, candidate_code FROM {table} ORDER BY row_id").to_pylist()
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["language"]), []).append(row)
    for (task, language), members in sorted(groups.items()):
        if len(members) < LEAST_ROWS:
            continue
        speedups = np.array([row["speedup"] for row in members])
        texts = [quantities(row["candidate_code"], AUDITED) for row in members]
        for name in AUDITED:
            found = rank_correlation(np.array([text[name] for text in texts]), speedups)
            if abs(found) > LARGEST_RANK:
                yield Finding(
                    code="telling-length",
                    message=f"{name.replace('_', ' ')} go with the speedup of {task} in {language} (Spearman, {len(members)} rows)",
                    field=table,
                    value=f"{found:+.2f}",
                    severity="warning",
                    fix=f"More programs whose length says nothing: at most {LARGEST_RANK} either way",
                )


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's rank correlation, ties by their mean rank; 0 where one of the two is constant."""
    import polars as pl

    found = pl.DataFrame({"a": a, "b": b}).select(pl.corr("a", "b", method="spearman")).item()
    return 0.0 if found is None or np.isnan(found) else float(found)
