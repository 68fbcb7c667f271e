"""From fragments to tables: identity, repeats, lineage, flags, train and test, in SQL over the fragments.

Only narrow columns are held for the whole archive; texts and cases are read again run by run when rows are written
(:mod:`kernel_archive.archive.wide`), so that memory does not grow with the size of the programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kernel_archive.archive.flags import DRIFT_RATIO, IMPLAUSIBLE_SPEEDUP, UNSTABLE_RATIO
from kernel_archive.archive.literal import literal_path
from kernel_archive.archive.reasons import CONTESTED, SUPERSEDED
from kernel_archive.archive.shards import table_facts, write_table
from kernel_archive.archive.wide import WritePart, narrow_file
from kernel_archive.bins import SCHEMES, Scheme, assign_bins
from kernel_archive.gpus import gpu_facts, is_known
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from kernel_archive.archive.manifest import TableFacts
    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.team import Team

__all__ = ["consolidate"]

#: DuckDB spills to disk above this.
MEMORY_LIMIT: Final = "600MB"

#: Splits with texts or many rows, the longest to write first.
_WIDE: Final = (("kernels", "test"), ("evaluations", "train"), ("failures", "train"), ("kernels", "train"))

# What counts for the label; and what found the program, also where its measurement was superseded or contested.
_GOOD = "(outcome = 'success' AND excluded IS NULL)"
_FOUND = f"(outcome = 'success' AND (excluded IS NULL OR excluded IN ('{SUPERSEDED}', '{CONTESTED}')))"
# A verdict on the program, good or bad; a success that its recipe excludes is a bad one.
_JUDGED = "(outcome <> 'infrastructure_failure')"
_ORDER = "role_rank, search_id, seq"

_NARROW = """
CREATE TABLE ev AS
SELECT evaluation_id, kernel_id, program_id, token_id, problem, gpu, reference_id, search_id, seq, source_key, builder, role,
       CASE role WHEN 'held_out' THEN 0 WHEN 'training' THEN 1 ELSE 2 END AS role_rank,
       outcome, speedup, excluded
FROM read_parquet($files)
"""

# All pairs of builders are looked up before any row changes: a chain of builders has one outcome.
_SUPERSEDE = f"""
CREATE TABLE succession AS SELECT unnest($new) AS newer, unnest($old) AS older;

CREATE TABLE superseded AS
SELECT DISTINCT e.evaluation_id
FROM ev e JOIN succession s ON s.older = e.builder
JOIN (SELECT DISTINCT kernel_id, builder FROM ev WHERE {_JUDGED}) n ON n.builder = s.newer AND n.kernel_id = e.kernel_id
WHERE e.outcome = 'success' AND e.excluded IS NULL;

UPDATE ev SET excluded = '{SUPERSEDED}' WHERE evaluation_id IN (SELECT evaluation_id FROM superseded)
"""

# A refusal, like a success that its recipe excludes, contests the successes beside it, unless a builder that supersedes
# its own has judged the kernel, or its recipe excludes it.
_CONTEST = f"""
CREATE TABLE contested AS
SELECT DISTINCT kernel_id, builder FROM ev
WHERE {_JUDGED} AND (outcome = 'success') = (excluded IS NOT NULL)
  AND (kernel_id, builder) NOT IN (
      SELECT (e.kernel_id, s.older) FROM ev e JOIN succession s ON s.newer = e.builder WHERE {_JUDGED}
  );

CREATE TABLE unanimous AS SELECT unnest($names) AS builder;

UPDATE ev SET excluded = '{CONTESTED}'
WHERE {_GOOD} AND builder IN (SELECT builder FROM unanimous)
  AND (kernel_id, builder) IN (SELECT (kernel_id, builder) FROM contested)
