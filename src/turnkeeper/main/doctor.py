"""What `turnkeeper doctor` does."""

import asyncio
from collections.abc import Callable

from turnkeeper.domain.history import Finding
from turnkeeper.domain.settings import Timing
from turnkeeper.main.database import hint, refused
from turnkeeper.main.environment import Environment
from turnkeeper.main.paths import DataDirectory
from turnkeeper.services.doctor import Examined, examine
from turnkeeper.store.embedded import url_at
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.pool import open_database

STATEMENT_TIMEOUT_S = 300.0
"""Of one statement: a page of many conversations may take longer than anything that the product itself asks."""


def local_dsn(data: DataDirectory) -> str:
    """The database of the `turnkeeper up` that runs in this data directory."""
    return url_at(data.postgres_sockets)


def examine_database(dsn: str, report: Callable[[Finding], None], *, named: str, of_local_up: bool = False) -> Examined:
    """Hold a live database against the rules. Nothing is written, not even the identity that a start records.

    Runs wait by `TURNKEEPER_TREES_PER_OWNER` as the control plane has it: it has to be set here as it is there.
    `SettingRefused` with one line where that is wrong or the database cannot be asked; that of a local `up` is there only while that runs.
    """
    trees_per_owner = Environment.of_process().trees_per_owner()
    try:
        return asyncio.run(_examine(dsn, report, trees_per_owner))
    except DatabaseError as error:
        raise refused(error, named, hint(error, of_local_up=of_local_up)) from error


async def _examine(dsn: str, report: Callable[[Finding], None], trees_per_owner: int) -> Examined:
    # Bounds that are no settings decide what is late (reap grace, recovery); leases have their own end in the record.
    async with open_database(
        dsn,
        min_size=1,
        max_size=1,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
        application_name="turnkeeper doctor",
        check=False,
    ) as db:
        return await examine(db, Timing(), report, trees_per_owner=trees_per_owner)
