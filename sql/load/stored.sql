-- What is stored of this attempt.
select rows_sha256, judgement_sha256, ended_at from run where run_id = %(run_id)s and attempt = %(attempt)s;
