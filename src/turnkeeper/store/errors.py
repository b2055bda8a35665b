"""What the database may answer besides rows.

Messages are one clear line each. They name host and database, and never hold a password, a connection string or a row
(PostgreSQL's own DETAIL shows the failing row, prompts included, so it is dropped here).
"""

from typing import TYPE_CHECKING, Final

from turnkeeper.domain.errors import InvariantViolation

if TYPE_CHECKING:  # a supervisor catches these errors and has no use for the driver, which is 12 MB
    import psycopg

_SERIALIZATION_FAILURE: Final = "40001"
_DEADLOCK_DETECTED: Final = "40P01"
_INTEGRITY: Final = "23"
# Said by a server that is there and cannot serve: shutting down, starting up, out of connections, out of disk, ...
_OPERATIONAL: Final = ("08", "53", "57", "58", "55P03", "25P03", "25P04", "28", "3D000")


class DatabaseError(Exception):
    """The database could not be used. The message is one line for an operator."""

    retryable = False


class DatabaseUnavailable(DatabaseError):  # noqa: N818 - reads as what it is
    """Unreachable, refused the login, out of connections, or too slow; a later try may succeed.

    `outcome_unknown`: the connection was lost while a COMMIT was on its way; the transaction may have been committed.
    """

    retryable = True

    def __init__(self, line: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(line)
        self.outcome_unknown = outcome_unknown


class DatabaseRefused(DatabaseError):  # noqa: N818 - reads as what it is
    """The database answers, and the product will not run on it: too old, not durable, another schema."""


class ConnectionStringRefused(DatabaseRefused):
    """It cannot be parsed, and is not shown, as it may hold a password. `line(named)` says so of whatever it was given by."""

    def __init__(self) -> None:
        super().__init__(self.line("DATABASE_URL"))

    @staticmethod
    def line(named: str) -> str:
        """For the setting or option `named`."""
        return f"{named} is no valid PostgreSQL connection string or URL, such as postgresql://user@host/database"


class ConstraintViolation(InvariantViolation):
    """A write that the schema refuses. `constraint` is its name. Expected conflicts are said in SQL (ON CONFLICT)."""

    def __init__(self, constraint: str, line: str) -> None:
        super().__init__(line)
        self.constraint = constraint


def place(dsn: str) -> str:
    """`database "x" at host:port` for messages: what a connection string points at, without user secrets."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "the database (its connection string cannot be parsed)"
    host = str(parts.get("host") or parts.get("hostaddr") or "the default socket")
    port = parts.get("port")
    name = str(parts.get("dbname") or parts.get("user") or "default")
    return f'database "{name}" at {host}' + (f":{port}" if port and not host.startswith("/") else "")


def is_retryable(error: "psycopg.Error") -> bool:
    """Whether PostgreSQL asks for the transaction to be run again (serialization failure, deadlock)."""
    return error.sqlstate in (_SERIALIZATION_FAILURE, _DEADLOCK_DETECTED)


def translate(error: "psycopg.Error", where: str, *, doing: str) -> Exception:
    """What is raised instead of `error`; `error` itself where it shows a defect of ours (bad SQL, bad value)."""
    import psycopg

    state = error.sqlstate or ""
    if state.startswith(_INTEGRITY):
        name = error.diag.constraint_name or error.diag.column_name or "unnamed"
        return ConstraintViolation(name, f"{doing}: {error.diag.message_primary} ({name}, SQLSTATE {state})")
    if is_retryable(error):
        return DatabaseUnavailable(f"{doing}: still conflicting after the last retry at {where} (SQLSTATE {state})")
    if state.startswith(_OPERATIONAL) or (not state and isinstance(error, psycopg.OperationalError)):
        return DatabaseUnavailable(f"{doing}: {reason(error)} ({where})")
    return error


def reason(error: "psycopg.Error") -> str:
    """PostgreSQL's own word in one line; of the driver's longer stories the line that says what failed, without its hints."""
    primary = error.diag.message_primary
    if primary:
        return f"{primary} (SQLSTATE {error.sqlstate})"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "failed" in line and not line.startswith("Multiple connection attempts")]
    return (telling or lines or [type(error).__name__])[0]
