-- Raw tables. Every key begins with the run and its attempt: a new try is a new attempt, never an edit of the old.
-- What was not measured is null, never 0; a failed request counts as 'Infinity' in a percentile, never as missing.

create schema report;
comment on schema report is 'views for people; see sql/report';

-- The metric table of tasks/metrics.py, written again by every migration.
create table metric (
    name text primary key,
    unit text not null,
    better text not null check (better in ('lower', 'higher', 'neither')),
    says text not null
);
comment on table metric is 'what each measurement means';

create table run (
    run_id text,
    attempt integer,
    arm text not null,
    arm_digest text not null,
    technique text not null,
    engine text not null,
    question text,
    control text,
    plan text not null,
    plan_digest text not null,
    target text not null,
    driver text not null,
    slot text not null,
    repeat integer not null,
    seed bigint not null,
    state text not null check (state in ('done', 'gate_failed', 'failed')),
    failed_stage text,
    error text,
    is_valid boolean not null,
    invalid_reasons text[] not null,
    invalid_scopes text[] not null,
    findings text[] not null,
    is_gated boolean not null,
    gate_verdict text,
    gate_reason text,
    golden_set text,
    golden_sha256 text,
    image text,
    versions jsonb,
    argv jsonb,
    effective_source text,
    effective jsonb,
    differences jsonb,
    unverified jsonb,
    weight_bytes bigint,
    kv_pool_tokens bigint,
    gpu_model text,
    price_key text,
    price_usd_per_hour double precision,
    price_is_nominal boolean,
    claimed_at timestamptz not null,
    started_at timestamptz,
    ready_at timestamptz,
    released_at timestamptz,
    ended_at timestamptz,
    start_s double precision,
    gpu_held_s double precision,
    documents jsonb not null,
    workload_sha256 text,
    rows_sha256 text not null,
    judgement_sha256 text,
    loaded_at timestamptz not null default now(),
    primary key (run_id, attempt),
    check (is_valid = (invalid_reasons = '{}')),
    check (is_valid = (invalid_scopes = '{}')),
    check (state = 'failed' or failed_stage is null)
);
comment on table run is 'one attempt at one deployment of one arm through all tiers';
comment on column run.state is
    'done: every stage did its work; gate_failed: the golden gate said no and the tiers were skipped; failed: see failed_stage';
comment on column run.is_valid is 'no rule that keeps a result honest was broken; false until validated';
comment on column run.invalid_scopes is
    'where a rule was broken: run, gateway, agent. What was broken in one tier takes nothing from the other tier''s numbers';
comment on column run.findings is 'what a reader must know before reading the numbers; breaks nothing';
comment on column run.is_gated is 'false: the plan skipped the golden gate, so that nobody knows whether the answers are right';
comment on column run.gpu_held_s is 'seconds from binding the slot to proven release; waiting for a slot is not in it';
comment on column run.documents is 'run.json, lease.json, deployment.json, release.json as they were, by name';

comment on column run.workload_sha256 is 'of what both tiers send and in which order; alike for every arm of a plan, seed and repeat';
comment on column run.rows_sha256 is 'of the files that the rows were read from: loading the same files again changes nothing';

