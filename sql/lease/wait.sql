-- Note that a run waits for the slot. Its place is decided by the slot's file; this is for people who ask in SQL.
insert into slot_wait (target, slot, run_id, attempt, holder, since, seen_at)
values (:target, :slot, :run_id, :attempt, :holder, :acquired_at, :acquired_at)
on conflict (target, slot, run_id) do update set
    attempt = excluded.attempt, holder = excluded.holder, seen_at = excluded.seen_at
