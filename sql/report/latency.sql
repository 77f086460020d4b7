-- title: Latency
-- question: How long do calls and tasks take, and how sure is that?
-- panel: bar x=arm y=estimate low=lower high=upper by=q
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column tier: gateway (single calls) or agent (whole tasks)
-- column level: number of the offered load in the tier, from 1
-- column users: how many users at once
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
    run.run_id, run.attempt, run.arm, run.engine, run.is_valid, run.repeat, run.plan, run.target,
    percentile.tier, percentile.level,
    (run.documents #>> array['run', 'plan', 'document', 'tiers', percentile.tier, 'levels', (percentile.level - 1)::text, 'users'])::integer as users,
    percentile.steps, percentile.metric, metric.unit, metric.better, percentile.q,
    percentile.estimate, percentile.lower, percentile.upper, percentile.n, percentile.failed, percentile.effective_n,
    run.claimed_at
from percentile
join run using (run_id, attempt)
left join metric on metric.name = percentile.metric;
comment on view report.latency is 'percentiles with bounds per run, tier, level, steps and metric';
