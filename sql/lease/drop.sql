-- Free the slot, if this attempt still holds it.
delete from slot_lease where target = :target and slot = :slot and run_id = :run_id and attempt = :attempt
