"""A slot and its lease: which run may use a GPU, and until when.

The lease is the guard that works with everything else dead. It lives in two places:

- `lease.json` in the run folder: slot, limits, and the time of the holder's last sign of life. The engine's supervisor
  reads it twice a second and kills the engine when it expired, fell silent past its grace, or was given back.
- the slot: `slots/<target>.<slot>.json` under the home folder, replaced under an exclusive file lock, and, where there
  is a Postgres, the row of the table `slot_lease`, which serialises runs of several machines.

A running stage renews every two seconds. Nothing renews beyond `expires_at`: that is the sum of the plan's budgets, or
sooner when the spend cap is reached, and `because` says which.

All times are seconds since the epoch: processes and machines must agree on them, and a monotonic clock cannot.
"""
