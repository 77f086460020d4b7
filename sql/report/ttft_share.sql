-- title: What share of TTFT is ours
-- question: How much of the time to the first token is the client's and the gateway's, and not the arm's?
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
-- column level: number of the offered load in the tier, from 1
-- column q: the quantile, 0.95 for p95; the floors are known at p50 and p99
-- column ttft_ms: of all calls in the steady window; Infinity where failures reach the rank
-- column client_ms: the client's floor at the same quantile, direct to a server that answers at once
-- column gateway_ms: the floor through the gateway less the direct one; below zero: nothing to be seen of it
-- column ours_share: client and gateway together, of ttft_ms; null where a part is not known or ttft_ms is infinite
-- column n: calls that ttft_ms rests on
-- column floor_calls: calls that client_ms rests on; below 100 its p99 is their maximum
-- column is_enough: the calibration showed a client that keeps the planned rate
-- column claimed_at: when the run got its slot
create view report.ttft_share as
with floor as (
    select
        run_id, attempt, tier, q,
        max(ms) filter (where path = 'direct') as client_ms,
        max(ms) filter (where path = 'through_gateway') - max(ms) filter (where path = 'direct') as gateway_ms,
        max(calls_after_burst) filter (where path = 'direct') as calls, bool_and(is_enough) as is_enough
    from calibration
    cross join lateral (values
        (0.5::double precision, ttft_floor_ms_p50), (0.99::double precision, ttft_floor_ms_p99)
    ) as at (q, ms)
    group by run_id, attempt, tier, q
)
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, floor.tier) as is_valid,
    run.repeat, run.plan, run.target,
    floor.tier, percentile.level, floor.q, percentile.estimate as ttft_ms, floor.client_ms, floor.gateway_ms,
    case when percentile.estimate > 0 and percentile.estimate < 'Infinity'
        then (floor.client_ms + greatest(0, floor.gateway_ms)) / percentile.estimate
    end as ours_share,
    percentile.n, floor.calls as floor_calls, floor.is_enough, run.claimed_at
from floor
join run using (run_id, attempt)
left join percentile on percentile.run_id = floor.run_id and percentile.attempt = floor.attempt
    and percentile.tier = floor.tier and percentile.q = floor.q
    and percentile.metric = 'ttft_ms' and percentile.steps = 'all';
comment on view report.ttft_share is 'client and gateway in the time to the first token, per run, tier, level and quantile';
