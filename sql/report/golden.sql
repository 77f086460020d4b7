-- title: Golden gate, case by case
-- question: Which answers were wrong on this deployment, and why?
-- panel: table
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column golden_set: the frozen set of cases
-- column case_id: the case
-- column category: kind of case
-- column outcome: pass, fail or error
-- column reason: what was wrong
-- column is_known_limit: this model is known not to manage this case; it counts neither way
-- column steps: model calls
-- column tool_calls: tool uses
-- column task_ms: milliseconds from the user's message to the final answer
-- column claimed_at: when the run got its slot
create view report.golden as
select
    run.run_id, run.attempt, run.arm, run.engine, run.is_valid, run.repeat, run.plan, run.target, run.golden_set,
    golden.case_id, golden.category, golden.outcome, golden.reason, golden.is_known_limit, golden.steps,
    golden.tool_calls, golden.task_ms, run.claimed_at
from golden
join run using (run_id, attempt);
comment on view report.golden is 'one row per run and golden case';
