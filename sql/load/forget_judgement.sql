-- What was judged of this attempt; what was measured stays.
delete from percentile where run_id = %(run_id)s and attempt = %(attempt)s;
delete from verdict where run_id = %(run_id)s and attempt = %(attempt)s;
delete from cost where run_id = %(run_id)s and attempt = %(attempt)s;
