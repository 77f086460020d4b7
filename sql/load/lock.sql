-- One loader at a time for one attempt of a run; given up with the transaction.
select pg_advisory_xact_lock(hashtextextended('armwise/load/' || %(run_id)s || '/' || %(attempt)s::text, 0));
