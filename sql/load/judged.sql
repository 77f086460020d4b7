-- Which judgement is stored of this attempt.
update run set judgement_sha256 = %(judgement_sha256)s where run_id = %(run_id)s and attempt = %(attempt)s;
