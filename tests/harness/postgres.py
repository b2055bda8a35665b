"""A real PostgreSQL for tests: one server per session, one database per test, copied from a template.

The server is the embedded one, in a directory of its own, with its durable settings (D-04 is checked at every open).
`TEST_DATABASE_URL` names another server instead; its user must be allowed to create databases. What a session that was killed
left there, on either, is removed by the next one.
"""

import contextlib
import fcntl
import os
import queue
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from turnkeeper.kit.procs import ProcessId, kill, processes, wait_gone
from turnkeeper.store import migrate
from turnkeeper.store.embedded import EmbeddedPostgres

WAIT_S = 15.0
_SPARE_DATABASES = 2
_USED_DATABASES = 10
_SUPPLY_S = 45.0
_MEMORY_BYTES_MIN = 2 << 30
_PREFIX = "tk-test-"
_NEW_PREFIX = ".tk-new-"
_DATABASES = "tk_test"  # on a server that stays
_ALIVE = ".alive.lock"
# Durable, but without what only a busy or a replicated server needs.
FAST_SETTINGS = {
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that a killed server leaves nothing elsewhere
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "checkpoint_timeout": "1h",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "autovacuum": "off",
    "deadlock_timeout": "100ms",
}

RawSession = psycopg.AsyncConnection[Any]


@dataclass
class PostgresServer:
    """A server that tests may create databases on. `url` reaches its maintenance database; every name begins with `prefix`."""

    url: str
    prefix: str
    keep: int = 0  # how many used databases may lie there before they are dropped
    _spare: "queue.Queue[str | None]" = field(default_factory=lambda: queue.Queue(_SPARE_DATABASES))
    _used: "queue.Queue[str]" = field(default_factory=queue.Queue[str])
    _workers: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def template(self) -> str:
        """The database that is migrated."""
        return f"{self.prefix}_template"

    def create_database(self, *, empty: bool = False) -> str:
        """A database of its own, migrated unless `empty`; its connection string."""
        if empty:
            return self._copy("template0")
        if not self._workers:
            # Copying and dropping take longer than most tests do, so both are done while a test runs.
            for work in (self._make, self._remove):
                self._workers.append(threading.Thread(target=work, name=f"databases {work.__name__}", daemon=True))
                self._workers[-1].start()
        made = self._spare.get(timeout=_SUPPLY_S)
        assert made is not None, "the server refuses to copy its template; its log says why"
        return made

    def give_back(self, dsn: str) -> None:
        """It will be dropped, whoever is still connected then."""
        self._used.put(dsn)

    def close(self, *, drop: bool) -> None:
        """End the workers, and `drop` every database where the server itself stays."""
        self._closing.set()
        for worker in self._workers:
            while worker.is_alive():
                with contextlib.suppress(queue.Empty):  # makes room, so that the maker sees that we close
                    self._spare.get_nowait()
                worker.join(0.02)
        if drop:
            # By their names, not by what we know of: a copy or a drop may have failed half-way.
            with psycopg.connect(self.url, autocommit=True) as connection:
                drop_databases(connection, self.prefix)

    def _make(self) -> None:
        while not self._closing.is_set():
            try:
                self._spare.put(self._copy(self.template))
            except psycopg.Error:
                self._spare.put(None)
                return

    def _remove(self) -> None:
        # Each drop asks for a checkpoint; in a burst only the first one has something to write.
        while not self._closing.wait(0.1):
            if self._used.qsize() > self.keep:
                while self._used.qsize() and not self._closing.is_set():
                    with contextlib.suppress(psycopg.Error):  # a remnant: it goes with the server
                        self._drop(self._used.get_nowait())

    def _copy(self, template: str) -> str:
        name = f"{self.prefix}_{secrets.token_hex(6)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)
        return make_conninfo(self.url, dbname=name)

    def _drop(self, dsn: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            drop_databases(connection, str(conninfo_to_dict(dsn)["dbname"]))


@contextlib.contextmanager
def postgres_server() -> Generator[PostgresServer]:
    """The server of a test session, with its migrated template."""
    session = secrets.token_hex(6)
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        server = PostgresServer(given, f"{_DATABASES}_{session}")
        with psycopg.connect(given, autocommit=True) as connection:
            # Held as long as this session lives, so that others see whose databases these are.
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (session,))
            sweep_databases(connection)
            try:
                yield _with_template(server)
            finally:
                server.close(drop=True)
        return
    with private_directory() as directory:
        embedded = embedded_at(directory)
        embedded.start_blocking()
        # Another name than those that are swept: whatever lies there goes with the server, and nobody holds a lock on it.
        server = PostgresServer(embedded.url("postgres"), f"test_{session}", keep=_USED_DATABASES)
        try:
            yield _with_template(server)
        finally:
            server.close(drop=False)
            throw_away(embedded)


@contextlib.contextmanager
def private_directory() -> Generator[Path]:
    """A directory with a short name (sockets), removed at the end. A lock in it says that its test session lives."""
    sweep()
    # It gets the name that a sweep looks for when its lock is held: another session's may come at any moment.
    made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=_ground()))
    with (made / _ALIVE).open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        directory = made.rename(made.with_name(_PREFIX + made.name.removeprefix(_NEW_PREFIX)))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _ground() -> Path:
    """Where test servers lie: in memory where there is room, so that their fsyncs (which stay on) cost nothing."""
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _MEMORY_BYTES_MIN:
            return memory
    return Path(tempfile.gettempdir())