"""

# Per case: the median of the reference's time over all successes of this problem, reference, GPU and case.
_DRIFT = f"""
CREATE TABLE drifted AS
WITH listed AS (
    SELECT evaluation_id, problem, reference_id, gpu,
           CASE WHEN len(cases) > 0 THEN list_transform(cases, lambda c: {{'shape': c.shape, 'us': c.reference_runtime_us}})
                ELSE [{{'shape': 'whole', 'us': reference_runtime_us}}] END AS times
    FROM read_parquet($files) WHERE outcome = 'success'
),
timed AS (
    SELECT * EXCLUDE (times), unnest(times) AS c, generate_subscripts(times, 1) AS i FROM listed
),
ratio AS (
    SELECT evaluation_id,
           c.us / median(c.us) OVER (PARTITION BY problem, reference_id, gpu, coalesce(c.shape, i::VARCHAR)) AS r
    FROM timed WHERE c.us > 0
)
SELECT DISTINCT evaluation_id FROM ratio WHERE r > {DRIFT_RATIO} OR r < 1.0 / {DRIFT_RATIO}
"""

_KERNELS = f"""
CREATE TABLE grouped AS
SELECT kernel_id, any_value(program_id) AS program_id, any_value(token_id) AS token_id, any_value(problem) AS problem,
       any_value(reference_id) AS reference_id, any_value(gpu) AS gpu,
       list_sort(list(speedup)) AS sorted, count(*)::INTEGER AS n_measurements,
       min(speedup) AS speedup_min, max(speedup) AS speedup_max,
       kernel_id IN (SELECT kernel_id FROM ev WHERE role = 'held_out' AND {_FOUND}) AS held_out
FROM ev WHERE {_GOOD} GROUP BY kernel_id;

