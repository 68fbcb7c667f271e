-- CUDA-L1: a file of JSON lines for each GPU (a100, h100, h20, l40, 3090), a program and its speedup over PyTorch eager a row.
-- Files: a100.json* h100.json* h20.json* l40.json* 3090.json*
SELECT custom_code AS code,
       score_default AS speedup,
       'kernelbench_l' || level_id || '_p' || task_id AS problem,
       ref_code AS reference_code,
       filename AS source_file,
       row_number() OVER () AS source_row,
       CASE WHEN filename LIKE '%3090%' THEN 'RTX3090' ELSE upper(regexp_extract(filename, '(\w+)\.json\w*(\.\w+)?$', 1)) END AS gpu
FROM read_json(getvariable('file'), filename = true,
               columns = {custom_code: 'VARCHAR', score_default: 'VARCHAR', level_id: 'INTEGER', task_id: 'INTEGER', ref_code: 'VARCHAR'})
