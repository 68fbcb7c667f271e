"""From fragments to tables: identity, repeats, lineage, flags, train and test, in SQL over the fragments.

Only narrow columns are held for the whole archive; texts and cases are read again run by run when rows are written, so
that memory does not grow with the size of the programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kernel_archive.archive.flags import DRIFT_RATIO, IMPLAUSIBLE_SPEEDUP, UNSTABLE_RATIO
from kernel_archive.archive.literal import literal_path
from kernel_archive.archive.shards import SplitRows, table_facts, write_split, write_table
from kernel_archive.bins import SCHEMES, Scheme, assign_bins
from kernel_archive.gpus import gpu_facts, is_known
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from kernel_archive.archive.manifest import TableFacts
    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.team import Team

__all__ = ["SUPERSEDED", "WITHHELD", "consolidate"]

#: Reason in ``evaluations.excluded`` of training measurements whose program is held out.
WITHHELD: Final = "withheld from train: the program or a near duplicate of it is in test"
#: Reason in ``evaluations.excluded`` of measurements that a better one took the place of, also where it is no success.
SUPERSEDED: Final = "superseded: measured again by a builder that supersedes this one"
#: So many rows of one table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: So many fragments are opened at a time for rows without texts.
CHUNK_FILES: Final = 64
#: DuckDB spills to disk above this.
MEMORY_LIMIT: Final = "600MB"

#: Splits with texts or many rows, the longest to write first.
_WIDE: Final = (("kernels", "test"), ("evaluations", "train"), ("failures", "train"), ("kernels", "train"))

# What counts for the label; and what found the program, also where its measurement was superseded.
_GOOD = "(outcome = 'success' AND excluded IS NULL)"
_FOUND = f"(outcome = 'success' AND (excluded IS NULL OR excluded = '{SUPERSEDED}'))"
# A verdict on the program, good or bad, of a run that is counted.
_JUDGED = "(excluded IS NULL AND outcome <> 'infrastructure_failure')"
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
SELECT kernel_id, evaluation_id, search_id, seq FROM (
    SELECT *, row_number() OVER (PARTITION BY kernel_id ORDER BY {_ORDER}) AS n FROM ev WHERE {_FOUND}
) WHERE n = 1;

CREATE TABLE nearest AS
SELECT kernel_id, evaluation_id AS label_evaluation, search_id AS label_search FROM (
    SELECT e.kernel_id, e.evaluation_id, e.search_id,
           row_number() OVER (PARTITION BY e.kernel_id ORDER BY abs(e.speedup - m.speedup), {_ORDER}) AS n
    FROM ev e JOIN measured m USING (kernel_id) WHERE {_GOOD}
) WHERE n = 1;

CREATE TABLE survivors AS
SELECT source_key FROM ev GROUP BY source_key
HAVING count(*) FILTER (outcome <> 'success') = 0 AND min(speedup) >= 1;

CREATE TABLE kernel AS
SELECT m.*, f.evaluation_id, f.search_id, f.seq, n.label_evaluation, n.label_search,
       (m.held_out OR NOT (m.program_id IN (SELECT program_id FROM measured WHERE held_out)
                           OR m.token_id IN (SELECT token_id FROM measured WHERE held_out))) AS kept,
       count(*) OVER (PARTITION BY m.problem, m.reference_id, m.gpu, m.token_id) > 1 AS near_duplicate,
       m.speedup > {IMPLAUSIBLE_SPEEDUP} AS implausible_speedup,
       m.speedup_max > {UNSTABLE_RATIO} * m.speedup_min AS unstable,
       m.kernel_id IN (SELECT kernel_id FROM ev JOIN drifted USING (evaluation_id) WHERE {_GOOD}) AS reference_drift,
       m.kernel_id IN (SELECT kernel_id FROM ev JOIN survivors USING (source_key) WHERE {_GOOD}) AS survivor_source
FROM measured m JOIN first_seen f USING (kernel_id) JOIN nearest n USING (kernel_id);

CREATE TABLE failure AS
SELECT kernel_id, evaluation_id, search_id, seq, n_evaluations FROM (
    SELECT *, count(*) OVER (PARTITION BY kernel_id)::INTEGER AS n_evaluations,
           row_number() OVER (
               PARTITION BY kernel_id ORDER BY outcome = 'infrastructure_failure', {_ORDER}
           ) AS n
    FROM ev
    WHERE excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM measured)
) WHERE n = 1;
"""

_FLAGS = ("edge", "implausible_speedup", "near_duplicate", "reference_drift", "survivor_source", "unstable")


