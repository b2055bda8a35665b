"""Alembic's entry: runs the revisions on the connection, and inside the transaction, that `store.migrate` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
context.run_migrations()
