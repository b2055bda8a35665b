"""Named transactions that may run twice.

`Database.run(name, work)` gives `work` a `Tx` and commits when it returns. On a serialization failure or a deadlock it is
run again from the beginning, so `work` has no effect but through its `Tx`: what should happen outside goes to
`Tx.after_commit` and `Tx.notify`, which act only once the commit is certain. Transactions are READ COMMITTED, with the
rule *lock, then look* (see `locks.py`).
"""

import contextlib
import inspect
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeVar, cast, overload

import psycopg
import psycopg_pool
from prometheus_client import Counter, Histogram
from psycopg.rows import class_row, dict_row, tuple_row
from psycopg.types.json import Jsonb

from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.ids import jitter
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.outside import open_transaction, transaction_open
from turnkeeper.store.errors import DatabaseUnavailable, is_retryable, translate
from turnkeeper.store.locks import HeldLocks, LockObserver
from turnkeeper.store.signals import Signal, SignalBus, Signaller

T = TypeVar("T")
R = TypeVar("R")

Params = Sequence[object] | Mapping[str, object]
Row = dict[str, Any]
AfterCommit = Callable[[], Awaitable[None] | None]
Connection = psycopg.AsyncConnection[Any]
Pool = psycopg_pool.AsyncConnectionPool[Connection]

_READS: Final = ("SELECT", "WITH", "VALUES", "SHOW")
_BACKOFF_S: Final = 0.01
_BACKOFF_S_MAX: Final = 0.25

_log = get_logger("store.tx")

