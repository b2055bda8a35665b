"""The schema's revisions: where a database stands, and bringing it to this release's.

Revisions are Alembic's, their content is SQL: `versions/NNNN_name.py` runs `sql/NNNN_name.sql`. All pending ones run in
one transaction, under an advisory lock, so that of two starts at once one migrates and the other finds it done. A
migration that cannot get a lock in time gives up with a clear line instead of queueing every query behind itself. A server
that may forget commits is refused before anything is changed on it (D-04).

A start only reads one row and compares it with the names of the files; Alembic is imported by `upgrade` alone.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, assert_never

import psycopg
from psycopg.conninfo import conninfo_to_dict

from turnkeeper.kit.log import get_logger
from turnkeeper.store import durability
from turnkeeper.store.errors import (
    ConnectionStringRefused,
    DatabaseRefused,
    DatabaseUnavailable,
    place,
    reason,
    translate,
)
from turnkeeper.store.tx import Reader

LOCK_TIMEOUT_S: Final = 5.0
_ADVISORY_KEY: Final = 7_310_294_481_001  # of no meaning; nothing else of ours uses a constant key
_HERE: Final = Path(__file__).parent / "migrations"
_LOCK_NOT_AVAILABLE: Final = "55P03"

_log = get_logger("store.migrate")


@dataclass(frozen=True)
class Empty:
    """No schema of ours."""


@dataclass(frozen=True)
class Current:
    """This release's schema."""

    revision: str


@dataclass(frozen=True)
class Old:
    """An earlier release's: `turnkeeper db upgrade` brings it up."""

    revision: str
    wanted: str


@dataclass(frozen=True)
class New:
    """A revision that this release does not know: a newer one has been here."""

    revision: str
    known: str


SchemaState = Empty | Current | Old | New


@cache
def revisions() -> tuple[str, ...]:
    """The revisions of this release, oldest first, by the names of their files."""
    return tuple(sorted(path.name.split("_", 1)[0] for path in (_HERE / "versions").glob("[0-9]*_*.py")))


def refusal(state: SchemaState, where: str) -> str | None:
    """Why the product must not start on such a schema, in one line; None if it may."""
    match state:
        case Current():
            return None
        case Empty():
            return f"{where} has no schema yet: run `turnkeeper db upgrade`"
        case Old(revision, wanted):
            return f"{where} has schema {revision}, this release needs {wanted}: run `turnkeeper db upgrade`"
        case New(revision, known):
            return f"{where} has schema {revision}, newer than this release's {known}: install the newer release"
        case _:
            assert_never(state)


def state_of(revision: str | None) -> SchemaState:
    """What a stored revision means for this release."""
    known = revisions()
    if revision is None:
        return Empty()
    if revision == known[-1]:
        return Current(revision)
    return Old(revision, known[-1]) if revision in known else New(revision, known[-1])


async def schema_state(reader: Reader) -> SchemaState:
    """Where the database stands."""
    if await reader.fetch_value("SELECT to_regclass('alembic_version') IS NULL"):
        return Empty()
    return state_of(await reader.fetch_value("SELECT version_num FROM alembic_version"))


def check(dsn: str) -> SchemaState:
    """Where the database stands, without a pool. `DatabaseUnavailable` if it cannot be asked."""
    where = place(dsn)
    try:
        with _connect(dsn, where, autocommit=True) as connection:
            return _state(connection)
    except psycopg.Error as error:
        raise _refused(error, where) from None


def upgrade(dsn: str, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> str:
    """Bring the schema to this release's in one transaction and return its revision. Where it is there, nothing is done.

    Errors, one line each: `DatabaseRefused` for a server that is too old, a standby or not durable (D-04), for a schema that
    is newer or a right that is missing; `DatabaseUnavailable` if the server cannot be reached or a lock was not free within `lock_timeout_s`.
    """
    where = place(dsn)
    try:
        before = _upgrade(dsn, where, lock_timeout_s)
    except psycopg.Error as error:
        raise _refused(error, where) from None
    after = revisions()[-1]
    if not isinstance(before, Current):
        _log.info("schema_upgraded", place=where, before=getattr(before, "revision", None), after=after)
    return after


def run_sql_file(version_file: str) -> None:
    """Run the SQL of a revision; called by the revision with its `__file__`."""
    from alembic import op

    name = Path(version_file).stem
    sql = (_HERE / "sql" / f"{name}.sql").read_bytes()
    connection: Any = op.get_bind().connection.driver_connection
    # Without parameters psycopg sends the text as it is, so one file may hold many statements, and % means itself.
    connection.execute(sql)


def _upgrade(dsn: str, where: str, lock_timeout_s: float) -> SchemaState:
    import sqlalchemy
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    def connect() -> Any:
        # The connection string's own options stay in force, as in the pool: one of them may be synchronous_commit.
        given = conninfo_to_dict(dsn).get("options") or ""
        options = f"{given} -c lock_timeout={int(lock_timeout_s * 1000)} -c TimeZone=UTC".strip()
        return _connect(dsn, where, options=options, application_name="turnkeeper migrations")

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
            durability.require_durable(raw, where)
            # Two starts at once: the second waits here, then finds the schema current.
            raw.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_KEY,))
            before = _state(raw)
            if isinstance(before, Current):
                return before
            if isinstance(before, New):
                raise DatabaseRefused(str(refusal(before, where)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from None
        raise
    finally:
        engine.dispose()
    return before


def _connect(dsn: str, where: str, **settings: Any) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(dsn, connect_timeout=10, **settings)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"cannot connect to {where}: {reason(error)}") from None


def _state(connection: psycopg.Connection[Any]) -> SchemaState:
    found = connection.execute("SELECT to_regclass('alembic_version') IS NULL").fetchone()
    if found is None or found[0]:
        return Empty()
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return state_of(None if row is None else row[0])


def _refused(error: psycopg.Error, where: str) -> Exception:
    if error.sqlstate == _LOCK_NOT_AVAILABLE:
        return DatabaseUnavailable(
            f"schema of {where} is in use: a lock was not free in time; end long transactions and try again"
        )
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:  # nobody was asked: it is not parsed
        return ConnectionStringRefused()
    if error.sqlstate == "42501":
        return DatabaseRefused(f"{where}: {error.diag.message_primary}; the schema's owner must run the upgrade")
    return translate(error, where, doing="reading or upgrading the schema")
