-- The run that this one would be compared with: of the control, under the same plan and target, with no rule broken; of
-- the same repeat, which sends the same workload, if there is one, and the latest of those. With the share of prompt tokens that each tier found cached, over good calls that say so.
select
    run.run_id, run.repeat, run.image, run.versions, run.gpu_model, run.golden_sha256, run.workload_sha256,
    run.documents #>> array['run', 'arm', 'document', 'model', 'revision'] as model_revision,
    (
        select jsonb_object_agg(tier, ratio)
        from (
            select tier, sum(cached_input_tokens)::double precision / nullif(sum(input_tokens), 0) as ratio
            from request
            where request.run_id = run.run_id and request.attempt = run.attempt
              and failure is null and is_aborted is not true and cached_input_tokens is not null
            group by tier
        ) as by_tier
    ) as hit_ratio
from run
where arm = :control and plan_digest = :plan_digest and target = :target and run_id <> :run_id and is_valid
order by repeat = :repeat desc, claimed_at desc
limit 1
