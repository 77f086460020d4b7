-- title: Runs
-- question: What was run, did the pipeline work, is the result honest, and were the answers right?
-- panel: table
-- column run_id: the run
-- column attempt: the number of the try
-- column claimed_at: when the run got its slot
-- column arm: server configuration under test
-- column control: the arm that it is compared with
-- column engine: which server; rows of the sim are no measurements
-- column plan: what was measured
-- column plan_digest: of the plan's content; two runs of a plan that was edited between them measured different things
-- column target: where
-- column repeat: index of the repetition, each a deployment of its own
-- column state: done, gate_failed (the tiers were skipped) or failed
-- column failed_stage: the first stage that did not do its work
-- column error: what it said
-- column is_valid: no rule that keeps a result honest was broken
-- column invalid_reasons: the rules that were broken
-- column invalid_scopes: where: the run as a whole, or one tier, whose numbers alone are then not to be relied on
-- column findings: what a reader must know before reading the numbers; breaks nothing
-- column gate: verdict of the golden gate; UNGATED where the plan skipped it
-- column golden_sha256: which golden set it was, by its content
-- column golden_passed: cases that passed, known limits of the model left out
-- column golden_cases: cases that were evaluated, known limits of the model left out
-- column requests: model calls of both tiers, warm-up and aborted ones included
-- column failed_requests: those of them that failed
-- column tasks: agent tasks, warm-up and aborted ones included
-- column successful_tasks: those of them that ended right
-- column gpu_model: the accelerator; null on a CPU
-- column versions: of engine, libraries and host
-- column varies: the keys in which the arm may differ from its control, as JSON
-- column start_s: seconds from start to ready
-- column gpu_held_s: seconds from binding the slot to proven release
-- column ended_at: when the last stage ended
create view report.run as
select
    run.run_id, run.attempt, run.claimed_at, run.arm, run.control, run.engine, run.plan, run.plan_digest,
    run.target, run.repeat,
    run.state, run.failed_stage, run.error, run.is_valid, array_to_string(run.invalid_reasons, '; ') as invalid_reasons,
    array_to_string(run.invalid_scopes, ', ') as invalid_scopes, array_to_string(run.findings, '; ') as findings,
    case when run.is_gated then run.gate_verdict else 'UNGATED' end as gate, run.golden_sha256,
    golden.passed as golden_passed, golden.cases as golden_cases,
    request.n as requests, request.failed as failed_requests, task.n as tasks, task.successful as successful_tasks,
    run.gpu_model, run.versions, run.documents #> array['run', 'arm', 'document', 'varies'] as varies, run.start_s, run.gpu_held_s, run.ended_at
from run
cross join lateral (
    select count(*) filter (where outcome = 'pass') as passed, count(*) as cases
    from golden
    where golden.run_id = run.run_id and golden.attempt = run.attempt and is_known_limit is not true
) as golden
cross join lateral (
    select count(*) as n, count(*) filter (where failure is not null and is_aborted is not true) as failed
    from request
    where request.run_id = run.run_id and request.attempt = run.attempt
) as request
cross join lateral (
    select count(*) as n, count(*) filter (where is_success and is_aborted is not true) as successful
    from agent_task
    where agent_task.run_id = run.run_id and agent_task.attempt = run.attempt
) as task;
comment on view report.run is 'one row per attempt at a run';
