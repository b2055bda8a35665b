"""What `turnkeeper db` does."""

import asyncio

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.store.errors import DatabaseError
from turnkeeper.store.migrate import upgrade
from turnkeeper.store.pool import open_database


def upgrade_database(dsn: str) -> str:
    """Bring the schema to this release; the revision that it then has."""
    try:
        return upgrade(dsn)
    except DatabaseError as error:
        raise SettingRefused(str(error)) from error


def check_database(dsn: str) -> list[str]:
    """One line for each reason why the product would not start on this database."""
    return asyncio.run(_check(dsn))


async def _check(dsn: str) -> list[str]:
    try:
        async with open_database(dsn, min_size=1, max_size=1):
            return []
    except DatabaseError as error:
        return str(error).splitlines()
