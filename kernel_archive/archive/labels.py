"""What a kernel is, its label and its flags, what is excluded and what is held out: the reasons, the flags, and the SQL that decides.

A reason takes a measurement out of every table but ``evaluations``. A flag never drops a row; a split definition may.

Each query makes the table that it is named after, from those before it. :data:`MEDIANS` and :data:`SURVIVORS` must be known of the
whole archive at once. All others hold for any part of it that has every evaluation of its programs and of those with the same tokens: that is how
:mod:`kernel_archive.archive.merge` cuts a large one.

They read the table ``fragment`` (rows of fragments), which the merge provides; and those that :func:`decide` makes of the rules:
``succession`` (pairs of builders, newer and older), ``unanimous`` (builders), ``unfit_program`` (programs),
``edge`` (kernels with measurements in different bins).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from kernel_archive.bins import Scheme, assign_bins

if TYPE_CHECKING:
    import duckdb

#: Reason in ``evaluations.excluded`` of training measurements whose program is held out.
WITHHELD: Final = "withheld from train: the program or a near duplicate of it is in test"
#: Reason in ``evaluations.excluded`` of measurements whose kernel a newer builder judged again, even if its verdict is a failure.
SUPERSEDED: Final = "superseded: measured again by a builder that supersedes this one"
#: Reason in ``evaluations.excluded`` of successes that another measurement contradicts (``unanimous`` recipes).
CONTESTED: Final = "contested: another measurement of this program by the same builder failed or is excluded"
#: Successes that found their program and do not count for its label.
OVERRULED: Final = frozenset({SUPERSEDED, CONTESTED})

#: The reference's time for a case may be off its median by this factor, either way.
DRIFT_RATIO: Final = 1.25
#: Largest over smallest repeat measurement of one kernel.
UNSTABLE_RATIO: Final = 1.10
#: A speedup above this is not believed without a look.
IMPLAUSIBLE_SPEEDUP: Final = 100.0


class Flag(msgspec.Struct, frozen=True):
    """One audit flag."""

    name: str  # as kernels.flags has it, and the column of the merge that says whether a kernel has it
    rule: str  # when a kernel has it
    why: str  # why it matters
    worst: str  # SQL order in which the audit lists examples


FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        "artificial",
        "the program has a pattern that only loses time: 64-bit floats where the reference has none, waiting, sorting where "
        "nothing is ordered, single numbers fetched in a loop, the same work repeated, results that are never used",
        "nobody who wants a result writes so: such a program is slow by intent, and a forecast learns the pattern",
        "speedup",
    ),
    Flag(
        "contested",
        "another measurement of the same program on the same GPU failed (a wrong result, an error, a time limit) or is a "
        "success that its recipe excludes; what a builder has superseded, and what the driver failed at, aside",
        "its outputs lie at the tolerance, or it works now and then: the label is of the measurements that passed",
        "speedup DESC",
    ),
    Flag(
        "edge",
        "repeat measurements of the kernel fall into different bins (under the archive's scheme)",
        "the label may change when it is measured again",
        "speedup_max / speedup_min DESC",
    ),
    Flag(
        "implausible_speedup",
        f"speedup above {IMPLAUSIBLE_SPEEDUP:g}x",
        "such factors come from broken references, skipped work or cached output more often than from good kernels",
        "speedup DESC",
    ),
    Flag(
        "narrow_domain",
        "the program passes and is wrong on inputs beyond the timed ones (large magnitudes, say), where its task tries that",
        "it may be faster than a program that is right everywhere",
        "speedup DESC",
    ),
    Flag(
        "near_duplicate",
        "another program of the same problem, reference and GPU has the same tokens (comments and white space aside)",
        "counting both counts one idea twice",
        "token_id",
    ),
    Flag(
        "reference_drift",
        f"in a measurement of this kernel the reference's own time for a case was off the median of that problem, GPU and "
        f"case by more than {DRIFT_RATIO:g}x",
        "the speedup is a ratio: a slow moment of the reference makes a kernel look fast",
        "speedup DESC",
    ),
    Flag(
        "survivor_source",
        "the source kept no failures and nothing below 1x",
        "such a source says nothing about how often an idea fails",
        "speedup DESC",
    ),
    Flag(
        "unfit",
        "somebody who read the program would not ask about it (the readings of its recipe): it does work that serves nothing, "
        "nobody could have meant to submit it, or its words tell how fast it is",
        "no pattern sees all that is slow by intent, and a forecast learns the intent",
        "speedup",
    ),
    Flag(
        "unstable",
        f"repeat measurements differ by more than {UNSTABLE_RATIO - 1:.0%} (largest over smallest)",
        "the label is uncertain",
        "speedup_max / speedup_min DESC",
    ),
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

#: Of the whole archive: the reference's median time of every case (of none: no rows), and sources of survivors only.
MEDIANS: Final = """
    SELECT problem, reference_id, gpu, shape, median(us) AS median FROM reference_time
    GROUP BY problem, reference_id, gpu, shape"""
NO_MEDIANS: Final = pa.schema(
    [*((name, pa.string()) for name in ("problem", "reference_id", "gpu", "shape")), ("median", pa.float64())]
).empty_table()
SURVIVORS: Final = """
    SELECT source_key FROM source GROUP BY source_key HAVING sum(failures) = 0 AND min(least) >= 1"""

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
               m.program_id IN (SELECT program_id FROM unfit_program) AS unfit,
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


class Rules(msgspec.Struct, frozen=True):
    """What the recipes say of each other, and the bin scheme of the labels."""

    scheme: Scheme
    supersedes: list[tuple[str, str]]  # builders (new, old): what the new one has judged has no label from the old one
    unanimous: list[str]  # builders of which a kernel has a label only when none of its measurements failed
    unfit: list[str]  # programs that a reader found unfit


def decide(connection: duckdb.DuckDBPyConnection, rules: Rules) -> None:
    """From ``logged`` and ``survivors`` to what stands in the splits."""
    pairs = sorted(rules.supersedes)
    given = {
        "succession": pa.table(
            {"newer": [n for n, _ in pairs], "older": [o for _, o in pairs]}, texts("newer", "older")
        ),
        "unanimous": pa.table({"builder": sorted(rules.unanimous)}, texts("builder")),
        "unfit_program": pa.table({"program_id": rules.unfit}, texts("program_id")),
    }
    for name, table in given.items():
        connection.register(name, table)
    for name, query in EVALUATIONS.items():
        connection.execute(f"CREATE TABLE {name} AS {query}")
    connection.register("edge", _edges(connection, rules.scheme))
    for name, query in KERNELS.items():
        connection.execute(f"CREATE TABLE {name} AS {query}")


def texts(*names: str) -> pa.Schema:
    """Columns of text."""
    return pa.schema([(name, pa.string()) for name in names])


def _edges(connection: duckdb.DuckDBPyConnection, scheme: Scheme) -> pa.Table:
    """Kernels whose least and largest measurement fall into different bins."""
    rows = connection.sql(
        "SELECT kernel_id, speedup_min, speedup_max FROM measured WHERE n_measurements > 1"
    ).to_arrow_table()
    low, high = (assign_bins(rows[name].to_numpy(), scheme) for name in ("speedup_min", "speedup_max"))
    return rows.select(["kernel_id"]).filter(pa.array(low != high))


def counted(connection: duckdb.DuckDBPyConnection) -> tuple[dict[str, int], list[str]]:
    """Counts for the manifest, and the GPUs that there are."""
    report = {name: connection.sql(query).fetchall()[0][0] for name, query in REPORT.items()}
    return report, [name for (name,) in connection.sql("SELECT DISTINCT gpu FROM evaluation ORDER BY 1").fetchall()]
