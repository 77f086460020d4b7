-- Who holds a slot, as the database knows it.
select target, slot, run_id, attempt, holder, acquired_at, renewed_at, expires_at, grace_s
from slot_lease where target = :target and slot = :slot
