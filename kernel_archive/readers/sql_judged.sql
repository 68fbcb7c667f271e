-- The rows of a query's answer, given, with what follows from their own values and from the other rows of their problem.
-- {cells}, {values}, {others}, has_outcome and both_times come from sql_doubts.py.
SET VARIABLE doubted_above = 1.02::DOUBLE;  -- a speedup further from the ratio of its own times is doubted
SET VARIABLE refused_above = 1.20::DOUBLE;  -- and beyond this it does not count
SET VARIABLE spread = 2.0::DOUBLE;  -- one text's speedups spread further: it can't be one program that was measured again
SET VARIABLE lowest = 0.25::DOUBLE;  -- upper edge of the lowest bin
SET VARIABLE few = 4;  -- rows of a problem, or ratios, among which shares are judged
SET VARIABLE path = '[\w./\\:@+-]{1,300}|[^\n]{1,300}\.(?:py|cu|cuh|cpp|cc|hip|txt|triton|ptx)';  -- a text that is no program
CREATE MACRO cell(x) AS CASE WHEN lower(trim(x::VARCHAR)) NOT IN ('', 'none', 'null', 'nan', 'na', 'n/a', '<na>') THEN x::VARCHAR END;
CREATE VIEW cells AS SELECT row_number() OVER () AS row_n, {cells} FROM answer;
CREATE TABLE given AS SELECT row_n, {values} FROM cells;
CREATE MACRO positive(x) AS CASE WHEN isfinite(x) AND x > 0 THEN x END;
CREATE MACRO factor(x, y) AS greatest(x / y, y / x);  -- how far two numbers are apart, from 1

-- How each row ended, and its numbers without those that can be none.
CREATE VIEW ended AS
SELECT * REPLACE (positive(speedup) AS speedup, positive(runtime_us) AS runtime_us, positive(baseline_us) AS baseline_us,
                  positive(reference_runtime_us) AS reference_runtime_us),
       CASE WHEN NOT getvariable('has_outcome') THEN 'success'
            WHEN lower(outcome) IN ('success', 'compile_failed', 'runtime_error', 'incorrect', 'infrastructure_failure') THEN lower(outcome)
            WHEN lower(outcome) = 'compile_error' THEN 'compile_failed'
            WHEN lower(outcome) = 'true' THEN 'success'
            WHEN lower(outcome) = 'false' THEN 'incorrect' END AS known_outcome,
       coalesce(known_outcome = 'success', false) AS ok
FROM given;

-- The reference's time: the row's own, else its baseline, which own times may deny.
CREATE VIEW timed AS
SELECT * REPLACE (coalesce(reference_runtime_us, baseline_us) AS reference_runtime_us),
       reference_runtime_us AS logged_reference_us,
       factor(reference_runtime_us, baseline_us) AS from_own, count(from_own) OVER () AS n_own,
       count(*) FILTER (from_own > getvariable('refused_above')) OVER () AS n_denied,
       median(from_own) OVER () AS median_from_own
FROM ended;

-- What the numbers of a row say of each other. counted_speedup: of a success the stated one, else the ratio of its times.
CREATE VIEW compared AS
SELECT *, reference_runtime_us / runtime_us AS ratio, speedup * runtime_us AS implied,
       CASE WHEN ok THEN coalesce(speedup, ratio) END AS counted_speedup,
       CASE WHEN ok THEN factor(speedup, ratio) END AS apart,
       factor(runtime_us, mean_runtime_us) AS apart_from_mean,
       coalesce(NOT same_gpu(gpu, reference_gpu), false) AS two_gpus,
       regexp_full_match(trim(code), getvariable('path')) AS is_path, md5(code) AS code_md5
FROM timed;

-- What the other rows of its problem say of a row.
CREATE VIEW grouped AS
SELECT *, count(code_md5) OVER problem AS n_problem,
       count(code_md5) OVER (PARTITION BY search, problem, code_md5) AS n_text,
       max(counted_speedup) OVER same_text / min(counted_speedup) OVER same_text AS text_spread,
       min(reference_runtime_us) FILTER (ok) OVER same_text AS least_reference,
       max(reference_runtime_us) FILTER (ok) OVER same_text AS most_reference,
       count(implied) OVER problem_gpu AS n_implied,
       median(implied) FILTER (ok AND ratio IS NULL) OVER problem_gpu AS median_implied,
       row_number() OVER (PARTITION BY code, {others} ORDER BY row_n) > 1 AS repeated,
       coalesce(min(code_md5) OVER of_row <> max(code_md5) OVER of_row, false) AS joined_twice
FROM compared
WINDOW problem AS (PARTITION BY search, problem), same_text AS (PARTITION BY search, problem, gpu, code_md5),
       problem_gpu AS (PARTITION BY search, problem, gpu),
       of_row AS (PARTITION BY source_file, source_row, CASE WHEN source_row IS NULL THEN row_n END, {others});

