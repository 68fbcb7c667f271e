"""The SQL that decides what a kernel is, its label, its flags, what is excluded and what is held out.

Each query makes the table that it is named after, from those before it. :data:`FACTS` are what must be known of the whole archive
at once. All others hold for any part of it that has every evaluation of its programs and of those with the same tokens: that is how
:mod:`kernel_archive.archive.merge` cuts a large one.

They read tables that the merge provides: ``fragment`` (rows of fragments), ``succession`` (pairs of builders, newer and
older), ``unanimous`` (builders); and, from :data:`KERNELS` on, ``edge`` (kernels whose measurements lie in different bins).
"""

from __future__ import annotations

from typing import Final

from kernel_archive.archive.labels import (
    CONTESTED,
    DRIFT_RATIO,
    FLAGS,
    IMPLAUSIBLE_SPEEDUP,
    SUPERSEDED,
    UNSTABLE_RATIO,
    WITHHELD,
)

# What counts for the label; and what found the program, also where its measurement was superseded or contested.
_GOOD: Final = "(outcome = 'success' AND excluded IS NULL)"
_FOUND: Final = f"(outcome = 'success' AND (excluded IS NULL OR excluded IN ('{SUPERSEDED}', '{CONTESTED}')))"
# A verdict on the program, good or bad; a success that its recipe excludes is a bad one.
_JUDGED: Final = "(outcome <> 'infrastructure_failure')"
# Which evaluation of a program comes first.
_ORDER: Final = "role_rank, search_id, seq"
_WITHHELD_KERNEL: Final = "NOT (held_out OR kept)"

#: Times of the reference: each case of each success.
TIMES: Final = """
    SELECT evaluation_id, problem, reference_id, gpu, coalesce(c.shape, i::VARCHAR) AS shape, c.us AS us
    FROM (SELECT * EXCLUDE (times), unnest(times) AS c, generate_subscripts(times, 1) AS i
          FROM (SELECT evaluation_id, problem, reference_id, gpu,
                       CASE WHEN len(cases) > 0
                            THEN list_transform(cases, lambda c: {'shape': c.shape, 'us': c.reference_runtime_us})
                            ELSE [{'shape': 'whole', 'us': reference_runtime_us}] END AS times
                FROM fragment WHERE outcome = 'success'))
    WHERE c.us > 0"""
#: What of a source's evaluations says whether only survivors of it are left.
SOURCES: Final = """
    SELECT source_key, count(*) FILTER (outcome <> 'success') AS failures, min(speedup) AS least
    FROM fragment GROUP BY source_key"""
#: Reference times that are off, of evaluations of ``fragment``.
DRIFTED: Final = f"""
    SELECT DISTINCT evaluation_id FROM reference_time JOIN reference_median USING (problem, reference_id, gpu, shape)
    WHERE us / median > {DRIFT_RATIO} OR us / median < 1.0 / {DRIFT_RATIO}"""
#: Evaluations without texts and cases.
LOGGED: Final = """
    SELECT evaluation_id, kernel_id, program_id, token_id, problem, gpu, reference_id, search_id, seq, source_key, builder,
           role, CASE role WHEN 'held_out' THEN 0 WHEN 'training' THEN 1 ELSE 2 END AS role_rank,
           outcome, speedup, excluded, artificial, narrow_domain,
           evaluation_id IN (SELECT evaluation_id FROM drifted) AS drifted
    FROM fragment"""

#: What must be known of the whole archive: the reference's median time of every case, and sources of survivors only.
FACTS: Final = {
    "reference_median": """
        SELECT problem, reference_id, gpu, shape, median(us) AS median FROM reference_time
        GROUP BY problem, reference_id, gpu, shape""",
    "survivors": """
        SELECT source_key FROM source GROUP BY source_key HAVING sum(failures) = 0 AND min(least) >= 1""",
}

#: What every evaluation counts for, and what the measurements of a kernel come to.
EVALUATIONS: Final = {
    # All pairs of builders are looked up before any row changes: a chain of builders has one outcome.
    "superseded": f"""
        SELECT DISTINCT e.evaluation_id
        FROM logged e JOIN succession s ON s.older = e.builder
        JOIN (SELECT DISTINCT kernel_id, builder FROM logged WHERE {_JUDGED}) n
          ON n.builder = s.newer AND n.kernel_id = e.kernel_id
        WHERE e.outcome = 'success' AND e.excluded IS NULL""",
    "current": f"""
        SELECT * REPLACE (CASE WHEN evaluation_id IN (SELECT evaluation_id FROM superseded) THEN '{SUPERSEDED}'
                               ELSE excluded END AS excluded)
        FROM logged""",
    # A refusal, like a success that its recipe excludes, contests the successes beside it, unless a builder that
    # supersedes its own has judged the kernel, or its recipe excludes it.
    "contested": f"""
        SELECT DISTINCT kernel_id, builder FROM current
        WHERE {_JUDGED} AND (outcome = 'success') = (excluded IS NOT NULL)
          AND (kernel_id, builder) NOT IN (
              SELECT (e.kernel_id, s.older) FROM current e JOIN succession s ON s.newer = e.builder WHERE {_JUDGED})""",
    "evaluation": f"""
        SELECT * REPLACE (CASE WHEN {_GOOD} AND builder IN (SELECT builder FROM unanimous)
                                    AND (kernel_id, builder) IN (SELECT (kernel_id, builder) FROM contested)
                               THEN '{CONTESTED}' ELSE excluded END AS excluded)
        FROM current""",
    # The median measurement, of an even number the lower middle one: a label is what was measured, with its own times.
    "measured": f"""
        SELECT * EXCLUDE (sorted), sorted[(n_measurements + 1) // 2] AS speedup
        FROM (
            SELECT kernel_id, any_value(program_id) AS program_id, any_value(token_id) AS token_id,
                   any_value(problem) AS problem, any_value(reference_id) AS reference_id, any_value(gpu) AS gpu,
                   list_sort(list(speedup)) AS sorted, count(*)::INTEGER AS n_measurements,
                   min(speedup) AS speedup_min, max(speedup) AS speedup_max,
                   bool_or(artificial) AS artificial, bool_or(narrow_domain) AS narrow_domain,
                   kernel_id IN (SELECT kernel_id FROM evaluation WHERE role = 'held_out' AND {_FOUND}) AS held_out
            FROM evaluation WHERE {_GOOD} GROUP BY kernel_id)""",
}