create table phase (
    run_id text,
    attempt integer,
    stage text,
    try integer,
    state text not null check (state in ('done', 'failed')),
    began_at timestamptz not null,
    ended_at timestamptz not null,
    error text,
    primary key (run_id, attempt, stage, try),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table phase is 'when each stage of a run began and ended, and how; a stage without a row was killed or never begun';

create table golden (
    run_id text,
    attempt integer,
    case_id text,
    category text,
    outcome text not null check (outcome in ('pass', 'fail', 'error')),
    reason text,
    is_known_limit boolean,
    steps integer,
    tool_calls integer,
    task_ms double precision,
    answer text,
    primary key (run_id, attempt, case_id),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table golden is 'the golden gate, case by case, on this deployment and before any load';

create table request (
    run_id text,
    attempt integer,
    tier text,
    request_id text,
    level integer,
    users integer,
    rate_per_s double precision,
    "user" integer,
    process integer,
    technique text,
    task_id text,
    case_id text,
    step integer,
    sent_at timestamptz,
    t_intended_ns bigint,
    t_send_ns bigint,
    t_first_byte_ns bigint,
    t_first_token_ns bigint,
    t_first_answer_ns bigint,
    t_last_token_ns bigint,
    t_end_ns bigint,
    status integer,
    finish_reason text,
    input_tokens integer,
    cached_input_tokens integer,
    output_tokens integer,
    requested_output_tokens integer,
    chunks integer,
    reasoning_chunks integer,
    tool_calls integer,
    icl_ms_max double precision,
    stalls integer,
    failure text,
    failure_detail text,
    is_warmup boolean,
    is_aborted boolean,
    primary key (run_id, attempt, tier, request_id),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table request is 'one model call of a tier; fields of tasks/record.py, and a column for each metric of tasks/metrics.py';
comment on column request.users is 'how many of a closed loop; null in an open one, which has rate_per_s';
comment on column request.process is 'which of the client''s processes sent it, from 0';
comment on column request.stalls is 'gaps between chunks longer than 250 ms (STALL_MS of tasks/metrics.py)';
comment on column request.failure is 'null for a good call; a failed one counts as infinite latency';
comment on column request.is_aborted is 'cut off by our own client when the level''s time was up: neither success nor failure';

create table agent_task (
    run_id text,
    attempt integer,
    tier text,
    task_id text,
    level integer,
    users integer,
    rate_per_s double precision,
    "user" integer,
    process integer,
    technique text,
    case_id text,
    started_at timestamptz,
    t_start_ns bigint,
    t_end_ns bigint,
    steps integer,
    tool_calls integer,
    is_success boolean,
    failure text,
    failure_detail text,
    is_warmup boolean,
    is_aborted boolean,
    primary key (run_id, attempt, tier, task_id),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table agent_task is 'one user request played to its end by the agent; fields of tasks/record.py';

-- No primary key: labels may be longer than an index entry can be. Loading replaces a run's samples as a whole.
create table engine_sample (
    run_id text not null,
    attempt integer not null,
    tier text not null,
    at timestamptz not null,
    source text not null,
    name text not null,
    labels jsonb,
    value double precision,
    foreign key (run_id, attempt) references run on delete cascade
);
create index engine_sample_run on engine_sample (run_id, attempt, tier, name, at);
comment on table engine_sample is 'metrics of engine and gateway, scraped once a second while a tier ran';

create table calibration (
    run_id text,
    attempt integer,
    tier text,
    path text check (path in ('direct', 'through_gateway')),
    is_enough boolean,
    not_calibrated_because text,
    reason text,
    fault text,
    level integer,
    streams integer,
    rate_per_s double precision,
    chunks_per_s double precision,
    processes integer,
    calls integer,
    calls_after_burst integer,
    chunks integer,
    failed integer,
    first_failure text,
    cut integer,
    lost_chunks integer,
    stalls integer,
    ttft_floor_ms_p50 double precision,
    ttft_floor_ms_p99 double precision,
    ttft_floor_ms_max double precision,
    ttft_error_ms_p50 double precision,
    ttft_error_ms_p99 double precision,
    ttft_error_ms_max double precision,
    burst_ttft_error_ms_p50 double precision,
    burst_ttft_error_ms_p99 double precision,
    burst_ttft_error_ms_max double precision,
    icl_error_ms_p50 double precision,
    icl_error_ms_p99 double precision,
    icl_error_ms_max double precision,
    server_late_ms_p50 double precision,
    server_late_ms_p99 double precision,
    server_late_ms_max double precision,
    schedule_delay_ms_p50 double precision,
    schedule_delay_ms_p99 double precision,
    schedule_delay_ms_max double precision,
    loop_lag_ms_p50 double precision,
    loop_lag_ms_p99 double precision,
    loop_lag_ms_max double precision,
    cpu_share double precision,
    primary key (run_id, attempt, tier, path),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table calibration is
    'the client alone, before the load: against a server that answers at once, direct and through the gateway; what each figure is stands in tasks/traffic/calibration.py';
comment on column calibration.is_enough is 'the client kept the planned rate within the bounds of rule 6; null: the plan did not ask, and says why';
comment on column calibration.chunks_per_s is 'planned, of all streams together';
comment on column calibration.ttft_floor_ms_p50 is 'what the client reports of a server that answers at once, less that server''s own time; no arm can be below it';
comment on column calibration.icl_error_ms_p50 is 'by how much a gap between two chunks at the client differs from the same gap at the server';
comment on column calibration.cpu_share is 'of one core, the busiest process';

create table client_process (
    run_id text,
    attempt integer,
    tier text,
    level integer,
    process integer,
    pid integer,
    cpu_share double precision,
    loop_lag_ms_p50 double precision,
    loop_lag_ms_p99 double precision,
    loop_lag_ms_max double precision,
    schedule_delay_ms_p50 double precision,
    schedule_delay_ms_p99 double precision,
    schedule_delay_ms_max double precision,
    primary key (run_id, attempt, tier, level, process),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table client_process is 'each process of the client under load: how late its event loop and its sends were, and what it took of a core';

create table tier_level (
    run_id text,
    attempt integer,
    tier text,
    level integer,
    users integer,
    rate_per_s double precision,
    arrivals text,
    burstiness double precision,
    ramp_to_per_s double precision,
    duration_s double precision,
    overload boolean,
    state text not null check (state in ('steady', 'too_short', 'no_steady_state', 'overload')),
    reason text not null,
    method text,
    warmup_ends_ns bigint,
    window_start_ns bigint,
    window_end_ns bigint,
    window_s double precision,
    requests integer,
    effective_n double precision,
    trend_per_minute double precision,
    trend_lower double precision,
    trend_upper double precision,
    primary key (run_id, attempt, tier, level),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table tier_level is 'one offered load of a tier, where its warm-up ended, and whether what followed stood still (tasks/windows.py)';
comment on column tier_level.state is
    'steady; too_short: too few requests to tell; no_steady_state: it drifts; overload: declared, its queue growth is the result';
comment on column tier_level.window_s is 'seconds of the steady window: what was sent in it is counted';
comment on column tier_level.effective_n is 'how many independent values the window''s times to the first token are worth';
comment on column tier_level.trend_per_minute is
    'change of the median time to the first token (or per token, if that drifts) per minute, as a share of the window''s median';
comment on column tier_level.trend_lower is 'lower end of its two-sided 99.99 percent interval';

create table expectation (
    run_id text,
    attempt integer,
    suite text,
    rule text,
    expectation text,
    scope text,
    kind text check (kind in ('fault', 'finding')),
    success boolean,
    is_unverified boolean,
    observed text,
    expected text,
    examples text,
    says text,
    because text,
    source text,
    number integer,
    primary key (run_id, attempt, number),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table expectation is 'every rule that was checked on the run, in the order of validation.json';

-- Are a tier's numbers to be relied on? Not if a rule was broken in the run as a whole, or in this tier.
create function report.tier_is_valid(invalid_scopes text[], tier text) returns boolean language sql immutable as
$$ select not ('run' = any (invalid_scopes) or tier = any (invalid_scopes)) $$;

create table percentile (
    run_id text,
    attempt integer,
    tier text,
    level integer,
    steps text,
    metric text,
    q double precision,
    estimate double precision,
    lower double precision,
    upper double precision,
    n integer not null,
    failed integer,
    effective_n double precision,
    primary key (run_id, attempt, tier, level, steps, metric, q),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table percentile is 'percentiles of the steady window with two-sided bounds; Infinity where failures reach the rank';

create table verdict (
    run_id text,
    attempt integer,
    slo text,
    tier text,
    level integer,
    steps text not null,
    indicator text not null,
    objective double precision not null,
    unit text not null,
    fraction double precision not null,
    estimate double precision,
    lower double precision,
    upper double precision,
    n integer,
    effective_n double precision,
    verdict text not null check (verdict in ('PASS', 'FAIL', 'INCONCLUSIVE')),
    reason text,
    primary key (run_id, attempt, slo, tier, level),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table verdict is 'does the run keep the SLO: one-sided 95 percent bounds, with what they rest on';

create table cost (
    run_id text,
    attempt integer,
    lens text check (lens in ('all_in', 'sustained')),
    usd_per_task double precision,
    tasks bigint,
    gpu_s double precision,
    price_usd_per_hour double precision,
    price_key text,
    is_nominal boolean,
    reason text,
    primary key (run_id, attempt, lens),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table cost is 'what one successful task cost; null, with the reason, where no task succeeded or no price is known';

-- Times of the lease are seconds since the epoch, the numbers of lease.json.
create table slot_lease (
    target text,
    slot text,
    run_id text not null,
    attempt integer not null,
    holder text not null,
    acquired_at double precision not null,
    renewed_at double precision not null,
    expires_at double precision not null,
    grace_s double precision not null,
    primary key (target, slot)
);
comment on table slot_lease is 'who holds a slot until when; no row: it is free';

create table slot_wait (
    target text,
    slot text,
    run_id text,
    attempt integer,
    holder text,
    since double precision not null,
    seen_at double precision not null,
    primary key (target, slot, run_id)
);
comment on table slot_wait is 'who waits for a slot, first come first served; one that is not seen again has given up';
