-- robust-kbench: highlighted/results.csv, one selected program for each task and direction, and the reference beside the task.
-- Files: highlighted/results.csv
WITH reference AS (
  SELECT content, split_part(filename, '/', 2) AS task FROM read_text('tasks/*/func_forward.py')
)
SELECT CASE WHEN r."Correct" THEN 'success' ELSE 'incorrect' END AS outcome,
       'robust_kbench_' || r.task_name || CASE WHEN r.forward THEN '' ELSE '_backward' END AS problem,
       r."Speedup" AS speedup, r."Runtime (ms)" * 1000 AS runtime_us,
       r."Code" AS code, f.content AS reference_code,
       'highlighted/results.csv' AS source_file, r.line AS source_row
FROM (SELECT *, row_number() OVER () + 1 AS line
      FROM read_csv('highlighted/results.csv', header = true, max_line_size = 16000000)) r
LEFT JOIN reference f ON f.task = r.task_name
ORDER BY line