_seconds = Histogram(
    "turnkeeper_transaction_seconds",
    "Time from asking for a connection to the end of a transaction or read.",
    ["name"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
_retries = Counter(
    "turnkeeper_transaction_retries", "Transactions run again after a deadlock or serialization failure.", ["name"]
)
_failures = Counter("turnkeeper_transaction_failures", "Transactions and reads that raised.", ["name", "error"])


def jsonb(value: object) -> Jsonb:
    """A parameter for a jsonb column: needed for lists, numbers, strings and None; a plain dict is jsonb by itself."""
    return Jsonb(value)


@dataclass(frozen=True)
class Effects:
    """What a committed transaction wants done outside."""

    signals: tuple[Signal, ...]
    callbacks: tuple[AfterCommit, ...]


class Reader:
    """Runs single statements and returns typed rows. The connection itself never leaves this class.

    Rows are instances of the frozen dataclass `as_` (one field per column, same names), or dicts without it. Ids are
    `str`, times aware `datetime`, jsonb plain Python values. SQL is literal text; parameters are always bound: `%s` or
    `%(name)s`. A list that is compared with ids needs a cast: `= ANY(%s::uuid[])`.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection: Connection | None = connection

    @property
    def name(self) -> str:
        """The name of the transaction or read."""
        return self._name

    @overload
    async def fetch_one(self, sql: LiteralString, params: Params = ...) -> Row | None: ...
    @overload
    async def fetch_one(self, sql: LiteralString, params: Params = ..., *, as_: type[R]) -> R | None: ...
    @overload
    async def fetch_one(self, sql: LiteralString, params: Params = ..., *, as_: None) -> Row | None: ...
    async def fetch_one(self, sql: LiteralString, params: Params = (), *, as_: type[Any] | None = None) -> Any:
        """The only row, or None. More than one is a defect and raises `InvariantViolation`."""
        rows = await self.fetch_all(sql, params, as_=as_)
        if len(rows) > 1:
            raise InvariantViolation(f"{self._name}: {len(rows)} rows where at most one was expected")
        return rows[0] if rows else None

    @overload
    async def fetch_all(self, sql: LiteralString, params: Params = ...) -> list[Row]: ...
    @overload
    async def fetch_all(self, sql: LiteralString, params: Params = ..., *, as_: type[R]) -> list[R]: ...
    @overload
    async def fetch_all(self, sql: LiteralString, params: Params = ..., *, as_: None) -> list[Row]: ...
    async def fetch_all(self, sql: LiteralString, params: Params = (), *, as_: type[Any] | None = None) -> list[Any]:
        """Every row, in the statement's order."""
        factory = dict_row if as_ is None else class_row(as_)
        async with self._open().cursor(row_factory=cast("Any", factory)) as cursor:
            await cursor.execute(self._checked(sql), params)
            return await cursor.fetchall()

    async def fetch_value(self, sql: LiteralString, params: Params = ()) -> Any:
        """The first column of the only row, or None."""
        async with self._open().cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self._checked(sql), params)
            rows = await cursor.fetchmany(2)
        if len(rows) > 1:
            raise InvariantViolation(f"{self._name}: more than one row where one value was expected")
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Called by the database at the end: whoever kept this object finds it unusable."""
        self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            raise InvariantViolation(f"{self._name}: used after its end")
        return self._connection

    def _checked(self, sql: LiteralString) -> LiteralString:
        if not sql.lstrip().upper().startswith(_READS):
            raise InvariantViolation(f"{self._name}: a read may only read; use Database.run")
        return sql


class Tx(Reader):
    """One open transaction."""

    def __init__(self, name: str, connection: Connection, observer: LockObserver | None = None) -> None:
        super().__init__(name, connection)
        self.locks = HeldLocks(name, observer)
        self._after_commit: list[AfterCommit] = []
        self._signals: dict[Signal, None] = {}

    async def execute(self, sql: LiteralString, params: Params = ()) -> int:
        """Run a statement and return the number of rows that it touched. Zero is an answer: never ignore it."""
        async with self._open().cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql, params)
            return cursor.rowcount

    async def execute_many(self, sql: LiteralString, params: Sequence[Params]) -> int:
        """Run a statement once for each of `params` in one round trip; the number of rows touched by all together."""
        if not params:
            return 0
        async with self._open().cursor(row_factory=tuple_row) as cursor:
            await cursor.executemany(sql, params)
            return cursor.rowcount

    def after_commit(self, callback: AfterCommit) -> None:
        """Call `callback` (plain or async) once the commit is certain and the connection is given back.

        It must be able to be lost: a process that dies right after the commit never calls it. Its failure is logged.
        """
        self._open()
        self._after_commit.append(callback)

    def notify(self, signal: Signal) -> None:
        """Send `signal` to every listening process once the commit is certain; the same signal twice is sent once."""
        self._open()
        self._signals[signal] = None

    def take_effects(self) -> Effects:
        """Called by the database after COMMIT."""
        return Effects(tuple(self._signals), tuple(self._after_commit))

    def _checked(self, sql: LiteralString) -> LiteralString:
        return sql


class _DeadConnection(Exception):  # noqa: N818 - never leaves this module
    """A pooled connection turned out to be dead before anything was done with it."""


@contextlib.asynccontextmanager
async def _begun(connection: Connection) -> AsyncGenerator[None]:
    begun = False
    try:
        async with connection.transaction():
            begun = True
            yield
    except psycopg.OperationalError as error:
        if not begun and connection.closed:
            raise _DeadConnection(type(error).__name__) from None
        raise


def _cut(connection: Connection) -> None:
    """What a network does to a connection: the next word on it fails."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Database:
    """The pool and the rules of using it. `place` names host and database for messages, without secrets."""

    def __init__(self, pool: Pool, signaller: Signaller, place: str, *, clock: Clock = system_clock) -> None:
        self._pool = pool
        self._signaller = signaller
        self._clock = clock
        self._observer: LockObserver | None = None
        self.place = place

    async def run(self, name: str, work: Callable[[Tx], Awaitable[T]], *, retries: int = 5) -> T:
        """Run `work` in one transaction and return what it returned, after the commit.

        `name` is for metrics, lock order and messages. `work` may run up to `retries` more times. Errors:
        `DatabaseUnavailable` (with `outcome_unknown` where the connection was lost during COMMIT; a caller that is
        cancelled during it does not know the outcome either), `ConstraintViolation`, and whatever `work` raises, which
        rolls back. Opening a transaction inside another is refused: tasks that hold two connections exhaust a pool.
        """
        self._refuse_nested(name)
        with self._measured(name):
            result, effects = await self._over_dead_connections(lambda: self._with_retries(name, work, retries))
        if not failpoint.before(Point.EFFECT_SIGNAL):
            self._signaller.publish(effects.signals)
        failpoint.after(Point.EFFECT_SIGNAL)
        await self._call_back(name, effects.callbacks)
        return result

    async def read(self, name: str, work: Callable[[Reader], Awaitable[T]]) -> T:
        """Run single statements, each for itself, on one connection. They see what is committed when each starts.

        `work` may run again on another connection if the first turns out to be dead. Errors: `DatabaseUnavailable`.
        """
        self._refuse_nested(name)
        with self._measured(name):
            return await self._over_dead_connections(lambda: self._read_once(name, work))

    async def snapshot_read(self, name: str, work: Callable[[Reader], Awaitable[T]]) -> T:
        """As `read`, but every statement sees what was committed when the first one started: REPEATABLE READ, READ ONLY.

        For whoever holds facts of several tables against each other. Keep it short: while it lasts nothing is vacuumed.
        """
        self._refuse_nested(name)
        with self._measured(name):
            return await self._over_dead_connections(lambda: self._read_once(name, work, in_snapshot=True))

    def attach(self, bus: SignalBus) -> None:
        """Signals of this database's commits wake the waiters of `bus`, which lives in this event loop, at once."""
        self._signaller.attach(bus)

    def pool_stats(self) -> dict[str, int]:
        """The pool's numbers: `pool_size`, `pool_available`, `requests_waiting`, and more as psycopg names them."""
        return self._pool.get_stats()

    @contextlib.contextmanager
    def observe_locks(self, observer: LockObserver) -> Generator[None]:
        """Within the block `observer` is awaited after each lock that a transaction takes, while it is held."""
        before, self._observer = self._observer, observer
        try:
            yield
        finally:
            self._observer = before

    async def close(self) -> None:
        """Send the signals that are left and close every connection. Idempotent."""
        await self._signaller.close()
        await self._pool.close()

    async def _over_dead_connections(self, go: Callable[[], Awaitable[T]]) -> T:
        """After a restart of the server every pooled connection is dead, and each says so only when it is used."""
        for _ in range(self._pool.max_size):
            try:
                return await go()
            except _DeadConnection:
                continue
        try:
            return await go()
        except _DeadConnection as error:
            raise DatabaseUnavailable(
                f"connections to {self.place} are lost as soon as they are used: {error}"
            ) from None

    async def _with_retries(self, name: str, work: Callable[[Tx], Awaitable[T]], retries: int) -> tuple[T, Effects]:
        tries = 0
        while True:
            try:
                return await self._attempt(name, work)
            except psycopg.Error as error:
                if not is_retryable(error) or tries >= retries:
                    raise translate(error, self.place, doing=name) from None
                tries += 1
                _retries.labels(name).inc()
                _log.info("transaction_retried", transaction=name, tries=tries, sqlstate=error.sqlstate)
            await self._clock.sleep(jitter(0, min(_BACKOFF_S * 2**tries, _BACKOFF_S_MAX)))

    async def _attempt(self, name: str, work: Callable[[Tx], Awaitable[T]]) -> tuple[T, Effects]:
        committing, point = False, failpoint.of_commit(name)
        async with self._connection(name) as connection:
            tx = Tx(name, connection, self._observer)
            try:
                async with _begun(connection):
                    with transaction_open(name):
                        result = await work(tx)
                    tx.close()
                    committing = True
                    if point is not None and failpoint.before(point):
                        _cut(connection)
                if point is not None and failpoint.after(point):
                    await connection.close()
                if connection.closed:  # leaving the block of a closed connection says nothing, and commits nothing
                    raise psycopg.OperationalError("closed around COMMIT")
            except psycopg.OperationalError:
                if committing and connection.closed:
                    line = f"{name}: connection lost during COMMIT ({self.place}); it may have been committed"
                    raise DatabaseUnavailable(line, outcome_unknown=True) from None
                raise
            finally:
                tx.close()
        return result, tx.take_effects()

    async def _read_once(self, name: str, work: Callable[[Reader], Awaitable[T]], *, in_snapshot: bool = False) -> T:
        async with self._connection(name) as connection:
            reader = Reader(name, connection)
            try:
                with transaction_open(name):
                    if not in_snapshot:
                        return await work(reader)
                    async with connection.transaction():
                        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        return await work(reader)
            except psycopg.Error as error:
                if connection.closed:
                    raise _DeadConnection(type(error).__name__) from None
                raise translate(error, self.place, doing=name) from None
            finally:
                reader.close()

    @contextlib.asynccontextmanager
    async def _connection(self, name: str) -> AsyncGenerator[Connection]:
        try:
            connection = await self._pool.getconn()
        except psycopg_pool.PoolTimeout:
            raise DatabaseUnavailable(
                f"{name}: no free connection within {self._pool.timeout:g} s ({self.place})"
            ) from None
        except psycopg_pool.PoolClosed:
            raise DatabaseUnavailable(f"{name}: the connections to {self.place} are closed") from None
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)

    def _refuse_nested(self, name: str) -> None:
        outer = open_transaction()
        if outer is not None:
            raise InvariantViolation(f"{name}: started inside {outer}")

    @contextlib.contextmanager
    def _measured(self, name: str) -> Generator[None]:
        start = self._clock.monotonic()
        try:
            yield
        except Exception as error:
            _failures.labels(name, type(error).__name__).inc()
            raise
        finally:
            _seconds.labels(name).observe(self._clock.monotonic() - start)

    async def _call_back(self, name: str, callbacks: Sequence[AfterCommit]) -> None:
        for callback in callbacks:
            try:
                result = callback()
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                # The transaction is committed: its caller must hear so, whatever became of an effect that may be lost.
                # Its message may hold anything (E-02), so only its class and whose effect it was are told.
                effect = getattr(callback, "__qualname__", type(callback).__name__)
                _log.error("after_commit_failed", transaction=name, effect=effect, error=type(error).__name__)
