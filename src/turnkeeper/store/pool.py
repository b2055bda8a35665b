"""Opening the database: connection settings, value types, and the checks of a start.

Limits, and how plans are made, are sent as connection options, not by SET, so that no connection can be without them. Ids
come back as `str`, `timestamptz` as aware UTC datetimes, and a `dict` parameter is jsonb.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

import psycopg
import psycopg_pool
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import JsonbDumper
from psycopg.types.string import TextLoader

from turnkeeper.store import durability, migrate
from turnkeeper.store.errors import ConnectionStringRefused, DatabaseRefused, DatabaseUnavailable, place, reason
from turnkeeper.store.signals import Signaller
from turnkeeper.store.tx import Connection, Database

STATEMENT_TIMEOUT_S: Final = 30.0
LOCK_TIMEOUT_S: Final = 10.0
IDLE_IN_TRANSACTION_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10
# How long a caller waits for a free connection before it hears that there is none.
POOL_WAIT_S: Final = 10.0
# A statement is prepared when a connection runs it for the second time, and planned once for all parameters: planning cost
# a quarter of a turn's time in the database. No statement here depends on a parameter for its plan (partial indexes are
# named by literals), and a plan is made again when the table has been analyzed. There are fewer statements than are kept.
_PREPARE_AFTER: Final = 1
_PREPARED_MAX: Final = 500
# The pool's own tries back off the longer an outage lasts. Short, so that after it a caller's request tries at once.
_RECONNECT_S: Final = 3.0

# The pool tells of failed tries on this logger; callers get them as `DatabaseUnavailable`.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class _UuidText(Loader):
    """`uuid` in binary form as its canonical text."""

    format = psycopg.pq.Format.BINARY

    def load(self, data: Any) -> str:
        text = bytes(data).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def adapters() -> AdaptersMap:
    """How values go to PostgreSQL and come back."""
    found = AdaptersMap(psycopg.adapters)
    found.register_loader("uuid", TextLoader)
    found.register_loader("uuid", _UuidText)
    found.register_dumper(dict, JsonbDumper)
    return found


class _Context:
    """What psycopg asks for the types of a connection."""

    def __init__(self, found: AdaptersMap) -> None:
        self.adapters = found
        self.connection = None


def connection_settings(
    dsn: str,
    *,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    idle_in_transaction_timeout_s: float = IDLE_IN_TRANSACTION_TIMEOUT_S,
    application_name: str = "turnkeeper",
) -> str:
    """`dsn` with our limits and UTC as connection options. A `dsn` that cannot be parsed is `DatabaseRefused`."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise ConnectionStringRefused from None
    ours = {
        "statement_timeout": f"{int(statement_timeout_s * 1000)}",
        "lock_timeout": f"{int(lock_timeout_s * 1000)}",
        "idle_in_transaction_session_timeout": f"{int(idle_in_transaction_timeout_s * 1000)}",
        # A caller that gave up without a word (cancelled, killed) must not leave a statement and its locks behind.
        "client_connection_check_interval": "5000",
        "TimeZone": "UTC",
        "plan_cache_mode": "force_generic_plan",
    }
    options = " ".join([str(given.get("options") or ""), *(f"-c {name}={value}" for name, value in ours.items())])
    defaults = {
        "application_name": application_name,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    missing = {name: value for name, value in defaults.items() if name not in given}
    return make_conninfo(dsn, **missing, options=options.strip())


@contextlib.asynccontextmanager
async def open_database(
    dsn: str,
    *,
    min_size: int = 2,
    max_size: int = 10,
    pool_wait_s: float = POOL_WAIT_S,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    application_name: str = "turnkeeper",
    check: bool = True,
) -> AsyncGenerator[Database]:
    """A pool of connections, open within the block.

    With `check` the start refuses a server that is too old or not durable (D-04) and a schema that is not this
    release's. Errors: `DatabaseUnavailable` if it cannot be reached, `DatabaseRefused` if it must not be used.
    """
    where = place(dsn)
    settings = connection_settings(
        dsn,
        statement_timeout_s=statement_timeout_s,
        lock_timeout_s=lock_timeout_s,
        application_name=application_name,
    )
    await _try_once(settings, where)
    context = _Context(adapters())
    pool: psycopg_pool.AsyncConnectionPool[Connection] = psycopg_pool.AsyncConnectionPool(
        settings,
        min_size=min_size,
        max_size=max_size,
        timeout=pool_wait_s,
        reconnect_timeout=_RECONNECT_S,
        kwargs={"autocommit": True, "context": context, "prepare_threshold": _PREPARE_AFTER},
        configure=_configure,
        open=False,
        name=application_name,
    )
    database = Database(pool, Signaller(settings), where)
    try:
        try:
            await pool.open(wait=True, timeout=pool_wait_s)
        except psycopg_pool.PoolTimeout:
            raise DatabaseUnavailable(
                f"{where} did not accept {min_size} connections within {pool_wait_s:g} s"
            ) from None
        if check:
            await _check(database)
        yield database
    finally:
        await database.close()


async def _try_once(settings: str, where: str) -> None:
    """One direct connection first: a pool only says that it waited, this says why."""
    try:
        connection = await psycopg.AsyncConnection[Any].connect(settings, autocommit=True)
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot connect to {where}: {reason(error)}") from None
    await connection.close()


async def _configure(connection: Connection) -> None:
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    connection.prepared_max = _PREPARED_MAX


async def _check(database: Database) -> None:
    await durability.check_start(database)
    state = await database.read("start.schema", migrate.schema_state)
    line = migrate.refusal(state, database.place)
    if line is not None:
        raise DatabaseRefused(line)
    await durability.record_cluster(database)
