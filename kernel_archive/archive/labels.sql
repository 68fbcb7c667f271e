-- What becomes of every evaluation, step by step; run as one script. Names after a dollar are constants of labels.py.
-- It reads: fragment (the rows of all fragments, without their programs); chunk (some of them, with their programs);
-- succession (pairs of builders, newer and older), unanimous (builders) and reading (what readers found in programs), as
-- the recipes say; bin_of, the bin of a speedup.
--
-- All but the three views at the end, the tables of the archive, are working tables of ids and numbers. Steps:
--   reference_time <- fragment: how long did each case of the reference take?
--   survivors <- fragment: of which sources are only survivors left?
--   reference_median, drifted <- reference_time: whose reference time is off the median?
--   logged <- fragment, drifted: all evaluations, without texts
--   superseded, current <- logged, succession: what has a newer builder measured again?
--   bad_verdict <- current: which builder has failed which kernel?
--   evaluation <- current, bad_verdict: which evaluations count, and which found their program?
--   measured <- evaluation: which speedup is the label of a kernel?
--   first_found, nearest_to_median, kernel <- measured, evaluation: which evaluation is its row, and which flags has it?
--   unlabelled, failure <- evaluation, measured: which programs have no label, and which evaluations are their rows?
--   label_source, refusal_source <- kernel, failure, fragment: what does a row take from another evaluation?
--   kernels, failures, evaluations <- kernel, failure, evaluation, chunk: the rows of the archive

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
       started_at, role, outcome, speedup, excluded, artificial, narrow_domain,
       outcome <> 'infrastructure_failure' AS has_verdict,
       CASE role WHEN 'held_out' THEN 0 WHEN 'training' THEN 1 ELSE 2 END AS role_rank,
       evaluation_id IN (SELECT evaluation_id FROM drifted) AS drifted
FROM fragment;

-- All pairs of builders are looked up before any row changes: a chain of builders has one outcome.
CREATE TABLE superseded AS
SELECT DISTINCT e.evaluation_id
FROM logged e JOIN succession s ON s.older = e.builder
JOIN (SELECT DISTINCT kernel_id, builder FROM logged WHERE has_verdict) n
  ON n.builder = s.newer AND n.kernel_id = e.kernel_id
WHERE e.outcome = 'success' AND e.excluded IS NULL;

CREATE TABLE current AS
SELECT * REPLACE (CASE WHEN evaluation_id IN (SELECT evaluation_id FROM superseded)
                       THEN '$superseded' ELSE excluded END AS excluded)
FROM logged;

-- A bad verdict, a refusal or a success that its recipe excludes, contests the successes beside it, unless a builder that
-- supersedes its own has judged the kernel, or its recipe excludes it.
CREATE TABLE bad_verdict AS
SELECT DISTINCT kernel_id, builder FROM current
WHERE has_verdict
  AND ((outcome = 'success' AND excluded IS NOT NULL) OR (outcome <> 'success' AND excluded IS NULL))
  AND (kernel_id, builder) NOT IN (
      SELECT (e.kernel_id, s.older) FROM current e JOIN succession s ON s.newer = e.builder WHERE has_verdict);

-- Good is a measurement that counts for the label; found says that it found its program, also where it was superseded or
-- contested; nth, which of several equal measurements of one search it is: equal ones of two searches have the same nth,
-- and count once. Which evaluation of a program comes first: by role, search and position in it.
CREATE TABLE evaluation AS
SELECT *, outcome = 'success' AND excluded IS NULL AS good,
       outcome = 'success' AND (excluded IS NULL OR excluded IN ('$superseded', '$contested')) AS found,
       row_number() OVER (PARTITION BY kernel_id, search_id, started_at, speedup) AS nth
FROM (SELECT * REPLACE (CASE WHEN outcome = 'success' AND excluded IS NULL
                                  AND builder IN (SELECT builder FROM unanimous)
                                  AND (kernel_id, builder) IN (SELECT (kernel_id, builder) FROM bad_verdict)
                             THEN '$contested' ELSE excluded END AS excluded)
      FROM current);