CREATE VIEW steady AS
SELECT *, factor(implied, median_implied) AS from_median_implied,
       count(*) FILTER (factor(implied, median_implied) <= getvariable('refused_above'))
           OVER (PARTITION BY search, problem, gpu) AS n_steady,
       coalesce(n_text > n_problem / 2 AND n_problem >= getvariable('few') AND NOT coalesce(is_root, false)
                AND NOT coalesce(most_reference > getvariable('spread') * least_reference, false)
                AND (code = reference_code OR text_spread > getvariable('spread')), false) AS is_reference
FROM grouped;

-- Why a row is left out, or excluded; whether it is a ratio that its own times make.
CREATE VIEW decided AS
SELECT *,
  CASE WHEN apart BETWEEN 500 AND 2000 OR apart BETWEEN 5e5 AND 2e6 THEN ' (is a time in another unit?)'
       WHEN speedup * ratio BETWEEN 0.98 AND 1.02 THEN ' (it is the inverse)' ELSE '' END AS hint,
  CASE WHEN known_outcome IS NULL THEN 'unknown-outcome'
       WHEN ok AND code IS NULL AND counted_speedup IS NULL THEN 'no-measurement'
       WHEN ok AND code IS NULL THEN 'no-code'
       WHEN is_path THEN 'no-program'
       WHEN ok AND apart_from_mean > getvariable('doubted_above') THEN 'runtime-contradicted'
       WHEN ok AND counted_speedup IS NULL THEN 'no-speedup' END AS left_out,
  CASE WHEN NOT ok AND code IS NULL THEN 'a failure without a program'
       WHEN apart > getvariable('refused_above') THEN 'its speedup contradicts the ratio of its times'
       WHEN ok AND two_gpus THEN 'its two times come from different GPUs'
       WHEN ok AND logged_reference_us IS NULL AND baseline_us IS NOT NULL AND n_denied > n_own / 2
       THEN 'the reference''s time of its run contradicts its baseline'
       WHEN joined_twice THEN 'its join matches several programs'
       WHEN is_reference THEN 'the reference stands in the place of its program' END AS excluded,
  coalesce(left_out IS NULL AND excluded IS NULL AND ok AND speedup IS NULL AND NOT coalesce(is_root, false), false) AS is_ratio
FROM steady;

CREATE TABLE judged AS
SELECT *, count(*) FILTER (is_ratio) OVER () AS n_ratios,
       median(counted_speedup) FILTER (is_ratio) OVER () AS median_ratio,
       count(*) FILTER (is_ratio AND counted_speedup <= getvariable('lowest')) OVER () AS n_low
FROM decided;

CREATE VIEW missing AS  -- files of programs that are not there, the first three by name
WITH file AS (
  SELECT left_out IS NOT NULL AS is_left_out, program_file, min(row_n) AS first FROM judged
  WHERE code IS NULL AND program_file IS NOT NULL AND coalesce(left_out, 'no-code') = 'no-code' GROUP BY 1, 2)
SELECT is_left_out, format(' (no file {}', array_to_string(list(program_file ORDER BY first)[:3], ', '))
                    || CASE WHEN count(*) > 3 THEN format(' and {} more)', count(*) - 3) ELSE ')' END AS named
FROM file GROUP BY 1;

CREATE VIEW unknown_words AS  -- those that are no outcome, the most frequent first
SELECT coalesce(outcome, 'nothing')[:40] AS word, count(*) AS n FROM judged
WHERE left_out = 'unknown-outcome' GROUP BY outcome ORDER BY n DESC, outcome LIMIT 8;

CREATE VIEW evaluation AS
WITH named AS (
  SELECT *, coalesce(node_id, 'row-' || coalesce(source_row, row_n)) AS base FROM judged WHERE left_out IS NULL)
SELECT base || CASE WHEN row_number() OVER (PARTITION BY base ORDER BY row_n) > 1 THEN '@' || row_n ELSE '' END AS node_id,
       coalesce(code, '') AS code, known_outcome AS outcome, source_file, source_row AS source_line, parent_node_id,
       CASE WHEN step >= 0 THEN step END AS step, coalesce(is_root, false) AS is_root, counted_speedup AS speedup,
       CASE WHEN ok THEN runtime_us END AS runtime_us, CASE WHEN ok THEN reference_runtime_us END AS reference_runtime_us,
       error_type, error_text, started_at, completed_at, CASE WHEN gpu_seconds >= 0 THEN gpu_seconds END AS gpu_seconds,
       CASE WHEN input_tokens >= 0 THEN input_tokens END AS input_tokens,
       CASE WHEN output_tokens >= 0 THEN output_tokens END AS output_tokens,
       model, problem, gpu, reference_code, search, excluded
FROM named ORDER BY row_n
