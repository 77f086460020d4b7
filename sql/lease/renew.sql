-- One sign of life of the run that holds the slot; a row that another run has taken stays as it is.
update slot_lease set renewed_at = :renewed_at, holder = :holder
where target = :target and slot = :slot and run_id = :run_id and attempt = :attempt
