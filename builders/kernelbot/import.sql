-- KernelBot: submissions to the competitions of GPU MODE. The table has no time of a reference: the first passing submission
-- of the same leaderboard and GPU is the reference.
-- Files: successful_submissions*.parquet
WITH run AS (
  SELECT file_row_number + 1 AS row, leaderboard_id::VARCHAR AS problem, run_id, code, run_system_info.gpu AS gpu, submission_time,
         run_passed AS passed, CASE WHEN run_score > 0 THEN run_score * 1e6 END AS us,
         filename
  FROM read_parquet(getvariable('file'), file_row_number = true, filename = true)
), first AS (
  SELECT problem, gpu, arg_min(us, row) AS us, arg_min(code, row) AS code, min(row) AS row
  FROM run WHERE passed AND us IS NOT NULL AND code IS NOT NULL GROUP BY ALL
)
SELECT run.run_id AS node_id, run.code, run.problem, run.gpu, run.us AS runtime_us,
       first.us AS reference_runtime_us, first.code AS reference_code,
       coalesce(run.row = first.row, false) AS is_root,
       CASE WHEN run.passed IS NULL THEN NULL WHEN run.passed THEN 'success' ELSE 'incorrect' END AS outcome,
       run.submission_time AS started_at, run.filename AS source_file, run.row AS source_row
FROM run LEFT JOIN first ON first.problem = run.problem AND first.gpu = run.gpu
ORDER BY run.row
