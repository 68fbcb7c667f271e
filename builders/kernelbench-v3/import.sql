-- KernelBench-v3: results.csv with a row for each model, problem and GPU; the programs in solutions/, the references in references/.
-- Files: **/v3/results.csv
WITH program AS (SELECT filename, content FROM read_text('**/*.py*')),
result AS (SELECT *, row_number() OVER () + 1 AS line FROM read_csv('results.csv', header = true))
SELECT CASE WHEN r.correct THEN 'success' WHEN r.compiled THEN 'incorrect' ELSE 'compile_failed' END AS outcome,
       'kernelbench_v3_l' || r.level || '_' || replace(r.problem, '.py', '') AS problem,
       r.gpu, r.model, r.model || ' ' || r.run_dir AS search,
       r.speedup, r.ref_ms * 1000 AS reference_runtime_us, r.sol_ms * 1000 AS runtime_us,
       own.content AS code, reference.content AS reference_code, 'results.csv' AS source_file, r.line AS source_row
FROM result r
LEFT JOIN program own ON own.filename = 'solutions/' || parse_filename(r.solution_link)
LEFT JOIN program reference ON reference.filename = 'references/' || parse_filename(r.baseline_link)
ORDER BY line
