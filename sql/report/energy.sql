-- title: What the GPU did, and what a success took
-- question: How many joules did one successful task take, and how busy, hot and full was the GPU for it?
-- panel: bar x=arm y=per_success_j by=tier
-- column run_id: the run
-- column attempt: the number of the try
-- column arm: server configuration under test
-- column engine: which server; rows of the sim are no measurements
-- column is_valid: no rule that keeps a result honest was broken, in the run as a whole or in this tier
-- column repeat: index of the repetition
-- column plan: what was measured
-- column target: where
-- column gpu_model: which GPU
-- column tier: gateway (single calls) or agent (whole tasks)
-- column seconds_s: between the first and the last reading of the tier: warm-up, drain and pauses between levels included
-- column energy_j: by the GPUs' own energy counters over these seconds; null where no GPU was seen
-- column power_w: energy by seconds
-- column memory_mib: most memory in use at a reading, of all GPUs together
-- column utilisation: mean share of time in which a kernel ran
-- column successes: tasks that ended right (agent), calls that were answered (gateway), warm-up included: all were paid for
-- column output_tokens: by the server's usage, of calls that were answered
-- column per_success_j: energy by successes; null where none succeeded
-- column per_output_token_j: energy by output tokens
-- column claimed_at: when the run got its slot
create view report.energy as
with reading as (
    select run_id, attempt, tier, at, name, sum(value) as value
    from engine_sample where source = 'gpu' group by run_id, attempt, tier, at, name
), gpu as (
    select
        run_id, attempt, tier,
        extract(epoch from max(at) - min(at))::double precision as seconds_s,
        max(value) filter (where name = 'energy_j_total') - min(value) filter (where name = 'energy_j_total') as energy_j,
        max(value) filter (where name = 'memory_used_mib') as memory_mib,
        avg(value) filter (where name = 'utilisation') as utilisation
    from reading group by run_id, attempt, tier
), answered as (
    select run_id, attempt, tier, count(*) as calls, sum(output_tokens) as output_tokens
    from request where failure is null and not coalesce(is_aborted, false) group by run_id, attempt, tier
), ended as (
    select run_id, attempt, tier, count(*) as tasks from agent_task where is_success group by run_id, attempt, tier
), tier as (
    select distinct run_id, attempt, tier from request
), figures as (
    select
        tier.*, gpu.seconds_s, gpu.energy_j, gpu.memory_mib, gpu.utilisation, answered.output_tokens,
        coalesce(case when tier.tier = 'agent' then ended.tasks else answered.calls end, 0) as successes
    from tier
    left join gpu using (run_id, attempt, tier)
    left join answered using (run_id, attempt, tier)
    left join ended using (run_id, attempt, tier)
)
select
    run.run_id, run.attempt, run.arm, run.engine, report.tier_is_valid(run.invalid_scopes, figures.tier) as is_valid,
    run.repeat, run.plan, run.target, run.gpu_model, figures.tier, figures.seconds_s, figures.energy_j,
    figures.energy_j / nullif(figures.seconds_s, 0) as power_w, figures.memory_mib, figures.utilisation,
    figures.successes, figures.output_tokens,
    figures.energy_j / nullif(figures.successes, 0) as per_success_j,
    figures.energy_j / nullif(figures.output_tokens, 0) as per_output_token_j,
    run.claimed_at
from figures
join run using (run_id, attempt);
comment on view report.energy is 'one row per run and tier; null figures where no GPU was seen';