CREATE TABLE measured AS
SELECT * EXCLUDE (sorted),
       (sorted[(n_measurements + 1) // 2] + sorted[n_measurements // 2 + 1]) / 2 AS speedup
FROM grouped;

CREATE TABLE first_seen AS
SELECT kernel_id, search_id, seq FROM (
    SELECT *, row_number() OVER (PARTITION BY kernel_id ORDER BY {_ORDER}) AS n FROM ev WHERE {_FOUND}
) WHERE n = 1;

CREATE TABLE nearest AS
SELECT kernel_id, search_id AS label_search, seq AS label_seq FROM (
    SELECT e.kernel_id, e.search_id, e.seq,
           row_number() OVER (PARTITION BY e.kernel_id ORDER BY abs(e.speedup - m.speedup), {_ORDER}) AS n
    FROM ev e JOIN measured m USING (kernel_id) WHERE {_GOOD}
) WHERE n = 1;

CREATE TABLE survivors AS
SELECT source_key FROM ev GROUP BY source_key
HAVING count(*) FILTER (outcome <> 'success') = 0 AND min(speedup) >= 1;

CREATE TABLE kernel AS
SELECT m.*, f.search_id, f.seq, n.label_search, n.label_seq,
       (m.held_out OR NOT (m.program_id IN (SELECT program_id FROM measured WHERE held_out)
                           OR m.token_id IN (SELECT token_id FROM measured WHERE held_out))) AS kept,
       count(*) OVER (PARTITION BY m.problem, m.reference_id, m.gpu, m.token_id) > 1 AS near_duplicate,
       m.kernel_id IN (SELECT kernel_id FROM contested) AS contested,
       m.speedup > {IMPLAUSIBLE_SPEEDUP} AS implausible_speedup,
       m.speedup_max > {UNSTABLE_RATIO} * m.speedup_min AS unstable,
       m.kernel_id IN (SELECT kernel_id FROM ev JOIN drifted USING (evaluation_id) WHERE {_GOOD}) AS reference_drift,
       m.kernel_id IN (SELECT kernel_id FROM ev JOIN survivors USING (source_key) WHERE {_GOOD}) AS survivor_source
FROM measured m JOIN first_seen f USING (kernel_id) JOIN nearest n USING (kernel_id);

CREATE TABLE refused AS
SELECT kernel_id, search_id AS label_search, seq AS label_seq, n_evaluations FROM (
    SELECT *, count(*) OVER (PARTITION BY kernel_id)::INTEGER AS n_evaluations,
           row_number() OVER (
               PARTITION BY kernel_id ORDER BY outcome = 'infrastructure_failure', {_ORDER}
           ) AS n
    FROM ev
    WHERE excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM measured)
      -- A driver's failure says nothing about a program that passed and was excluded.
      AND (outcome <> 'infrastructure_failure' OR kernel_id NOT IN (SELECT kernel_id FROM ev WHERE outcome = 'success'))
) WHERE n = 1;

-- What found the program: mostly what refused it, else a success that does not count.
CREATE TABLE failure AS
SELECT r.*, e.search_id, e.seq FROM refused r JOIN (
    SELECT kernel_id, search_id, seq, row_number() OVER (
        PARTITION BY kernel_id ORDER BY outcome = 'infrastructure_failure', {_ORDER}
    ) AS n
    FROM ev WHERE kernel_id IN (SELECT kernel_id FROM refused)
) e USING (kernel_id) WHERE e.n = 1;
"""

_FLAGS = (
    "contested",
    "edge",
    "implausible_speedup",
    "near_duplicate",
    "reference_drift",
    "survivor_source",
    "unstable",
)


class Consolidation:
    """The relational middle of a build: identity, repeats, flags, over narrow columns of all fragments."""

    def __init__(
        self,
        fragments: Mapping[str, Path],
        scheme: Scheme,
        scratch: Path,
        supersedes: Iterable[tuple[str, str]] = (),
        unanimous: Iterable[str] = (),
    ) -> None:
        """Fragments by search id (several may share one), bin scheme, where DuckDB may spill; see :func:`consolidate`."""
        self.scheme = scheme
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self.connection = _connect(scratch)
        files = sorted({literal_path(p) for p in fragments.values()})
        self.connection.execute(_NARROW, {"files": files})
        pairs = sorted(supersedes)
        create, find, update = _SUPERSEDE.split(";\n")
        self.connection.execute(create, {"new": [new for new, _ in pairs], "old": [old for _, old in pairs]})
        self.connection.execute(find)
        self.connection.execute(update)
        contest, name, update = _CONTEST.split(";\n")
        self.connection.execute(contest)
        self.connection.execute(name, {"names": sorted(unanimous)})
        self.connection.execute(update)
        self.connection.execute(_DRIFT, {"files": files})
        for statement in _KERNELS.split(";\n"):
            if statement.strip():
                self.connection.execute(statement)
        self._edges()
        for name, query in _HANDED_ON.items():
            target = str(narrow_file(scratch, name)).replace("'", "''")
            self.connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet)")

    def _edges(self) -> None:
        """Flag kernels whose least and largest measurement fall into different bins."""
        rows = self.connection.execute(
            "SELECT kernel_id, speedup_min, speedup_max FROM kernel WHERE n_measurements > 1"
        ).fetchall()
        lows = assign_bins([r[1] for r in rows], self.scheme)
        highs = assign_bins([r[2] for r in rows], self.scheme)
        crossing = [row[0] for row, low, high in zip(rows, lows, highs, strict=True) if low != high]
        edge = pa.table({"kernel_id": pa.array(crossing, pa.string())})
        self.connection.register("edge_rows", edge)
        self.connection.execute("CREATE TABLE edges AS SELECT kernel_id FROM edge_rows")
        self.connection.unregister("edge_rows")

    def count(self, query: str) -> int:
        """One number."""
        row = self.connection.execute(query).fetchone()
        return int(row[0]) if row is not None else 0

    def report(self) -> dict[str, Any]:
        """Counts for the manifest."""
        flag_counts = {
            flag: self.count(
                f"SELECT count(*) FROM kernel k WHERE (held_out OR kept) AND "
                f"{'kernel_id IN (SELECT kernel_id FROM edges)' if flag == 'edge' else flag}"
            )
            for flag in _FLAGS
        }
        return {
            "contested_evaluations": self.count(f"SELECT count(*) FROM ev WHERE excluded = '{CONTESTED}'"),
            "excluded_evaluations": self.count(
                f"SELECT count(*) FROM ev WHERE excluded NOT IN ('{SUPERSEDED}', '{CONTESTED}')"
            ),
            "flags": flag_counts,
            "superseded_evaluations": self.count("SELECT count(*) FROM superseded"),
            "remeasured_kernels": self.count("SELECT count(*) FROM kernel WHERE n_measurements > 1"),
            "withheld_from_train": self.count("SELECT count(*) FROM kernel WHERE NOT kept"),
        }


def _flag_list() -> str:
    conditions = (
        f"CASE WHEN {'kernel_id IN (SELECT kernel_id FROM edges)' if flag == 'edge' else flag} THEN '{flag}' END"
        for flag in _FLAGS
    )
    return f"list_filter([{', '.join(conditions)}], lambda x: x IS NOT NULL) AS flags"


#: What the writers of wide rows need, in the order of the rows.
_HANDED_ON: Final = {
    "kernel": f"""
        SELECT kernel_id, program_id, token_id, problem, reference_id, gpu, speedup, n_measurements, speedup_min,
               speedup_max, held_out, search_id, seq, label_search, label_seq, {_flag_list()}
        FROM kernel WHERE held_out OR kept ORDER BY search_id, seq""",
    "failure": "SELECT kernel_id, search_id, seq, label_search, label_seq, n_evaluations FROM failure ORDER BY search_id, seq",
    "overruled": f"SELECT evaluation_id, excluded FROM ev WHERE excluded IN ('{SUPERSEDED}', '{CONTESTED}')",
    "withheld": "SELECT kernel_id FROM kernel WHERE NOT (held_out OR kept)",
}


def _connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET temp_directory = ?", [str(scratch)])
    return connection


def _small(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = TABLES[table].schema
    return pa.Table.from_pylist([{**row, "canary": CANARY} for row in rows], schema=schema)


def _references(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """One row per problem and reference: of several statements the one with the most facts, then the first search's."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        for row in run.references:
            key = (row["reference_id"], row["problem"])
            known = best.get(key)
            if known is None or _filled(row) > _filled(known):
                best[key] = row
    return [best[key] for key in sorted(best, key=lambda k: (k[1], k[0]))]


def _filled(row: dict[str, Any]) -> int:
    return sum(value is not None for value in row.values())


def consolidate(
    runs: Sequence[StagedRun],
    fragments: dict[str, Path],
    directory: Path,
    *,
    scheme: Scheme,
    scratch: Path,
    supersedes: Iterable[tuple[str, str]] = (),
    unanimous: Iterable[str] = (),
    workers: Team,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive.

    Args:
        runs: footers of the fragments, sorted by search id.
        fragments: search id -> fragment file.
        directory: the archive directory being made.
        scheme: bin scheme of the labels.
        scratch: where DuckDB may spill.
        supersedes: pairs of builders (new, old): what the new one has judged has no label from the old one.
        unanimous: builders of which a kernel has a label only when none of its measurements failed.
        workers: the processes that write wide splits side by side.

    Returns:
        Facts per table, and counts for the manifest.
    """
    work = Consolidation(fragments, SCHEMES[scheme].name, scratch, supersedes, unanimous)
    rows = sorted((row for run in runs for row in run.searches), key=lambda r: str(r["search_id"]))
    tables: dict[str, TableFacts] = {}
    tables["searches"] = write_table(directory, "searches", {"train": _small("searches", rows)})
    tables["references"] = write_table(directory, "references", {"train": _small("references", _references(runs))})
    names = [r[0] for r in work.connection.execute("SELECT DISTINCT gpu FROM ev ORDER BY 1").fetchall()]
    gpus = []
    for name in names:
        facts = gpu_facts(name)
        gpus.append(
            {
                "gpu": name,
                "known": is_known(name),
                **{f: getattr(facts, f) for f in facts.__struct_fields__ if f not in {"name", "aliases"}},
            }
        )
    tables["gpus"] = write_table(directory, "gpus", {"train": _small("gpus", gpus)})
    report = work.report()
    work.connection.close()
    parts = [
        WritePart(
            table=table,
            split=split,
            directory=directory,
            fragments=fragments,
            scheme=scheme,
            scratch=scratch,
        )
        for table, split in _WIDE
    ]
    written = {_WIDE[i]: rows for i, rows in workers.do([part.run for part in parts])}
    for name in dict.fromkeys(table for table, _ in _WIDE):
        tables[name] = table_facts({split: written[name, split] for split in TABLES[name].splits})
    for name in _HANDED_ON:
        narrow_file(scratch, name).unlink(missing_ok=True)
    return tables, report
