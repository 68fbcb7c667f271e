-- A run of KernelBench or a relative: eval_results.json, or a *_eval_result.json for each sample, with the programs beside it.
-- Somewhere below the folder: KernelBench's results/timing of the version that was run (its sizes changed from v0 to v0.1), and the
-- reference programs level1/1_*.py and so on. The line BASELINE says which of the timing files of the run's GPU counts: eager PyTorch, or
-- baseline_time_torch_compile_inductor_default.json and others. A ref_runtime of the run itself counts before it.
-- Files: **/eval_results.json, **/*_eval_result.json
WITH json AS (SELECT filename, content FROM read_text('**/*.json')),
py AS (SELECT filename, content FROM read_text('**/*.py')),
result AS (  -- every object that is a result, with the numbers of the keys that lead to it: (level,) problem, sample
  SELECT f.filename, regexp_extract(f.filename, '^(.*/)?', 0) AS folder, t.value AS r, t.fullkey,
         regexp_extract(f.filename, 'level_(\d+)_problem_(\d+)_sample_(\d+)_eval', ['level', 'problem', 'sample']) AS named,
         regexp_extract_all(t.fullkey, '[^.\[\]"$]+') AS keys
  FROM json f, json_tree(f.content) t
  WHERE t.type = 'OBJECT' AND f.filename LIKE '%eval_result%' AND (json_exists(t.value, '$.compiled') OR
        json_exists(t.value, '$.correctness') OR json_exists(t.value, '$.runtime'))
), numbered AS (
  SELECT *, named.sample <> '' AS alone, CASE WHEN keys[1] LIKE 'level%' OR len(keys) = 3 THEN keys ELSE [NULL] || keys END AS path,
         (SELECT max(nullif(regexp_extract(py.filename, '/?level_(\d+)_problem_\d+_sample_\d+_kernel\.py$', 1), ''))
          FROM py WHERE starts_with(py.filename, result.folder)) AS run_level FROM result
), placed AS (
  SELECT * EXCLUDE (keys, named, path), CASE WHEN alone THEN named.problem ELSE regexp_extract(path[2], '\d+$') END::INTEGER AS problem,
         coalesce(CASE WHEN alone THEN named.level ELSE regexp_extract(path[1], '\d+$') END, r->>'level', run_level)::INTEGER AS level,
         CASE WHEN alone THEN named.sample ELSE coalesce(r->>'sample_id', regexp_extract(path[3], '\d+$'), '0') END::INTEGER AS sample,
         r->'metadata' AS m, coalesce(r->>'$.metadata.hardware', r->>'$.runtime_stats.hardware') AS gpu FROM numbered
), baseline AS (
  SELECT regexp_extract(l.key, '\d+$')::INTEGER AS level, regexp_extract(p.key, '^\d+')::INTEGER AS problem,
         (p.value->>'mean')::DOUBLE * 1000 AS us, p.value->>'hardware' AS gpu, f.filename
  FROM json f, json_each(f.content) l, json_each(l.value) p
  WHERE ends_with(f.filename, 'baseline_time_torch.json')  -- BASELINE
    AND l.key LIKE 'level%'
)
SELECT concat_ws('/', p.level, p.problem, sample) AS node_id, 'kernelbench_l' || p.level || '_p' || p.problem AS problem,
       trim(folder, '/') AS search, k.content AS code, program_file, ref.content AS reference_code,
       p.gpu, CASE WHEN own_us IS NULL THEN b.gpu END AS reference_gpu, own_us AS reference_runtime_us,
       CASE WHEN own_us IS NULL OR b.gpu = p.gpu THEN b.us END AS baseline_us,
       (r->>'runtime')::DOUBLE * 1000 AS runtime_us, (r->>'$.runtime_stats.mean')::DOUBLE * 1000 AS mean_runtime_us,
       CASE WHEN coalesce(r->>'compiled', '') <> 'false' AND coalesce(r->>'correctness', '') <> 'false' THEN 'success'
            WHEN m->>'compilation_error' <> '' THEN 'compile_failed'
            WHEN coalesce(m->>'cuda_error', m->>'runtime_error') <> '' THEN 'runtime_error'
            WHEN coalesce(m->>'gpu_error', m->>'other_error') <> '' THEN 'infrastructure_failure'
            WHEN r->>'compiled' = 'false' THEN 'compile_failed' ELSE 'incorrect' END AS outcome,
       coalesce(m->>'compilation_error_name', m->>'cuda_error_name', m->>'runtime_error_name') AS error_type,
       coalesce(m->>'compilation_error', m->>'cuda_error', m->>'runtime_error', m->>'gpu_error', m->>'other_error',
                m->>'correctness_issue') AS error_text, p.filename AS source_file
FROM (SELECT *, CASE WHEN (r->>'ref_runtime')::DOUBLE > 0 THEN (r->>'ref_runtime')::DOUBLE * 1000 END AS own_us,
             format('{}level_{}_problem_{}_sample_{}_kernel.py', folder, level, problem, sample) AS program_file FROM placed
      QUALIFY row_number() OVER (PARTITION BY folder, level, problem, sample ORDER BY alone) = 1) p
LEFT JOIN py k ON k.filename = program_file
LEFT JOIN py ref ON regexp_matches(ref.filename, format('(^|/)level{}/{}_[^/]*\.py$', p.level, p.problem))
LEFT JOIN baseline b ON b.level = p.level AND b.problem = p.problem  -- of several GPUs the row's own; of several files the first
QUALIFY row_number() OVER (PARTITION BY folder, p.level, p.problem, sample ORDER BY b.gpu IS DISTINCT FROM p.gpu, b.filename) = 1
ORDER BY p.filename, p.level, p.problem, sample
