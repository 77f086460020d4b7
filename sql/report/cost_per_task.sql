-- title: Cost of one successful task
-- question: What does one task that ended right cost, paid for all-in and in the steady state?
-- panel: bar x=arm y=usd_per_task by=lens
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken, in the run as a whole or in the tier of the tasks
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column lens: all_in (from binding the slot to proven release) or sustained (steady window of the best level that keeps the SLO)
-- column usd_per_task: US dollars per successful task; null where none succeeded or no price is known
-- column tasks: successful tasks
-- column gpu_s: seconds paid for
-- column price_usd_per_hour: price of the machine
-- column price_key: where that price stands, deploy/prices
-- column is_nominal: the price is a figure chosen to make the arithmetic visible, not a market price
-- column reason: what the figure rests on, or why there is none
-- column claimed_at: when the run got its slot
create view report.cost_per_task as
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, 'agent') as is_valid, run.repeat, run.plan, run.target,
    cost.lens, cost.usd_per_task, cost.tasks, cost.gpu_s, cost.price_usd_per_hour, cost.price_key, cost.is_nominal,
    cost.reason, run.claimed_at
from cost
join run using (run_id, attempt);
comment on view report.cost_per_task is 'one row per run and lens';