def embedded_at(directory: Path, **settings: str) -> EmbeddedPostgres:
    """An embedded server for tests below `directory`, not yet started."""
    return EmbeddedPostgres(
        directory / "postgres", directory / "s", directory / "postgres.log", settings={**FAST_SETTINGS, **settings}
    )


def throw_away(embedded: EmbeddedPostgres) -> None:
    """End a server whose directory goes with it: without the checkpoint of a clean stop."""
    if embedded.postmaster is not None:
        kill(embedded.postmaster, signal.SIGQUIT)
    embedded.stop_blocking()


def sweep() -> None:
    """End what a test session left that was killed: servers, and the directory that nobody keeps."""
    for directory in _ground().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else is faster, or it is not ours
            if directory.lstat().st_uid == os.geteuid() and not _is_locked(directory / _ALIVE):
                end_processes_in(directory)
                shutil.rmtree(directory, ignore_errors=True)


def sweep_databases(connection: psycopg.Connection[Any]) -> None:
    """Drop the databases of test sessions that were killed: nobody holds their lock."""
    found = connection.execute(
        "SELECT datname FROM pg_database WHERE datname LIKE %s", (rf"{_DATABASES}\_%",)
    ).fetchall()
    for session in {name.removeprefix(f"{_DATABASES}_").partition("_")[0] for (name,) in found}:
        row = connection.execute("SELECT pg_try_advisory_lock(hashtext(%s))", (session,)).fetchone()
        if row is not None and row[0]:
            drop_databases(connection, f"{_DATABASES}_{session}")
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", (session,))


def drop_databases(connection: psycopg.Connection[Any], prefix: str) -> None:
    """Drop every database whose name begins so, whoever is still connected. Each is tried; the first failure is raised."""
    failures: list[psycopg.Error] = []
    for (name,) in connection.execute(
        "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", (prefix,)
    ).fetchall():
        try:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.Error as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def end_processes_in(directory: Path) -> None:
    """Kill whatever works below `directory`: a postmaster and its children do so in their data directory."""
    for found in processes():
        process = ProcessId(found.pid, found.start_ticks)
        with contextlib.suppress(OSError):
            if Path(f"/proc/{found.pid}/cwd").readlink().is_relative_to(directory):
                kill(process, signal.SIGKILL)
                wait_gone(process, WAIT_S)


def _is_locked(path: Path) -> bool:
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _with_template(server: PostgresServer) -> PostgresServer:
    with psycopg.connect(server.url, autocommit=True) as connection:
        name = sql.Identifier(server.template)
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
    migrate.upgrade(make_conninfo(server.url, dbname=server.template))
    return server


class Sessions:
    """Raw connections beside the code under test, for holding locks and looking at waits. Closed at the end."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = contextlib.AsyncExitStack()
        self._watcher: RawSession | None = None

    async def open(self, *, autocommit: bool = False) -> RawSession:
        """Another session. Without autocommit its first statement opens a transaction."""
        connection = await psycopg.AsyncConnection[Any].connect(self._dsn, autocommit=autocommit)
        self._stack.push_async_callback(connection.close)
        return connection

    async def wait_until_blocked(self, pid: int) -> None:
        """Return when the backend `pid` waits for a lock."""
        await self._wait("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid,))

    async def wait_until_blocked_by(self, session: RawSession, *, waiters: int = 1) -> list[int]:
        """Return the pids of the backends that wait for `session`, once there are `waiters` of them."""
        holder = session.info.backend_pid
        rows = await self._wait(
            "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)) AND datname = current_database()",
            (holder,),
            waiters,
        )
        return [row[0] for row in rows]

    async def close(self) -> None:
        """Close every session that was opened here."""
        await self._stack.aclose()

    async def _wait(self, query: LiteralString, params: tuple[object, ...], rows: int = 1) -> list[tuple[Any, ...]]:
        if self._watcher is None:
            self._watcher = await self.open(autocommit=True)
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = await (await self._watcher.execute(query, params)).fetchall()
            if len(found) >= rows:
                return found
            await (await self._watcher.execute("SELECT pg_sleep(0.005)")).fetchall()
        raise TimeoutError(f"nobody waited within {WAIT_S:g} s: {query} {params}")


@contextlib.asynccontextmanager
async def sessions_on(dsn: str) -> AsyncGenerator[Sessions]:
    """Raw sessions on a database, closed at the end."""
    sessions = Sessions(dsn)
    try:
        yield sessions
    finally:
        await sessions.close()


class DatabaseClock:
    """Replaces `tk_now()` in one database: the only clock of the product's SQL."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def offset(self, seconds: float) -> None:
        """The real time and `seconds` more."""
        self._replace(sql.SQL("SELECT clock_timestamp() + {} * interval '1 second'").format(sql.Literal(seconds)))

    def stand_at(self, moment: datetime) -> None:
        """Time stands still at `moment`."""
        self._replace(sql.SQL("SELECT {}::timestamptz").format(sql.Literal(moment.isoformat())))

    def real(self) -> None:
        """The real time again."""
        self._replace(sql.SQL("SELECT clock_timestamp()"))

    def now(self) -> datetime:
        """What the product's SQL sees now."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute("SELECT tk_now()").fetchone()
        assert row is not None
        return row[0]

    def _replace(self, body: sql.Composable) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            text = body.as_string(connection)
            statement = sql.SQL(
                "CREATE OR REPLACE FUNCTION tk_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS {}"
            ).format(sql.Literal(text))
            connection.execute(statement)


def wait_until(look: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Poll a fact, in a thread that may block, with a bound."""
    end = time.monotonic() + timeout_s
    while not look():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.005)
