-- title: What the client itself adds
-- question: How far can the client's own stamps be trusted, before the load and under it?
-- panel: table
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken, in the run as a whole or in this tier
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column tier: gateway (single calls) or agent (whole tasks)
-- column path: direct or through_gateway (null calibration, before the load, engine idle), or load
-- column level: number of the offered load in the tier, from 1; of a calibration the highest one, whose load it has
-- column process: which of the client's processes, from 0; null: all together, lag, delay and CPU of the worst one
-- column streams: how many at once; null where an open loop leaves it to the arm
-- column rate_per_s: arrivals per second, in open loop
-- column chunks_per_s: of a calibration what was planned, of the load what came
-- column calls: calls that were sent
-- column calls_after_burst: those of them that the TTFT figures of a calibration rest on
-- column chunks: chunks that were heard
-- column stalls: long gaps between chunks; of a calibration those that were none at the server
-- column lost_chunks: chunks that the server sent and the client did not hear
-- column failed: calls that failed
-- column ttft_floor_ms_p50: TTFT that the client reports of a server that answers at once, less that server's own time, median
-- column ttft_floor_ms_p99: TTFT that the client reports of a server that answers at once, less that server's own time, 99th percentile
-- column ttft_floor_ms_max: TTFT that the client reports of a server that answers at once, less that server's own time, the most
-- column ttft_error_ms_p50: the client's stamp of the first chunk minus the server's, right before it sent, median
-- column ttft_error_ms_p99: the client's stamp of the first chunk minus the server's, right before it sent, 99th percentile
-- column ttft_error_ms_max: the client's stamp of the first chunk minus the server's, right before it sent, the most
-- column burst_ttft_error_ms_p50: the same of calls that all start at once, median
-- column burst_ttft_error_ms_p99: the same of calls that all start at once, 99th percentile
-- column burst_ttft_error_ms_max: the same of calls that all start at once, the most
-- column icl_error_ms_p50: by how much a gap between chunks at the client differs from the same gap at the server, median
-- column icl_error_ms_p99: by how much a gap between chunks at the client differs from the same gap at the server, 99th percentile
-- column icl_error_ms_max: by how much a gap between chunks at the client differs from the same gap at the server, the most
-- column schedule_delay_ms_p50: sent later than wanted, median
-- column schedule_delay_ms_p99: sent later than wanted, 99th percentile
-- column schedule_delay_ms_max: sent later than wanted, the most
-- column loop_lag_ms_p50: the client's event loop later than asked, median
-- column loop_lag_ms_p99: the client's event loop later than asked, 99th percentile
-- column loop_lag_ms_max: the client's event loop later than asked, the most
-- column server_late_ms_p50: lateness of the echo server itself; in none of the other figures, median
-- column server_late_ms_p99: lateness of the echo server itself; in none of the other figures, 99th percentile
-- column server_late_ms_max: lateness of the echo server itself; in none of the other figures, the most
-- column cpu_share: of one core
-- column is_enough: the client kept the planned rate within the bounds of rule 6; null for the load, and where not asked
-- column not_calibrated_because: why the plan asks for no calibration
-- column reason: why it is not enough
-- column fault: what went wrong beside
-- column claimed_at: when the run got its slot
create view report.client as
with load as (
    select
        run_id, attempt, tier, level, coalesce(process, 0) as process, max(users) as users, max(rate_per_s) as rate_per_s,
        sum(chunks) / nullif((max(t_end_ns) - min(t_send_ns)) / 1e9, 0) as chunks_per_s,
        count(*)::integer as calls, sum(chunks)::integer as chunks,
        count(*) filter (where failure is not null)::integer as failed
    from request
    group by run_id, attempt, tier, level, coalesce(process, 0)
),
part as (
    select
        run_id, attempt, tier, path, level, null::integer as process, streams, rate_per_s, chunks_per_s, calls,
        calls_after_burst, chunks, stalls, lost_chunks, failed,
        ttft_floor_ms_p50, ttft_floor_ms_p99, ttft_floor_ms_max,
        ttft_error_ms_p50, ttft_error_ms_p99, ttft_error_ms_max,
        burst_ttft_error_ms_p50, burst_ttft_error_ms_p99, burst_ttft_error_ms_max,
        icl_error_ms_p50, icl_error_ms_p99, icl_error_ms_max,
        schedule_delay_ms_p50, schedule_delay_ms_p99, schedule_delay_ms_max,
        loop_lag_ms_p50, loop_lag_ms_p99, loop_lag_ms_max,
        server_late_ms_p50, server_late_ms_p99, server_late_ms_max,
        cpu_share, is_enough, not_calibrated_because, reason, fault
    from calibration
    union all
    select
        run_id, attempt, tier, 'load', level, process, users, rate_per_s, chunks_per_s, calls,
        null, chunks, null, null, failed,
        null, null, null,
        null, null, null,
        null, null, null,
        null, null, null,
        schedule_delay_ms_p50, schedule_delay_ms_p99, schedule_delay_ms_max,
        loop_lag_ms_p50, loop_lag_ms_p99, loop_lag_ms_max,
        null, null, null,
        cpu_share, null, null, null, null
    from client_process
    left join load using (run_id, attempt, tier, level, process)
)
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, part.tier) as is_valid,
    run.repeat, run.plan, run.target,
    part.tier, part.path, part.level, part.process, part.streams, part.rate_per_s, part.chunks_per_s, part.calls,
    part.calls_after_burst, part.chunks, part.stalls, part.lost_chunks, part.failed,
    part.ttft_floor_ms_p50, part.ttft_floor_ms_p99, part.ttft_floor_ms_max,
    part.ttft_error_ms_p50, part.ttft_error_ms_p99, part.ttft_error_ms_max,
    part.burst_ttft_error_ms_p50, part.burst_ttft_error_ms_p99, part.burst_ttft_error_ms_max,
    part.icl_error_ms_p50, part.icl_error_ms_p99, part.icl_error_ms_max,
    part.schedule_delay_ms_p50, part.schedule_delay_ms_p99, part.schedule_delay_ms_max,
    part.loop_lag_ms_p50, part.loop_lag_ms_p99, part.loop_lag_ms_max,
    part.server_late_ms_p50, part.server_late_ms_p99, part.server_late_ms_max,
    part.cpu_share, part.is_enough, part.not_calibrated_because, part.reason, part.fault, run.claimed_at
from part
join run using (run_id, attempt);
comment on view report.client is 'what the client itself adds: null calibration per path, and each of its processes under load';