#: Kernels and failures: which evaluation found each program, and which gives its label or its outcome.
KERNELS: Final = {
    "first_found": f"""
        SELECT kernel_id, search_id, seq FROM evaluation WHERE {_FOUND}
        QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY {_ORDER}) = 1""",
    "nearest_to_median": f"""
        SELECT e.kernel_id, e.search_id AS label_search, e.seq AS label_seq
        FROM evaluation e JOIN measured m USING (kernel_id) WHERE {_GOOD}
        QUALIFY row_number() OVER (PARTITION BY e.kernel_id ORDER BY abs(e.speedup - m.speedup), {_ORDER}) = 1""",
    "kernel": f"""
        SELECT m.*, f.search_id, f.seq, n.label_search, n.label_seq,
               (m.held_out OR NOT (m.program_id IN (SELECT program_id FROM measured WHERE held_out)
                                   OR m.token_id IN (SELECT token_id FROM measured WHERE held_out))) AS kept,
               m.kernel_id IN (SELECT kernel_id FROM contested) AS contested,
               m.kernel_id IN (SELECT kernel_id FROM edge) AS edge,
               m.speedup > {IMPLAUSIBLE_SPEEDUP} AS implausible_speedup,
               count(*) OVER (PARTITION BY m.problem, m.reference_id, m.gpu, m.token_id) > 1 AS near_duplicate,
               m.kernel_id IN (SELECT kernel_id FROM evaluation WHERE drifted AND {_GOOD})
                   AS reference_drift,
               m.kernel_id IN (SELECT kernel_id FROM evaluation JOIN survivors USING (source_key) WHERE {_GOOD})
                   AS survivor_source,
               m.speedup_max > {UNSTABLE_RATIO} * m.speedup_min AS unstable
        FROM measured m JOIN first_found f USING (kernel_id) JOIN nearest_to_median n USING (kernel_id)""",
    "refused": f"""
        SELECT kernel_id, search_id AS label_search, seq AS label_seq,
               count(*) OVER (PARTITION BY kernel_id)::INTEGER AS n_evaluations
        FROM evaluation
        WHERE excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM measured)
          -- A driver's failure says nothing about a program that passed and was excluded.
          AND ({_JUDGED} OR kernel_id NOT IN (SELECT kernel_id FROM evaluation WHERE outcome = 'success'))
        QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY outcome = 'infrastructure_failure', {_ORDER}) = 1""",
    # What found the program: mostly what refused it, else a success that does not count.
    "failure": f"""
        SELECT r.*, e.search_id, e.seq FROM refused r JOIN evaluation e USING (kernel_id)
        QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY outcome = 'infrastructure_failure', {_ORDER}) = 1""",
}

_FLAG_LIST: Final = ", ".join(f"CASE WHEN {flag.name} THEN '{flag.name}' END" for flag in FLAGS)


def _kernel_rows(condition: str) -> str:
    return f"""
        SELECT kernel_id, program_id, token_id, problem, reference_id, gpu, speedup, n_measurements, speedup_min,
               speedup_max, search_id, seq, label_search, label_seq,
               list_filter([{_FLAG_LIST}], lambda x: x IS NOT NULL) AS flags
        FROM kernel WHERE {condition} ORDER BY search_id, seq"""


#: What the writers of the large splits are handed, in the order of the rows; the longest split to write comes first.
SPLIT_ROWS: Final = {
    ("kernels", "test"): _kernel_rows("held_out"),
    ("evaluations", "train"): f"""
        SELECT evaluation_id, excluded AS reason, search_id FROM evaluation
        WHERE excluded IN ('{SUPERSEDED}', '{CONTESTED}')
        UNION ALL
        SELECT evaluation_id, '{WITHHELD}', search_id FROM evaluation
        WHERE excluded IS NULL AND kernel_id IN (SELECT kernel_id FROM kernel WHERE {_WITHHELD_KERNEL})""",
    ("failures", "train"): """
        SELECT kernel_id, n_evaluations, search_id, seq, label_search, label_seq FROM failure ORDER BY search_id, seq""",
    ("kernels", "train"): _kernel_rows("kept AND NOT held_out"),
}

#: Counts for the manifest: one number each.
REPORT: Final = {
    "contested_evaluations": f"SELECT count(*) FROM evaluation WHERE excluded = '{CONTESTED}'",
    "excluded_evaluations": f"SELECT count(*) FROM evaluation WHERE excluded NOT IN ('{SUPERSEDED}', '{CONTESTED}')",
    "superseded_evaluations": "SELECT count(*) FROM superseded",
    "remeasured_kernels": "SELECT count(*) FROM kernel WHERE n_measurements > 1",
    "withheld_from_train": f"SELECT count(*) FROM kernel WHERE {_WITHHELD_KERNEL}",
    **{flag.name: f"SELECT count(*) FROM kernel WHERE {flag.name} AND (held_out OR kept)" for flag in FLAGS},
}
