-- kernelbench.com, KernelBench-Hard: a file for each agent's run with its times per shape, the program in public/runs, and the
-- times of the references per problem and GPU. A reference that was timed at other shapes than the run is no baseline.
-- Files: public/data/rundetail/**/*.json public/runs/**/*_solution.py.txt
WITH run AS (
  SELECT *, parse_filename(filename, true) AS stem, len(shapes) AS n_shapes,
         list_sum([ln(s.ms) FOR s IN shapes IF s.ms > 0]) / len(shapes) AS log_ms,
         len([1 FOR s IN shapes IF s.ms > 0]) AS n_timed
  FROM read_json('public/data/rundetail/**/*.json', filename = true, columns = {
    run_id: 'VARCHAR', bench: 'VARCHAR', gpu: 'VARCHAR', problem: 'VARCHAR', model: 'VARCHAR', harness: 'VARCHAR',
    correct: 'BOOLEAN', failure_reason: 'VARCHAR', shapes: 'STRUCT(ms DOUBLE, label VARCHAR)[]',
    stats: 'STRUCT(input_tokens BIGINT, output_tokens BIGINT)'})
),
program AS (
  SELECT content, filename LIKE '%/h100/%' AS on_h100, filename LIKE '%/b200/%' AS on_b200,
         replace(parse_filename(filename), '_solution.py.txt', '') AS stem
  FROM read_text('public/runs/**/*_solution.py.txt')
),
baseline AS (
  SELECT gpu, unnest(map_entries(problems)) AS entry
  FROM (SELECT 'rtxpro6000' AS gpu, problems FROM read_json('benchmarks/hard/results/problem_baselines.json',
          columns = {problems: 'MAP(VARCHAR, STRUCT(eager STRUCT(ms DOUBLE, n_shapes INTEGER)))'})
        UNION ALL
        SELECT regexp_extract(filename, '(h100|b200)'), problems
        FROM read_json('benchmarks/hard/results/problem_baselines.*.json', filename = true,
          columns = {problems: 'MAP(VARCHAR, STRUCT(eager STRUCT(ms DOUBLE, n_shapes INTEGER)))'}))
),
reference AS (
  SELECT content, split_part(filename, '/', 2) AS bench, regexp_extract(filename, 'problems-(\w+)/', 1) AS gpu,
         split_part(filename, '/', 4) AS problem
  FROM read_text('benchmarks/*/problems-*/*/reference.py')
)
SELECT CASE WHEN r.correct THEN 'success' WHEN r.failure_reason IN ('check_failed', 'incorrect', 'audit_empirical_failed') THEN 'incorrect'
            WHEN r.failure_reason IN ('timeout', 'check_timeout') THEN 'runtime_error' ELSE 'infrastructure_failure' END AS outcome,
       'kernelbench_' || r.bench || '_' || r.problem AS problem,
       CASE r.gpu WHEN 'rtxpro6000' THEN 'RTX PRO 6000' ELSE upper(r.gpu) END AS gpu,
       r.model, r.harness || ' ' || r.run_id AS search,
       CASE WHEN r.correct AND r.n_timed = r.n_shapes AND b.entry.value.eager.n_shapes = r.n_shapes
            THEN b.entry.value.eager.ms / exp(r.log_ms) END AS speedup,
       CASE WHEN r.n_timed = r.n_shapes AND b.entry.value.eager.n_shapes = r.n_shapes
            THEN b.entry.value.eager.ms * 1000 END AS reference_runtime_us,
       CASE WHEN r.correct AND r.n_timed = r.n_shapes THEN exp(r.log_ms) * 1000 END AS runtime_us,
       r.failure_reason AS error_text, r.stats.input_tokens AS input_tokens, r.stats.output_tokens AS output_tokens,
       p.content AS code, f.content AS reference_code, r.filename AS source_file, 1 AS source_row
FROM run r
LEFT JOIN program p ON p.stem = r.stem AND p.on_h100 = (r.gpu = 'h100') AND p.on_b200 = (r.gpu = 'b200')
LEFT JOIN baseline b ON b.gpu = r.gpu AND b.entry.key = r.problem AND r.bench = 'hard'
LEFT JOIN reference f ON f.bench = r.bench AND f.gpu = r.gpu AND f.problem = r.problem
ORDER BY r.filename
