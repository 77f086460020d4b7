-- title: Honesty
-- question: Which rules that keep a result honest were checked, with which bound, and what was seen?
-- panel: table
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column number: place in the order in which they were checked
-- column rule: which of the rules, docs/honesty.md
-- column scope: run, gateway or agent: what is not to be relied on where it is broken
-- column says: what must hold
-- column outcome: kept, BROKEN, finding (a reader must know; the numbers stand) or unverified (nobody can know)
-- column observed: what was seen
-- column bound: what was allowed
-- column examples: ids of some rows that broke it
-- column because: why this bound
-- column source: who asked for it in public: repository#number
-- column claimed_at: when the run got its slot
create view report.honesty as
select
    run.run_id, run.attempt, run.arm, run.engine, run.is_valid, run.repeat, run.plan, run.target,
    expectation.number, expectation.rule, expectation.scope, expectation.says,
    case
        when expectation.is_unverified then 'unverified'
        when expectation.success then 'kept'
        when expectation.kind = 'finding' then 'finding'
        else 'BROKEN'
    end as outcome,
    expectation.observed, expectation.expected as bound, nullif(expectation.examples, '') as examples,
    expectation.because, expectation.source, run.claimed_at
from expectation
join run using (run_id, attempt);
comment on view report.honesty is 'one row per run and rule that was checked on it';
