"""A folder for the PYTHONPATH of a server that is not ours; it holds what that server imports, and nothing else."""
