-- Take a slot that is free, or whose holder was silent past its grace or expired long enough ago to have been stopped.
-- Returns nothing where a live lease of another run holds it.
insert into slot_lease (target, slot, run_id, attempt, holder, acquired_at, renewed_at, expires_at, grace_s)
values (:target, :slot, :run_id, :attempt, :holder, :acquired_at, :renewed_at, :expires_at, :grace_s)
on conflict (target, slot) do update set
    run_id = excluded.run_id, attempt = excluded.attempt, holder = excluded.holder,
    acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at,
    expires_at = excluded.expires_at, grace_s = excluded.grace_s
where least(slot_lease.expires_at, slot_lease.renewed_at + slot_lease.grace_s) + :stopping_s < excluded.acquired_at
returning run_id
