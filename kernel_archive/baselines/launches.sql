-- Features of what each program launches in one timed case. $1 is the number of multiprocessors,
-- $2 the least bytes and floating-point operations of timed cases, 1 where none are known.
-- Rough costs put calls on one scale: 4e-6 s for a launch, 3e-6 s for an operator, 3e12 bytes and
-- 2e14 operations a second, 4e-7 s for a trip of a loop. The 3e12 are older than the 4e12 of
-- launches.py and stay: frozen forecasts depend on them.
WITH calls AS (
    SELECT * REPLACE (n::DOUBLE AS n),
           coalesce(grid_x, 0) * coalesce(grid_y, 1) * coalesce(grid_z, 1)::DOUBLE AS blocks,
           kind = 'launch' AS is_launch, kind = 'operator' AS is_operator
    FROM launches WHERE kind IN ('launch', 'operator')
), sizes AS (
    -- Of each call: blocks a multiprocessor, trips one after the other, and trips of all blocks.
    SELECT *, greatest(1, blocks / $1::INTEGER) AS waves,
           n * trips * greatest(1, blocks / ($1::INTEGER * 16 / greatest(warps, 1)))
               AS serial,
           n * trips * blocks AS block_trips
    FROM calls
), cases AS (
    -- Sums over the calls of a case. idle: launches, each times multiprocessors / blocks, at
    -- least 1; largest: the launch with the most trips of all blocks.
SELECT program_id, problem, "case",
       coalesce(sum(n) FILTER (is_launch), 0) AS launches,
       coalesce(sum(n) FILTER (is_operator), 0) AS operators,
       coalesce(sum(n * greatest(1, $1::INTEGER / greatest(blocks, 1)))
           FILTER (is_launch), 0) AS idle,
       coalesce(sum(n * waves) FILTER (is_launch), 0) AS waves,
       coalesce(sum(serial) FILTER (is_launch), 0) AS serial,
       coalesce(max(trips) FILTER (is_launch), 0) AS trips,
       coalesce(sum(n * bytes) FILTER (is_operator), 0) AS operator_bytes,
       coalesce(sum(n * flops) FILTER (is_operator), 0) AS operator_flops,
       coalesce(sum(n * bytes) FILTER (is_launch), 0) AS launch_bytes,
       coalesce(min(blocks) FILTER (is_launch), 0) AS least_blocks,
       coalesce(max(blocks) FILTER (is_launch), 0) AS most_blocks,
       coalesce(sum(blocks) FILTER (is_launch), 0) AS blocks,
       count(DISTINCT name) FILTER (is_launch) AS kernels,
       coalesce(max(warps), -1) AS most_warps,
       coalesce(max(configurations), 0) AS configurations,
       count(*) FILTER (is_launch AND dots > 0) AS with_dots,
       first([warps, stages, trips, blocks, dots, loads, stores, reductions, loops,
              transcendentals, atomics, largest_tile] ORDER BY block_trips DESC NULLS LAST, launch_id)
           FILTER (is_launch) AS largest
FROM sizes GROUP BY ALL
), least_work AS (
    SELECT unnest($2, recursive := true)
), complete AS (
    -- known_bytes and known_flops: the least ones, or 1.
    SELECT * REPLACE (coalesce(largest, list_transform(range(12), lambda x: NULL)) AS largest),
           coalesce(least_bytes, 1) AS known_bytes, coalesce(least_flops + 1, 1) AS known_flops,
           4e-6::DOUBLE * launches + 3e-6::DOUBLE * operators
               + (operator_bytes + launch_bytes) / 3e12::DOUBLE + operator_flops / 2e14::DOUBLE
               AS seconds
    FROM cases LEFT JOIN least_work USING (problem, "case")
)
SELECT program_id, problem, "case", coalesce(least_bytes, 0), coalesce(least_flops, 0), list_concat([
    log2(1 + launches), log2(1 + operators), log2(1 + idle), log2(1 + waves), log2(1 + serial),
    log2(1 + trips), log2(1 + least_blocks), log2(1 + most_blocks), log2(1 + blocks),
    log2(1 + kernels), most_warps, configurations, with_dots,
    log2(1 + operator_bytes / known_bytes), log2(1 + operator_flops / known_flops),
    log2(1 + launch_bytes / known_bytes), log2(1 + known_bytes / greatest(1, blocks)),
    log2(seconds + 1e-7::DOUBLE), log2(seconds + 4e-7::DOUBLE * serial + 1e-7::DOUBLE)
]::DOUBLE[], list_transform(largest, lambda x: coalesce(log2(1 + x), -1))::DOUBLE[]) AS features
FROM complete ORDER BY ALL
