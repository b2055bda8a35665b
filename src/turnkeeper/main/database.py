"""What `turnkeeper db` does."""

import asyncio

from turnkeeper.domain.errors import OptionRefused, SettingRefused
from turnkeeper.store.errors import ConnectionStringRefused, DatabaseError, DatabaseUnavailable
from turnkeeper.store.migrate import upgrade
from turnkeeper.store.pool import open_database


def upgrade_database(dsn: str, named: str) -> str:
    """Bring the schema to this release; the revision that it then has. `named`: the setting or option that `dsn` is."""
    try:
        return upgrade(dsn)
    except DatabaseError as error:
        raise refused(error, named) from error


def check_database(dsn: str, named: str, *, of_local_up: bool = False) -> list[str]:
    """One line for each reason why the product would not start on this database. That of a local `up` may be at rest."""
    try:
        return asyncio.run(_check(dsn, of_local_up))
    except ConnectionStringRefused as error:
        raise refused(error, named) from error


def refused(error: DatabaseError, named: str, hint: str = "") -> SettingRefused:
    """What the database or its name was refused for, as the end of a command. An option's name (`--…`) is wrong use."""
    if not isinstance(error, ConnectionStringRefused):
        return SettingRefused(f"{error}{hint}")
    return (OptionRefused if named.startswith("--") else SettingRefused)(error.line(named))


def hint(error: DatabaseError, *, of_local_up: bool) -> str:
    """What follows the line of `error`: the database of a local `up` is there only while that runs."""
    return "; is its `turnkeeper up` running?" if of_local_up and isinstance(error, DatabaseUnavailable) else ""


async def _check(dsn: str, of_local_up: bool) -> list[str]:
    try:
        async with open_database(dsn, min_size=1, max_size=1):
            return []
    except ConnectionStringRefused:
        raise
    except DatabaseError as error:
        return f"{error}{hint(error, of_local_up=of_local_up)}".splitlines()
