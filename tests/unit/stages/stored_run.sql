insert into run (
    run_id, attempt, arm, arm_digest, technique, engine, plan, plan_digest, target, driver, slot, repeat, seed, state,
    is_valid, invalid_reasons, invalid_scopes, findings, is_gated, gate_verdict, golden_set, golden_sha256, claimed_at, documents, rows_sha256
)
values (
    :run_id, 1, :arm, :arm_digest, :arm, 'vllm', 'p', 'p', 'tests', 'process', 's0', 1, 7, 'done',
    :is_valid, case when :is_valid then '{}' else '{broken}' end::text[],
    case when :is_valid then '{}' else '{run}' end::text[], '{}', true, :gate_verdict, 'v1', :golden_sha256,
    cast(:claimed_at as timestamptz), '{}', '0'
)
