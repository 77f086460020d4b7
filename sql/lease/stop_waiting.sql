-- A run that got the slot waits no longer; nor does one that has not asked for a while.
delete from slot_wait
where target = :target and slot = :slot and (run_id = :run_id or seen_at + :forget_after_s < :acquired_at)
