-- What becomes of every evaluation, step by step; run as one script. Names after a dollar are constants of labels.py.
-- It reads: fragment (the rows of all fragments, without their programs); chunk (some of them, with their programs);
-- succession (pairs of builders, newer and older), unanimous (builders) and reading (what readers found in programs), as
-- the recipes say; bin_of, the bin of a speedup.

-- Times of the reference: each case of each success.
CREATE VIEW reference_time AS
SELECT evaluation_id, problem, reference_id, gpu, coalesce(c.shape, i::VARCHAR) AS shape, c.us AS us
FROM (SELECT * EXCLUDE (times), unnest(times) AS c, generate_subscripts(times, 1) AS i
      FROM (SELECT evaluation_id, problem, reference_id, gpu,
                   CASE WHEN len(cases) > 0
                        THEN list_transform(cases, lambda c: {'shape': c.shape, 'us': c.reference_runtime_us})
                        ELSE [{'shape': 'whole', 'us': reference_runtime_us}] END AS times
            FROM fragment WHERE outcome = 'success'))
WHERE c.us > 0;

-- Sources of which only survivors are left.
CREATE TABLE survivors AS
SELECT source_key FROM fragment GROUP BY source_key
HAVING count(*) FILTER (outcome <> 'success') = 0 AND min(speedup) >= 1;

-- Evaluations whose reference time is off the median of its case.
CREATE TABLE reference_median AS
SELECT problem, reference_id, gpu, shape, median(us) AS median FROM reference_time
GROUP BY problem, reference_id, gpu, shape;

CREATE TABLE drifted AS
SELECT DISTINCT evaluation_id
FROM reference_time JOIN reference_median USING (problem, reference_id, gpu, shape)
WHERE us / median > $drift OR us / median < 1.0 / $drift;

-- Evaluations without texts and cases. A verdict on the program is good or bad; a success that its recipe excludes is a
-- bad one.
CREATE TABLE logged AS
SELECT evaluation_id, kernel_id, program_id, token_id, problem, gpu, reference_id, search_id, seq, source_key, builder,
       started_at, role, outcome, speedup, excluded, artificial, narrow_domain, outcome <> 'infrastructure_failure' AS judged,
       CASE role WHEN 'held_out' THEN 0 WHEN 'training' THEN 1 ELSE 2 END AS role_rank,
       evaluation_id IN (SELECT evaluation_id FROM drifted) AS drifted
FROM fragment;

-- All pairs of builders are looked up before any row changes: a chain of builders has one outcome.
CREATE TABLE superseded AS
SELECT DISTINCT e.evaluation_id
FROM logged e JOIN succession s ON s.older = e.builder
JOIN (SELECT DISTINCT kernel_id, builder FROM logged WHERE judged) n
  ON n.builder = s.newer AND n.kernel_id = e.kernel_id
WHERE e.outcome = 'success' AND e.excluded IS NULL;

CREATE TABLE current AS
SELECT * REPLACE (CASE WHEN evaluation_id IN (SELECT evaluation_id FROM superseded)
                       THEN '$superseded' ELSE excluded END AS excluded)
FROM logged;

-- A refusal, like a success that its recipe excludes, contests the successes beside it, unless a builder that supersedes
-- its own has judged the kernel, or its recipe excludes it.
CREATE TABLE contested AS
SELECT DISTINCT kernel_id, builder FROM current
WHERE judged AND (outcome = 'success') = (excluded IS NOT NULL)
  AND (kernel_id, builder) NOT IN (
      SELECT (e.kernel_id, s.older) FROM current e JOIN succession s ON s.newer = e.builder WHERE judged);

-- Good is a measurement that counts for the label; found says that it found its program, also where it was superseded or
-- contested. Which evaluation of a program comes first: by role, search and position in it.
CREATE TABLE evaluation AS
SELECT *, outcome = 'success' AND excluded IS NULL AS good,
       outcome = 'success' AND (excluded IS NULL OR excluded IN ('$superseded', '$contested')) AS found,
       row_number() OVER (PARTITION BY kernel_id, search_id, started_at, speedup) AS nth
FROM (SELECT * REPLACE (CASE WHEN outcome = 'success' AND excluded IS NULL
                                  AND builder IN (SELECT builder FROM unanimous)
                                  AND (kernel_id, builder) IN (SELECT (kernel_id, builder) FROM contested)
                             THEN '$contested' ELSE excluded END AS excluded)
      FROM current);

-- The measurements of a kernel taken together: the median one, of an even number the lower middle one, since a label is
-- what was measured, with its own times. What two searches share is in both of their logs, and is one measurement.
CREATE TABLE measured AS
SELECT * EXCLUDE (sorted), sorted[(len(sorted) + 1) // 2] AS speedup
FROM (SELECT kernel_id, any_value(program_id) AS program_id, any_value(token_id) AS token_id,
             any_value(problem) AS problem, any_value(reference_id) AS reference_id, any_value(gpu) AS gpu,
             list_sort(list(speedup)) AS sorted,
             count(*)::INTEGER AS n_measurements,
             min(speedup) AS speedup_min, max(speedup) AS speedup_max,
             bool_or(artificial) AS artificial, bool_or(narrow_domain) AS narrow_domain,
             kernel_id IN (SELECT kernel_id FROM evaluation WHERE role = 'held_out' AND found) AS held_out
      FROM (SELECT DISTINCT ON (kernel_id, coalesce(started_at::VARCHAR, evaluation_id), speedup, nth) *
            FROM evaluation WHERE good)
      GROUP BY kernel_id);

-- Which evaluation found each program, and which gives its label.
CREATE TABLE first_found AS
SELECT kernel_id, search_id, seq FROM evaluation WHERE found
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY role_rank, search_id, seq) = 1;

