"""${message}"""

from pathlib import Path

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    statements = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    op.get_bind().connection.cursor().execute(statements)
