-- CUDA-L1: a file of JSON lines for each GPU (a100, h100, h20, l40, 3090), a program and its speedups over five baselines a row.
-- BASELINE, the last line, says which one counts: default (PyTorch eager), torch_compile_default, torch_compile_reduce_overhead,
-- cuda_graph or cudnn.
-- Files: a100.json* h100.json* h20.json* l40.json* 3090.json*
SELECT custom_code AS code,
       CASE baseline WHEN 'default' THEN score_default WHEN 'torch_compile_default' THEN score_torch_compile_default
            WHEN 'torch_compile_reduce_overhead' THEN score_torch_compile_reduce_overhead
            WHEN 'cuda_graph' THEN score_cuda_graph WHEN 'cudnn' THEN score_cudnn END AS speedup,
       'kernelbench_l' || level_id || '_p' || task_id AS problem,
       CASE baseline WHEN 'cuda_graph' THEN cuda_graph_code WHEN 'cudnn' THEN cudnn_code ELSE ref_code END AS reference_code,
       filename AS source_file,
       row_number() OVER () AS source_row,
       CASE WHEN filename LIKE '%3090%' THEN 'RTX3090' ELSE upper(regexp_extract(filename, '(\w+)\.json\w*(\.\w+)?$', 1)) END AS gpu
FROM read_json(getvariable('file'), filename = true, columns = {
       custom_code: 'VARCHAR', level_id: 'INTEGER', task_id: 'INTEGER', ref_code: 'VARCHAR', cuda_graph_code: 'VARCHAR',
       cudnn_code: 'VARCHAR', score_default: 'VARCHAR', score_torch_compile_default: 'VARCHAR',
       score_torch_compile_reduce_overhead: 'VARCHAR', score_cuda_graph: 'VARCHAR', score_cudnn: 'VARCHAR'}),
     (SELECT 'default' AS baseline)  -- BASELINE