CREATE TABLE nearest_to_median AS
SELECT kernel_id, e.search_id AS label_search, e.seq AS label_seq
FROM evaluation e JOIN measured m USING (kernel_id) WHERE good
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY abs(e.speedup - m.speedup), role_rank, search_id, seq) = 1;

CREATE TABLE kernel AS
SELECT m.*, f.search_id, f.seq, n.label_search, n.label_seq,
       held_out OR NOT (program_id IN (SELECT program_id FROM measured WHERE held_out)
                        OR token_id IN (SELECT token_id FROM measured WHERE held_out)) AS not_withheld,
       kernel_id IN (SELECT kernel_id FROM contested) AS contested,
       bin_of(speedup_min) <> bin_of(speedup_max) AS edge,
       speedup > $implausible AS implausible_speedup,
       count(*) OVER (PARTITION BY problem, reference_id, gpu, token_id) > 1 AS near_duplicate,
       kernel_id IN (SELECT kernel_id FROM evaluation WHERE drifted AND good) AS reference_drift,
       kernel_id IN (SELECT kernel_id FROM evaluation JOIN survivors USING (source_key) WHERE good)
           AS survivor_source,
       program_id IN (SELECT program_id FROM reading WHERE unfit) AS unfit,
       speedup_max > $unstable * speedup_min AS unstable
FROM measured m JOIN first_found f USING (kernel_id) JOIN nearest_to_median n USING (kernel_id);

-- Programs without a label. A driver's failure says nothing about a program that passed and was excluded.
CREATE TABLE refused AS
SELECT kernel_id, search_id AS label_search, seq AS label_seq,
       count(*) OVER (PARTITION BY kernel_id)::INTEGER AS n_evaluations
FROM evaluation
WHERE excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM measured)
  AND (judged OR kernel_id NOT IN (SELECT kernel_id FROM evaluation WHERE outcome = 'success'))
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY NOT judged, role_rank, search_id, seq) = 1;

-- What found the program: mostly what refused it, else a success that does not count.
CREATE TABLE failure AS
SELECT r.*, e.search_id, e.seq FROM refused r JOIN evaluation e USING (kernel_id)
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY NOT judged, role_rank, search_id, seq) = 1;

-- What a row takes from another evaluation than the one that found its program: from the one that gave the label, or the
-- refusal.
CREATE TABLE label AS
SELECT k.kernel_id, l.runtime_us, l.reference_runtime_us, l.cases
FROM kernel k JOIN fragment l ON l.search_id = k.label_search AND l.seq = k.label_seq
WHERE (k.label_search, k.label_seq) <> (k.search_id, k.seq);

CREATE TABLE refusal AS
SELECT r.kernel_id, l.outcome, l.error_type, l.error_text
FROM failure r JOIN fragment l ON l.search_id = r.label_search AND l.seq = r.label_seq
WHERE (r.label_search, r.label_seq) <> (r.search_id, r.seq);

-- Rows of the large tables that are in chunk, in any order, with the columns of their schema and what their splits need.
CREATE VIEW kernels AS
SELECT f.* REPLACE (k.speedup AS speedup,
                    CASE WHEN l.kernel_id IS NULL THEN f.runtime_us ELSE l.runtime_us END AS runtime_us,
                    CASE WHEN l.kernel_id IS NULL THEN f.reference_runtime_us
                         ELSE l.reference_runtime_us END AS reference_runtime_us,
                    CASE WHEN l.kernel_id IS NULL THEN f.cases ELSE l.cases END AS cases),
       k.n_measurements, k.speedup_min, k.speedup_max, k.flags, k.held_out, k.not_withheld, bin_of(k.speedup) AS bin
FROM (SELECT *, list_filter([$flags], lambda x: x IS NOT NULL) AS flags FROM kernel) k
JOIN chunk f ON f.search_id = k.search_id AND f.seq = k.seq
LEFT JOIN label l ON l.kernel_id = k.kernel_id;

CREATE VIEW failures AS
SELECT f.* REPLACE (CASE WHEN l.kernel_id IS NULL THEN f.outcome ELSE l.outcome END AS outcome,
                    CASE WHEN l.kernel_id IS NULL THEN f.error_type ELSE l.error_type END AS error_type,
                    CASE WHEN l.kernel_id IS NULL THEN f.error_text ELSE l.error_text END AS error_text),
       r.n_evaluations
FROM failure r
JOIN chunk f ON f.search_id = r.search_id AND f.seq = r.seq
LEFT JOIN refusal l ON l.kernel_id = r.kernel_id;

CREATE VIEW evaluations AS
SELECT f.* REPLACE (coalesce(e.excluded, CASE WHEN e.kernel_id IN (SELECT kernel_id FROM kernel WHERE NOT not_withheld)
                                              THEN '$withheld' END) AS excluded)
FROM evaluation e JOIN chunk f ON f.search_id = e.search_id AND f.seq = e.seq;

-- Counts for the manifest.
CREATE VIEW report AS
SELECT count(*) FILTER (excluded = '$contested') AS contested_evaluations,
       count(*) FILTER (excluded NOT IN ('$superseded', '$contested')) AS excluded_evaluations,
       (SELECT count(*) FROM superseded) AS superseded_evaluations,
       (SELECT count(*) FROM kernel WHERE n_measurements > 1) AS remeasured_kernels,
       (SELECT count(*) FROM kernel WHERE NOT not_withheld) AS withheld_from_train
FROM evaluation;
