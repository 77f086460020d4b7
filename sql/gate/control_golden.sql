-- What the control's last runs made of each golden case, oldest run first. Only runs that count: gate passed, no rule
-- broken, the same golden set and the same content of the control's arm file. The run that asks is left out.
with history as (
    select run_id, attempt, claimed_at
    from run
    where arm = :control
      and arm_digest = :control_digest
      and golden_sha256 = :golden_sha256
      and run_id <> :run_id
      and gate_verdict = 'PASS'
      and is_valid
    order by claimed_at desc
    limit :most_runs
)
select run_id, attempt, case_id, outcome
from history
join golden using (run_id, attempt)
order by claimed_at, run_id, attempt, case_id
