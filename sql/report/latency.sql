-- title: Latency
-- question: How long do calls and tasks take, and how sure is that?
-- panel: bar x=arm y=estimate low=lower high=upper by=q
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
-- column users: how many users at once; null in an open loop
-- column rate_per_s: calls or tasks begun per second; null in a closed loop
-- column window_state: steady; too_short to tell; no_steady_state; overload (declared); null where nobody looked
-- column window_s: length of the window that the samples were sent in
-- column steps: all calls; of agent tasks also the first call alone, and the later ones
-- column metric: what was measured
-- column unit: of estimate, lower and upper
-- column better: which way is good
-- column q: the quantile, 0.95 for p95
-- column estimate: nearest rank over the steady window, failures included; Infinity where failures reach the rank
-- column lower: lower end of the two-sided 95 percent bound; null where there are too few samples for one
-- column upper: upper end of it
-- column n: samples
-- column failed: those of them that failed, or were cut off after the whole drain, each counted as infinite
-- column effective_n: samples that count as independent of each other
-- column claimed_at: when the run got its slot
create view report.latency as
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, percentile.tier) as is_valid, run.repeat, run.plan, run.target,
    percentile.tier, percentile.level,
    (run.documents #>> array['run', 'plan', 'document', 'tiers', percentile.tier, 'levels', (percentile.level - 1)::text, 'users'])::integer as users,
    tier_level.rate_per_s, tier_level.state as window_state, tier_level.window_s,
    percentile.steps, percentile.metric, metric.unit, metric.better, percentile.q,
    percentile.estimate, percentile.lower, percentile.upper, percentile.n, percentile.failed, percentile.effective_n,
    run.claimed_at
from percentile
join run using (run_id, attempt)
left join tier_level using (run_id, attempt, tier, level)
left join metric on metric.name = percentile.metric;
comment on view report.latency is 'percentiles with bounds per run, tier, level, steps and metric';
