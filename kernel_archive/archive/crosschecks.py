"""Cross-references between the tables, as queries: each returns the keys of the rows that break its rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.labels import CONTESTED, SUPERSEDED, WITHHELD

if TYPE_CHECKING:
    from collections.abc import Iterable


class CrossCheck(msgspec.Struct, frozen=True):
    """One rule: the finding's code, what is wrong, the table whose rows are named, and the query that finds them."""

    code: str
    message: str
    table: str
    query: str


def _unknown(table: str, key: str, column: str, target: str) -> CrossCheck:
    return CrossCheck(
        f"unknown-{column.removesuffix('_id')}",
        f"{column} is not in {target}",
        table,
        f"""SELECT {key} FROM {table}
            WHERE {column} <> '' AND {column} NOT IN (SELECT {column} FROM "{target}")""",
    )


CROSS_CHECKS: Final[tuple[CrossCheck, ...]] = (
    _unknown("kernels", "kernel_id", "search_id", "searches"),
    _unknown("failures", "kernel_id", "search_id", "searches"),
    _unknown("evaluations", "evaluation_id", "search_id", "searches"),
    _unknown("kernels", "kernel_id", "reference_id", "references"),
    _unknown("kernels", "kernel_id", "gpu", "gpus"),
    CrossCheck(
        "lost-evaluation",
        "a success that counts is in no kernel",
        "evaluations",
        """SELECT evaluation_id FROM evaluations
           WHERE outcome = 'success' AND excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM kernels)""",
    ),
    CrossCheck(
        "lost-evaluation",
        "a failure is in neither kernels nor failures",
        "evaluations",
        """SELECT evaluation_id FROM evaluations
           WHERE outcome <> 'success' AND excluded IS NULL
             AND kernel_id NOT IN (SELECT kernel_id FROM kernels UNION ALL SELECT kernel_id FROM failures)
             AND kernel_id NOT IN (SELECT kernel_id FROM evaluations WHERE excluded IS NOT NULL)""",
    ),
    CrossCheck(
        "success-without-speedup",
        "outcome and speedup contradict each other",
        "evaluations",
        """SELECT evaluation_id FROM evaluations
           WHERE (outcome = 'success') <> (speedup IS NOT NULL AND speedup > 0 AND isfinite(speedup))""",
    ),
    CrossCheck(
        "kernel-and-failure",
        "stands in kernels and in failures",
        "kernels",
        "SELECT kernel_id FROM kernels WHERE kernel_id IN (SELECT kernel_id FROM failures)",
    ),
    CrossCheck(
        "unmeasured-kernel",
        "has no successful evaluation that counts",
        "kernels",
        f"""SELECT kernel_id FROM kernels WHERE kernel_id NOT IN (
                SELECT kernel_id FROM evaluations
                WHERE outcome = 'success' AND (excluded IS NULL OR excluded = '{WITHHELD}'))""",
    ),
    CrossCheck(
        "wrong-median",
        "speedup, its extremes or their number are not those of the evaluations",
        "kernels",
        """WITH m AS (
               SELECT kernel_id, list_sort(list(speedup)) AS s FROM evaluations
               WHERE outcome = 'success' AND excluded IS NULL GROUP BY kernel_id)
           SELECT kernel_id FROM kernels JOIN m USING (kernel_id)
           WHERE n_measurements <> len(s) OR speedup_min <> s[1] OR speedup_max <> s[-1]
              OR speedup <> s[(len(s) + 1) // 2]""",
    ),
    CrossCheck(
        "split-overlap",
        "program or near duplicate is in train and in test",
        "kernels",
        """SELECT kernel_id FROM kernels
           WHERE split = 'train' AND (program_id IN (SELECT program_id FROM kernels WHERE split = 'test')
                                      OR token_id IN (SELECT token_id FROM kernels WHERE split = 'test'))""",
    ),
    CrossCheck(
        "wrong-split",
        "test holds what held-out searches measured, and nothing else",
        "kernels",
        f"""SELECT kernel_id FROM kernels WHERE (split = 'test') <> (kernel_id IN (
                SELECT e.kernel_id FROM evaluations e JOIN searches s USING (search_id)
                WHERE s.role = 'held_out' AND e.outcome = 'success'
                  AND (e.excluded IS NULL OR e.excluded IN ('{SUPERSEDED}', '{CONTESTED}'))))""",
    ),
    CrossCheck(
        "unknown-parent",
        "parent_kernel_id is in no table",
        "kernels",
        """SELECT kernel_id FROM kernels
           WHERE parent_kernel_id IS NOT NULL AND parent_kernel_id NOT IN (SELECT kernel_id FROM evaluations)""",
    ),
    CrossCheck(
        "no-provenance",
        "source_file and source_line name no evaluation of this kernel",
        "kernels",
        """SELECT k.kernel_id FROM kernels k WHERE NOT EXISTS (
               SELECT 1 FROM evaluations e
               WHERE e.kernel_id = k.kernel_id AND e.source_file = k.source_file
                 AND e.source_line IS NOT DISTINCT FROM k.source_line)""",
    ),
)


# What contests a success beside it: a refusal, or a success that its recipe excludes.
_REFUSED = f"""SELECT (kernel_id, builder) FROM evaluations
               WHERE (outcome NOT IN ('success', 'infrastructure_failure') AND coalesce(excluded, '{WITHHELD}') = '{WITHHELD}')
                  OR (outcome = 'success' AND excluded NOT IN ('{CONTESTED}', '{SUPERSEDED}', '{WITHHELD}'))"""


def unanimity_checks(builders: Iterable[str]) -> tuple[CrossCheck, ...]:
    """Rules of the builders whose recipe is ``unanimous``, and of all others."""
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in builders) or "NULL"
    return (
        CrossCheck(
            "label-despite-refusal",
            "counts although its builder is unanimous and another of its measurements of this program failed",
            "evaluations",
            f"""SELECT evaluation_id FROM evaluations
                WHERE outcome = 'success' AND (excluded IS NULL OR excluded = '{WITHHELD}') AND builder IN ({names})
                  AND (kernel_id, builder) IN ({_REFUSED})""",
        ),
        CrossCheck(
            "contested-by-nothing",
            "is contested, but its builder is not unanimous or has refused nothing",
            "evaluations",
            f"""SELECT evaluation_id FROM evaluations
                WHERE excluded = '{CONTESTED}'
                  AND ((builder IN ({names})) IS NOT TRUE OR (kernel_id, builder) NOT IN ({_REFUSED}))""",
        ),
    )
