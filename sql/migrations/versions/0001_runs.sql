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
    rows_sha256 text not null,
    judgement_sha256 text,
    loaded_at timestamptz not null default now(),
    primary key (run_id, attempt),
    check (is_valid = (invalid_reasons = '{}')),
    check (state = 'failed' or failed_stage is null)
);
comment on table run is 'one attempt at one deployment of one arm through all tiers';
comment on column run.state is
    'done: every stage did its work; gate_failed: the golden gate said no and the tiers were skipped; failed: see failed_stage';
comment on column run.is_valid is 'no rule that keeps a result honest was broken; false until validated';
comment on column run.is_gated is 'false: the plan skipped the golden gate, so that nobody knows whether the answers are right';
comment on column run.gpu_held_s is 'seconds from binding the slot to proven release; waiting for a slot is not in it';
comment on column run.documents is 'run.json, lease.json, deployment.json, release.json as they were, by name';

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
    "user" integer,
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
    chunks integer,
    tool_calls integer,
    icl_ms_max double precision,
    failure text,
    failure_detail text,
    is_warmup boolean,
    is_aborted boolean,
    primary key (run_id, attempt, tier, request_id),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table request is 'one model call of a tier; fields of tasks/record.py, and a column for each metric of tasks/metrics.py';
comment on column request.failure is 'null for a good call; a failed one counts as infinite latency';
comment on column request.is_aborted is 'cut off by our own client when the level''s time was up: neither success nor failure';

create table agent_task (
    run_id text,
    attempt integer,
    tier text,
    task_id text,
    level integer,
    users integer,
    "user" integer,
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

create table expectation (
    run_id text,
    attempt integer,
    suite text,
    rule text,
    expectation text,
    scope text,
    success boolean,
    observed text,
    expected text,
    says text,
    number integer,
    primary key (run_id, attempt, number),
    foreign key (run_id, attempt) references run on delete cascade
);
comment on table expectation is 'every rule that was checked on the run, in the order of validation.json';

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
