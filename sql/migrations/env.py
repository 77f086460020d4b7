"""Alembic's entry: `tasks.database.migrate` gives it a connection, and one transaction for everything."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `armwise migrate`: it holds the lock and replaces the views in the same transaction")
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
