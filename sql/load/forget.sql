-- All rows of this attempt; those of the other tables go with it.
delete from run where run_id = %(run_id)s and attempt = %(attempt)s;
