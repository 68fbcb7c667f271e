-- The AI CUDA Engineer Archive: its Parquet tables level_1 to level_3, with times in ms and the speedup beside them.
-- Files: level_?.parquet
SELECT Kernel_Name AS node_id,
       'kernelbench_l' || Level_ID || '_p' || Task_ID AS problem,
       CUDA_Code AS code,
       PyTorch_Code_Module AS reference_code,
       CUDA_Speedup_Native AS speedup,
       CUDA_Runtime * 1000 AS runtime_us,
       PyTorch_Native_Runtime * 1000 AS reference_runtime_us,
       CASE WHEN Correct THEN 'success' WHEN Correct IS NULL AND Error IS NOT NULL THEN 'runtime_error'
            WHEN NOT Correct THEN 'incorrect' END AS outcome,
       Error AS error_text,
       filename AS source_file,
       file_row_number + 1 AS source_row
FROM read_parquet(getvariable('file'), filename = true, file_row_number = true)
