-- title: Where the time of a run went
-- question: How long did each stage take, and for how much of it was the GPU held?
-- panel: bar x=run_id y=seconds_s by=stage
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column stage: the stage
-- column try: its tries within the attempt, counted from 1
-- column state: done or failed
-- column error: what it said when it failed
-- column began_at: when it began
-- column seconds_s: how long it took
-- column held_s: seconds of it during which the run held the GPU
-- column claimed_at: when the run got its slot
create view report.phase as
select
    run.run_id, run.attempt, run.arm, run.engine, run.is_valid, run.repeat, run.plan, run.target,
    phase.stage, phase.try, phase.state, phase.error, phase.began_at,
    extract(epoch from phase.ended_at - phase.began_at)::double precision as seconds_s,
    greatest(0, extract(epoch from
        least(phase.ended_at, run.released_at) - greatest(phase.began_at, run.claimed_at)
    ))::double precision as held_s,
    run.claimed_at
from phase
join run using (run_id, attempt);
comment on view report.phase is 'one row per run, stage and try';
