"""Events of a conversation that belong to none of its runs."""

from turnkeeper.store.migrate import run_sql_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file of the same name."""
    run_sql_file(__file__)
