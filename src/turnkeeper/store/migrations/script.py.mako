"""${message}"""

from turnkeeper.store.migrate import run_sql_file

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file of the same name."""
    run_sql_file(__file__)