-- The measurements of a kernel taken together: the median one, of an even number the lower middle one, since a label is
-- what was measured, with its own times. What two searches share has the same nth in both, and is one measurement.
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
       NOT held_out AND (program_id IN (SELECT program_id FROM measured WHERE held_out)
                         OR token_id IN (SELECT token_id FROM measured WHERE held_out)) AS withheld,
       kernel_id IN (SELECT kernel_id FROM bad_verdict) AS contested,
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
CREATE TABLE unlabelled AS
SELECT kernel_id, search_id AS label_search, seq AS label_seq,
       count(*) OVER (PARTITION BY kernel_id)::INTEGER AS n_evaluations
FROM evaluation
WHERE excluded IS NULL AND kernel_id NOT IN (SELECT kernel_id FROM measured)
  AND (has_verdict OR kernel_id NOT IN (SELECT kernel_id FROM evaluation WHERE outcome = 'success'))
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY NOT has_verdict, role_rank, search_id, seq) = 1;

-- What found the program: mostly what refused it, else a success that does not count.
CREATE TABLE failure AS
SELECT u.*, e.search_id, e.seq FROM unlabelled u JOIN evaluation e USING (kernel_id)
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY NOT has_verdict, role_rank, search_id, seq) = 1;

-- What a row takes from another evaluation than the one that found its program: from the one that gave the label, or the
-- refusal.
CREATE TABLE label_source AS
SELECT k.kernel_id, fr.runtime_us, fr.reference_runtime_us, fr.cases
FROM kernel k JOIN fragment fr ON fr.search_id = k.label_search AND fr.seq = k.label_seq
WHERE (k.label_search, k.label_seq) <> (k.search_id, k.seq);

CREATE TABLE refusal_source AS
SELECT f.kernel_id, fr.outcome, fr.error_type, fr.error_text
FROM failure f JOIN fragment fr ON fr.search_id = f.label_search AND fr.seq = f.label_seq
WHERE (f.label_search, f.label_seq) <> (f.search_id, f.seq);

-- Rows of the large tables that are in chunk, in any order, with the columns of their schema and what their splits need.
CREATE VIEW kernels AS
SELECT c.* REPLACE (k.speedup AS speedup,
                    CASE WHEN src.kernel_id IS NULL THEN c.runtime_us ELSE src.runtime_us END AS runtime_us,
                    CASE WHEN src.kernel_id IS NULL THEN c.reference_runtime_us
                         ELSE src.reference_runtime_us END AS reference_runtime_us,
                    CASE WHEN src.kernel_id IS NULL THEN c.cases ELSE src.cases END AS cases),
       k.n_measurements, k.speedup_min, k.speedup_max, k.flags, k.held_out, k.withheld, bin_of(k.speedup) AS bin
FROM (SELECT *, list_filter([$flags], lambda x: x IS NOT NULL) AS flags FROM kernel) k
JOIN chunk c ON c.search_id = k.search_id AND c.seq = k.seq
LEFT JOIN label_source src ON src.kernel_id = k.kernel_id;

CREATE VIEW failures AS
SELECT c.* REPLACE (CASE WHEN src.kernel_id IS NULL THEN c.outcome ELSE src.outcome END AS outcome,
                    CASE WHEN src.kernel_id IS NULL THEN c.error_type ELSE src.error_type END AS error_type,
                    CASE WHEN src.kernel_id IS NULL THEN c.error_text ELSE src.error_text END AS error_text),
       f.n_evaluations
FROM failure f
JOIN chunk c ON c.search_id = f.search_id AND c.seq = f.seq
LEFT JOIN refusal_source src ON src.kernel_id = f.kernel_id;

CREATE VIEW evaluations AS
SELECT c.* REPLACE (coalesce(e.excluded, CASE WHEN e.kernel_id IN (SELECT kernel_id FROM kernel WHERE withheld)
                                              THEN '$withheld' END) AS excluded)
FROM evaluation e JOIN chunk c ON c.search_id = e.search_id AND c.seq = e.seq;

-- Counts for the manifest.
CREATE VIEW report AS
SELECT count(*) FILTER (excluded = '$contested') AS contested_evaluations,
       count(*) FILTER (excluded NOT IN ('$superseded', '$contested')) AS excluded_evaluations,
       (SELECT count(*) FROM superseded) AS superseded_evaluations,
       (SELECT count(*) FROM kernel WHERE n_measurements > 1) AS remeasured_kernels,
       (SELECT count(*) FROM kernel WHERE withheld) AS withheld_from_train
FROM evaluation;
