"""Runs, their rows and what was judged of them; the slot lease."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    statements = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    op.get_bind().connection.cursor().execute(statements)
