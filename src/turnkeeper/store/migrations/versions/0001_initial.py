"""The whole schema of the first release."""

from turnkeeper.store.migrate import run_sql_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file of the same name."""
    run_sql_file(__file__)
