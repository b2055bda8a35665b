"""Alembic's script directory: `versions/` in order, and the SQL that they run."""
