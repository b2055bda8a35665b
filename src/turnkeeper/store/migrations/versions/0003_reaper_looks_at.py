"""Renewals that touch no index: when the reaper looks at an attempt is no longer when its lease ends."""

from turnkeeper.store.migrate import run_sql_file

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file of the same name."""
    run_sql_file(__file__)