class Consolidation:
    """The relational middle of a build: identity, repeats, flags, over narrow columns of all fragments."""

    def __init__(
        self, fragments: Mapping[str, Path], scheme: Scheme, scratch: Path, supersedes: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Fragments by search id (several may share one), bin scheme, where DuckDB may spill, (new, old) builders."""
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
        self.connection.execute(_DRIFT, {"files": files})
        for statement in _KERNELS.split(";\n"):
            if statement.strip():
                self.connection.execute(statement)
        self._edges()
        for name in _HANDED_ON:
            self.connection.execute(f"COPY {name} TO '{_handed_on(scratch, name)}' (FORMAT parquet)")

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
            "excluded_evaluations": self.count(f"SELECT count(*) FROM ev WHERE excluded <> '{SUPERSEDED}'"),
            "flags": flag_counts,
            "superseded_evaluations": self.count("SELECT count(*) FROM superseded"),
            "remeasured_kernels": self.count("SELECT count(*) FROM kernel WHERE n_measurements > 1"),
            "withheld_from_train": self.count("SELECT count(*) FROM kernel WHERE NOT kept"),
        }


#: Narrow tables that the writers of wide rows need.
_HANDED_ON: Final = ("kernel", "failure", "edges", "superseded")


def _handed_on(scratch: Path, name: str) -> str:
    return str(scratch / f"{name}.narrow.parquet").replace("'", "''")


def _connect(scratch: Path, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET temp_directory = ?", [str(scratch)])
    if threads is not None:
        connection.execute(f"SET threads = {threads}")
    return connection


def _import_duckdb() -> None:
    import duckdb  # noqa: F401 - so that it is there when it is needed


class WideRows:
    """Rows of one table with their texts, read again from the fragments, a few searches at a time."""

    def __init__(
        self, fragments: Mapping[str, Path], scheme: Scheme, scratch: Path, threads: int | None = None
    ) -> None:
        """The same arguments as :class:`Consolidation`, which must have been made before."""
        self.fragments = fragments
        self.scheme = scheme
        self.connection = _connect(scratch, threads)
        for name in _HANDED_ON:
            self.connection.execute(
                f"CREATE TABLE {name} AS SELECT * FROM read_parquet('{literal_path(_handed_on(scratch, name))}')"
            )

    def files(self, names: Iterable[str]) -> list[str]:
        """Fragments of searches."""
        return sorted({literal_path(self.fragments[name]) for name in names})

    def rows(self, table: str, split: str) -> Iterator[pa.Table]:
        """Rows of one split of ``kernels``, ``failures`` or ``evaluations``."""
        if table == "kernels":
            return self.kernels(split)
        return self.failures() if table == "failures" else self.evaluations()

    def chunks(self, source: str) -> Iterator[tuple[list[str], list[str]]]:
        """Contiguous searches with about ``CHUNK_ROWS`` rows of a narrow query: their ids and fragment files."""
        counts = self.connection.execute(f"SELECT search_id, count(*) FROM {source} GROUP BY 1 ORDER BY 1").fetchall()
        names: list[str] = []
        rows = 0
        for name, count in counts:
            names.append(name)
            rows += count
            if rows >= CHUNK_ROWS:
                yield names, self.files(names)
                names, rows = [], 0
        if names:
            yield names, self.files(names)

    def kernels(self, split: str) -> Iterator[pa.Table]:
        """Rows of ``kernels`` for ``train`` or ``test``, by search and position in it."""
        condition = "k.held_out" if split == "test" else "NOT k.held_out AND k.kept"
        cursor = self.connection
        flags = ", ".join(
            f"CASE WHEN {'k.kernel_id IN (SELECT kernel_id FROM edges)' if f == 'edge' else 'k.' + f} THEN '{f}' END"
            for f in _FLAGS
        )
        query = f"""
            SELECT k.kernel_id, k.program_id, k.token_id, k.problem, s.family, s.language, k.gpu, k.speedup,
                   l.runtime_us, l.reference_runtime_us, l.cases, k.n_measurements, k.speedup_min, k.speedup_max,
                   s.generation_method, s.model, k.search_id, s.step, s.parent_kernel_id, s.parent_distance, k.reference_id,
                   list_filter([{flags}], lambda x: x IS NOT NULL) AS flags, s.source_file, s.source_line, s.code
            FROM kernel k
            JOIN read_parquet($files) s ON s.evaluation_id = k.evaluation_id
            JOIN label l ON l.evaluation_id = k.label_evaluation
            WHERE {condition} AND k.search_id IN (SELECT unnest($names))
            ORDER BY k.search_id, k.seq
        """
        for names, files in self.chunks(f"(SELECT * FROM kernel k WHERE {condition})"):
            labels = cursor.execute(
                "SELECT DISTINCT label_search FROM kernel WHERE search_id IN (SELECT unnest($names))", {"names": names}
            ).fetchall()
            cursor.execute(
                """CREATE OR REPLACE TEMP TABLE label AS
                   SELECT evaluation_id, runtime_us, reference_runtime_us, cases FROM read_parquet($files)
                   WHERE evaluation_id IN (
                       SELECT label_evaluation FROM kernel WHERE search_id IN (SELECT unnest($names)))""",
                {"files": self.files(row[0] for row in labels), "names": names},
            )
            rows = cursor.sql(query, params={"files": files, "names": names}).to_arrow_table()
            bins = pa.array(assign_bins(rows.column("speedup").to_numpy(), self.scheme))
            rows = rows.append_column("bin", bins)
            rows = rows.append_column("bin_scheme", pa.array([self.scheme] * rows.num_rows, pa.string()))
            yield _shaped(rows, "kernels")

    def failures(self) -> Iterator[pa.Table]:
        """Rows of ``failures``."""
        query = """
            SELECT s.kernel_id, s.program_id, s.token_id, s.problem, s.family, s.language, s.gpu, s.outcome, s.error_type,
                   f.n_evaluations, s.generation_method, s.model, s.search_id, s.step, s.parent_kernel_id,
                   s.parent_distance, s.reference_id, s.source_file, s.source_line, s.error_text, s.code
            FROM failure f JOIN read_parquet($files) s ON s.evaluation_id = f.evaluation_id
            WHERE f.search_id IN (SELECT unnest($names)) ORDER BY f.search_id, f.seq
        """
        for names, files in self.chunks("failure"):
            rows = self.connection.sql(query, params={"files": files, "names": names}).to_arrow_table()
            yield _shaped(rows, "failures")

    def evaluations(self) -> Iterator[pa.Table]:
        """Rows of ``evaluations``, all of them."""
        columns = [c.name for c in TABLES["evaluations"].columns if c.name not in {"canary", "excluded"}]
        query = f"""
            SELECT {", ".join("s." + c for c in columns)}, coalesce(s.excluded, r.reason, w.reason) AS excluded
            FROM read_parquet($files) s
            LEFT JOIN (SELECT evaluation_id, '{SUPERSEDED}' AS reason FROM superseded) r USING (evaluation_id)
            LEFT JOIN (SELECT kernel_id, '{WITHHELD}' AS reason FROM kernel WHERE NOT kept) w USING (kernel_id)
            WHERE s.search_id IN (SELECT unnest($names)) ORDER BY s.search_id, s.seq
        """
        names: list[str] = []
        files: set[Path] = set()
        for name in (*sorted(self.fragments), None):
            if name is not None:
                names.append(name)
                files.add(self.fragments[name])
            if names and (name is None or len(files) >= CHUNK_FILES):
                given = {"files": sorted(map(literal_path, files)), "names": names}
                yield _shaped(self.connection.sql(query, params=given).to_arrow_table(), "evaluations")
                names, files = [], set()


class WritePart(msgspec.Struct, frozen=True, kw_only=True):
    """One wide split to write, by whichever process: ``run`` does it."""

    table: str
    split: str
    directory: Path
    fragments: dict[str, Path]
    scheme: Scheme
    scratch: Path
    threads: int | None

    def run(self) -> SplitRows:
        """Write the split's shards."""
        wide = WideRows(self.fragments, self.scheme, self.scratch, self.threads)
        metadata = {"bin_scheme": self.scheme} if self.table == "kernels" else None
        return write_split(self.directory, self.table, self.split, wide.rows(self.table, self.split), metadata=metadata)


def _shaped(rows: pa.Table, table: str) -> pa.Table:
    """Columns as the schema orders them, with the canary."""
    schema = TABLES[table].schema
    if "canary" not in rows.column_names:
        rows = rows.append_column("canary", pa.array([CANARY] * rows.num_rows, pa.string()))
    return rows.select(schema.names).cast(schema)


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
    workers: Team,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive.

    Args:
        runs: footers of the fragments, sorted by search id.
        fragments: search id -> fragment file.
        directory: the archive directory being made.
        scheme: bin scheme of the labels.
        scratch: where DuckDB may spill.
        supersedes: pairs of builders (new, old): a kernel that both measured has its label from the new one alone.
        workers: the processes that write wide splits side by side.

    Returns:
        Facts per table, and counts for the manifest.
    """
    workers.ahead(_import_duckdb)
    work = Consolidation(fragments, SCHEMES[scheme].name, scratch, supersedes)
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
            threads=None if workers.alone else 1,
        )
        for table, split in _WIDE
    ]
    written = {_WIDE[i]: rows for i, rows in workers.do([part.run for part in parts])}
    for name in dict.fromkeys(table for table, _ in _WIDE):
        tables[name] = table_facts({split: written[name, split] for split in TABLES[name].splits})
    for name in _HANDED_ON:
        (scratch / f"{name}.narrow.parquet").unlink(missing_ok=True)
    return tables, report
