-- CUDA-L2: half-precision matrix products, a program for each GPU, accumulator and shape, and tables of their speedups.
-- Files: eval_results/cuda_l2_*_speedup_offline.csv
WITH program AS (SELECT filename, content FROM read_text('kernels/**/*.cu')),
result AS (
  SELECT *, row_number() OVER (PARTITION BY filename) + 1 AS line,
         regexp_extract(filename, 'cuda_l2_(\w+?)_(F\w+)_speedup', ['gpu', 'types']) AS named
  FROM read_csv('eval_results/*_speedup_offline.csv', header = true, filename = true)
)
SELECT own.content AS code, "torch.matmul" AS speedup,
       'hgemm_' || named.types || '_' || mnk AS problem,
       CASE named.gpu WHEN '3090' THEN 'RTX3090' ELSE upper(named.gpu) END AS gpu,
       r.filename AS source_file, r.line AS source_row
FROM result r
LEFT JOIN program own ON own.filename = 'kernels/' || named.gpu || '_' || named.types || '/' || mnk || '.cu'
ORDER BY r.filename, line
