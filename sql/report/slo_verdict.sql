-- title: SLO verdicts
-- question: Which objectives does each run keep, and where can nobody say?
-- panel: table
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken, in the run as a whole or in this tier
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column slo: the service level objective
-- column tier: gateway (single calls) or agent (whole tasks)
-- column level: number of the offered load in the tier, from 1
-- column users: how many users at once
-- column steps: which calls of a task count
-- column indicator: the metric that is bounded
-- column unit: of objective, estimate, lower and upper
-- column fraction: of the samples that must keep the objective, 0.95 for p95
-- column objective: the bound
-- column estimate: what was measured at that fraction; Infinity where failures reach it
-- column lower: one-sided 95 percent bound from below
-- column upper: one-sided 95 percent bound from above
-- column n: samples
-- column effective_n: samples that count as independent of each other
-- column verdict: PASS (upper keeps it), FAIL (lower breaks it) or INCONCLUSIVE
-- column reason: why, in words
-- column claimed_at: when the run got its slot
create view report.slo_verdict as
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, verdict.tier) as is_valid, run.repeat, run.plan, run.target,
    verdict.slo, verdict.tier, verdict.level,
    (run.documents #>> array['run', 'plan', 'document', 'tiers', verdict.tier, 'levels', (verdict.level - 1)::text, 'users'])::integer as users,
    verdict.steps, verdict.indicator, verdict.unit, verdict.fraction, verdict.objective,
    verdict.estimate, verdict.lower, verdict.upper, verdict.n, verdict.effective_n, verdict.verdict, verdict.reason,
    run.claimed_at
from verdict
join run using (run_id, attempt);
comment on view report.slo_verdict is 'one row per run, SLO and level';
