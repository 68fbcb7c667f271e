-- Checkpoints of OpenEvolve and its relatives: a program a file, each of them again in every later checkpoint.
-- What a metric means only you know: correct the lines marked METRIC. A combined_score is neither a speedup nor a time.
-- Files: **/programs/*.json
WITH RECURSIVE program AS (  -- every program once, as its last checkpoint has it
  SELECT filename, regexp_replace(filename, '(openevolve_output/)?(checkpoints/)?(checkpoint_[^/]*/)?programs/[^/]*$', '') AS run,
         j->>'id' AS id, j->>'code' AS code, j->>'parent_id' AS parent, (j->>'iteration_found')::INTEGER AS step, j->'metrics' AS m,
         coalesce(j->>'$.metadata.migrant' = 'true', false) AS copied
  FROM (SELECT filename, TRY_CAST(content AS JSON) AS j FROM read_text('**/programs/*.json'))
  WHERE id IS NOT NULL AND code IS NOT NULL
  QUALIFY row_number() OVER (PARTITION BY run, id ORDER BY TRY_CAST(regexp_extract(filename, 'checkpoint_(\d+)', 1) AS INTEGER) DESC) = 1
), copy AS (  -- what a migrant, or a migrant of it, was copied from
  SELECT run, id, id AS origin, 0 AS depth FROM program
  UNION ALL
  SELECT c.run, c.id, CASE WHEN p.copied AND p.parent IS NOT NULL THEN p.parent
                           ELSE regexp_replace(p.id, '(_migrant_\d+)+$', '') END, c.depth + 1
  FROM copy c JOIN program p ON p.run = c.run AND p.id = c.origin
  WHERE c.depth < 50 AND (p.copied AND p.parent IS NOT NULL OR regexp_matches(p.id, '_migrant_\d+$'))
), named AS (  -- of copies with equal code and metrics the first stays
  SELECT p.*, first_value(p.id) OVER (PARTITION BY p.run, c.origin, p.code, p.m::VARCHAR ORDER BY p.id <> c.origin, p.id) AS stays
  FROM program p JOIN (SELECT DISTINCT ON (run, id) * FROM copy ORDER BY depth DESC) c USING (run, id)
), row AS (
  SELECT n.* EXCLUDE (parent, stays), coalesce(p.stays, n.parent) AS parent,
         TRY_CAST(m->>'speedup' AS DOUBLE) AS speedup,                                                     -- METRIC
         TRY_CAST(coalesce(m->>'runtime_ms', m->>'latency_ms', m->>'time_ms', m->>'ms') AS DOUBLE) * 1000 AS ms_as_us,  -- METRIC
         TRY_CAST(coalesce(m->>'runtime_us', m->>'latency_us', m->>'time_us', m->>'us') AS DOUBLE) AS us,  -- METRIC
         TRY_CAST(coalesce(m->>'correctness', m->>'correct', m->>'passed', m->>'valid', m->>'ok') AS DOUBLE) AS correct,  -- METRIC
         CASE WHEN json_type(m->'error') = 'VARCHAR' THEN m->>'error' END AS error
  FROM named n LEFT JOIN (SELECT run, id, stays FROM named) p ON p.run = n.run AND p.id = n.parent WHERE n.id = n.stays
), timed AS (
  SELECT *, nullif(greatest(coalesce(us, ms_as_us), 0), 0) AS t FROM row
), root AS (  -- the first program of a run that ran is its reference
  SELECT run, arg_min(t, (parent IS NOT NULL, step, id)) AS t, arg_min(code, (parent IS NOT NULL, step, id)) AS code,
         arg_min(id, (parent IS NOT NULL, step, id)) AS id
  FROM timed WHERE t > 0 AND coalesce(correct, 1) > 0 GROUP BY run
)
SELECT p.id AS node_id, p.parent AS parent_node_id, p.step, p.code, p.speedup, p.t AS runtime_us,
       CASE WHEN p.speedup IS NULL THEN root.t END AS reference_runtime_us,
       CASE WHEN p.speedup IS NULL THEN root.code END AS reference_code, coalesce(p.id = root.id, false) AS is_root,
       nullif(trim(p.run, '/'), '') AS search, p.error AS error_text, nullif(regexp_extract(p.error, '^\s*(\w+)\s*(:|$)', 1), '') AS error_type,
       CASE WHEN coalesce(p.correct, 1) > 0 THEN 'success' WHEN error_type ILIKE '%compil%' OR error_type ILIKE '%syntax%' THEN 'compile_failed'
            WHEN error_type ILIKE '%error' THEN 'runtime_error' ELSE 'incorrect' END AS outcome, p.filename AS source_file
FROM timed p LEFT JOIN root USING (run)
ORDER BY p.run, p.parent IS NOT NULL, p.step, p.id
