"""PostgreSQL as a part of the product: one server in the data directory, reached through a socket of our own only.

The postmaster outlives a supervisor that is killed, so that the next start adopts it instead of recovering; a clean stop
ends it. Two lock files beside the data directory say who is there, in every pid namespace of the machine:

* `.<name>.supervisor.lock` is held by the one supervisor;
* `.<name>.server.lock` is a descriptor that initdb, the postmaster and all of its children inherit. Whoever can lock it
  knows that none of them is left, so a `postmaster.pid` is then only a remnant.

A process that the pid file names is taken for the server only if it is a `postgres` whose working directory is exactly
our data directory, and adopted only if it is also the one that answers on the socket. Unknown is never taken for gone.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.files import write_atomic
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import ProcessId, descendants, identify, is_alive, kill, wait_gone
from turnkeeper.kit.sockets import ADDRESS_BYTES_MAX
from turnkeeper.kit.stop import Deadline
from turnkeeper.store import pginstall
from turnkeeper.store.errors import DatabaseRefused, DatabaseUnavailable
from turnkeeper.store.greeting import CANNOT_CONNECT_NOW, NO_SUCH_DATABASE, NotServed, Served, greet
from turnkeeper.store.pginstall import DATABASE_USER, Installation
from turnkeeper.store.pgplaces import fsync_directory, is_private, make_private, short_parent, try_lock

T = TypeVar("T")

DATABASE: Final = "turnkeeper"
PORT: Final = 5432  # only a part of the socket's file name
_SOCKET_NAME: Final = f".s.PGSQL.{PORT}"
_ELSEWHERE: Final = "socket-directory"
_ANSWER_S: Final = 5.0
_POLL_S: Final = 0.01
_LOG_BYTES_MAX: Final = 10 * 1024 * 1024

# Durable by default; terse, so that no failing row (a prompt) gets into the log; small, so that an idle system is.
_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "80",
    "shared_buffers": "64MB",
    "io_method": "sync",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
}

_log = get_logger("store.embedded")


def _url(socket_dir: Path, database: str) -> str:
    return f"postgresql://{DATABASE_USER}@/{quote(database)}?host={quote(str(socket_dir), safe='')}&port={PORT}"


def url_at(socket_dir: Path, database: str = DATABASE) -> str:
    """The connection URL of a server that somebody else supervises, by the directory that its socket was wanted in.

    Nothing is started or changed, and whether a server is there is found out by connecting.
    """
    with contextlib.suppress(OSError):
        socket_dir = Path(os.fsdecode((socket_dir / _ELSEWHERE).read_bytes()))
    return _url(Path(os.path.abspath(socket_dir)), database)  # noqa: PTH100 - as where the server is started


@dataclass(frozen=True)
class _PidFile:
    """The lines of `postmaster.pid` that matter."""

    pid: int
    socket_dir: str


class EmbeddedPostgres:
    """One embedded server.

    `data_dir` is PGDATA, `socket_dir` a directory for the socket, `log_file` the server's log; their parents are created
    with mode 0700. `settings` are added to, or replace, our own. `look_s`: how often `wait_ended` looks whether it serves;
    `silent_s`: how long it may not. Errors of `start` are `DatabaseRefused` and
    `DatabaseUnavailable`, one line each.
    """

    def __init__(
        self,
        data_dir: Path,
        socket_dir: Path,
        log_file: Path,
        *,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 30.0,
        look_s: float = 5.0,
        silent_s: float = 30.0,
        clock: Clock = system_clock,
    ) -> None:
        self._data_dir = Path(os.path.abspath(data_dir))  # noqa: PTH100 - resolve() would follow links in a name that is ours to keep
        self._wanted_socket_dir = Path(os.path.abspath(socket_dir))  # noqa: PTH100 - the same
        self._socket_dir = self._wanted_socket_dir
        self._log_file = log_file
        self._settings = {**_SETTINGS, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._look_s = look_s
        self._silent_s = silent_s
        self._clock = clock
        self._busy = threading.Lock()
        self._stop_asked = threading.Event()
        self._supervisor_fd: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._postmaster: ProcessId | None = None
        self.adopted = False

    async def start(self) -> str:
        """Make, adopt or start the server; returns the connection URL once it answers."""
        self._stop_asked.clear()  # here, not in the thread: of a start and a stop that follow each other the stop wins
        return await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        """End the server by a fast shutdown. Idempotent."""
        await asyncio.to_thread(self.stop_blocking)

    async def wait_ended(self) -> None:
        """Return when the server has ended, for whoever wants to start it again.

        One that lives and serves nobody any more, or whose socket was removed, is ended here. `DatabaseUnavailable` where that cannot be done.
        """
        silent_since: float | None = None
        look_at = self._clock.monotonic() + self._look_s
        while self.alive:
            await self._clock.sleep(0.2)
            now = self._clock.monotonic()
            if now < look_at:
                continue
            if await asyncio.to_thread(self._may_serve):
                silent_since = None
            elif silent_since is None:
                silent_since = now
            elif now - silent_since >= self._patience_s() and self._postmaster is not None:
                _log.error("postgres_serves_nobody", pid=self._postmaster.pid, silent_s=round(now - silent_since))
                await asyncio.to_thread(self._end, self._postmaster)
            look_at = self._clock.monotonic() + self._look_s

    def _patience_s(self) -> float:
        """How long it may be silent. Whose socket was removed will answer nobody, and makes no other while it lives."""
        return self._silent_s if (self._socket_dir / _SOCKET_NAME).exists() else 0.0

    def _may_serve(self) -> bool:
        """Whether it answers, or is on the way to it. After a crash it may recover for long, by a process of its own; should
        that be killed too, the postmaster waits for it for ever (seen with 18.4)."""
        found = self._greet("postgres")
        if not isinstance(found, NotServed) or found.sqlstate != CANNOT_CONNECT_NOW:
            return found is not None
        return self._postmaster is not None and any(map(_recovers, descendants(self._postmaster.pid)))

    @property
    def postmaster(self) -> ProcessId | None:
        """The server's process while we supervise it."""
        return self._postmaster

    @property
    def socket_dir(self) -> Path:
        """Where the socket is."""
        return self._socket_dir

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        if self._child is not None:
            self._child.poll()  # reaps it, so that it does not stay as a zombie
        return self._postmaster is not None and is_alive(self._postmaster)

    def url(self, database: str = DATABASE) -> str:
        """The connection URL of a database of this server."""
        return _url(self._socket_dir, database)

    def start_blocking(self) -> str:
        """As `start`, in the calling thread."""
        self._stop_asked.clear()
        return self._start()

    def _start(self) -> str:
        with self._busy:
            self._refuse_if_stopped()
            if self.alive:
                return self.url()
            installation = pginstall.find_installation()
            self._prepare_directories()
            self._supervise()
            try:
                self._adopt_or_start(installation)
                self._create_database(installation)
            except BaseException:
                self._stop()
                raise
            return self.url()

    def stop_blocking(self) -> None:
        """As `stop`, in the calling thread. A start that is under way in another thread gives up."""
        self._stop_asked.set()
        with self._busy:
            self._stop()

    def _stop(self) -> None:
        try:
            if self._postmaster is not None:
                self._end(self._postmaster)
                _log.info("postgres_stopped", pid=self._postmaster.pid)
                self._remove_short_directory()
        finally:
            self.release()

    def release(self) -> None:
        """Stop supervising and leave the server running, to be adopted by another supervisor."""
        if self._child is not None:
            self._child.returncode = self._child.poll() or 0  # its end is no longer ours to wait for
        self._child = self._postmaster = None
        if self._supervisor_fd is not None:
            os.close(self._supervisor_fd)
            self._supervisor_fd = None

    # ------------------------------------------------------------------------------------------------- directories, locks

    def _prepare_directories(self) -> None:
        try:
            for directory in (self._data_dir.parent, self._wanted_socket_dir, self._log_file.parent):
                make_private(directory)
            self._wanted_socket_dir.chmod(0o700)
            if self._log_file.exists() and self._log_file.stat().st_size > _LOG_BYTES_MAX:
                self._log_file.replace(self._log_file.with_suffix(self._log_file.suffix + ".1"))
        except OSError as error:
            raise DatabaseRefused(f"cannot use {error.filename} for PostgreSQL: {error.strerror}") from None

    def _lock_path(self, what: str) -> Path:
        return self._data_dir.with_name(f".{self._data_dir.name}.{what}.lock")

    def _supervise(self) -> None:
        if self._supervisor_fd is None:
            fd = try_lock(self._lock_path("supervisor"))
            if fd is None:
                raise DatabaseRefused(f"{self._data_dir} is in use by another Turnkeeper: stop it first")
            self._supervisor_fd = fd

    def _choose_socket_directory(self) -> None:
        """PostgreSQL refuses socket paths over 107 bytes: then a short private directory is used, and recorded."""
        self._socket_dir = self._wanted_socket_dir
        if len(os.fsencode(self._socket_dir / _SOCKET_NAME)) <= ADDRESS_BYTES_MAX:
            return
        record = self._wanted_socket_dir / _ELSEWHERE
        with contextlib.suppress(FileNotFoundError):
            known = Path(os.fsdecode(record.read_bytes()))
            if is_private(known):
                self._socket_dir = known
                return
        self._socket_dir = Path(tempfile.mkdtemp(prefix="turnkeeper-pg-", dir=short_parent()))
        write_atomic(record, os.fsencode(self._socket_dir))

    def _remove_short_directory(self) -> None:
        if self._socket_dir != self._wanted_socket_dir and is_private(self._socket_dir):
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            (self._wanted_socket_dir / _ELSEWHERE).unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------------ adopt or start

    def _adopt_or_start(self, installation: Installation) -> None:
        self._choose_socket_directory()
        while True:
            deadline = Deadline.after(self._start_timeout_s, self._clock)
            occupant = self._wait_for(self._occupant, deadline)
            if occupant is None:
                raise DatabaseUnavailable(
                    f"a PostgreSQL process of {self._data_dir} still runs and cannot be found: end it"
                )
            if isinstance(occupant, ProcessId):
                if self._adopt(occupant, deadline):
                    return
                continue
            try:
                self._begin(installation, occupant, deadline)
            finally:
                os.close(occupant)  # the server keeps its copy
            return

    def _occupant(self) -> ProcessId | int | None:
        """Who is in the directory: its live postmaster; nobody, as the descriptor of the lock that says so; None: unknown yet."""
        return self._survivor() or try_lock(self._lock_path("server"))

    def _begin(self, installation: Installation, lock_fd: int, deadline: Deadline) -> None:
        self._ensure_data_directory(installation, lock_fd)
        pginstall.write_access_rules(self._data_dir, installation.os_user)
        (self._data_dir / "postmaster.pid").unlink(missing_ok=True)  # nobody is left (_occupant): a remnant
        log_start = self._log_file.stat().st_size if self._log_file.exists() else 0
        process = self._postmaster = self._launch(installation, lock_fd)
        if process is None or not self._wait_for(lambda: self._settled(process), deadline):
            why = self._last_log_line(log_start) or f"no answer within {self._start_timeout_s:g} s"
            raise DatabaseUnavailable(f"the embedded PostgreSQL did not start: {why} (log: {self._log_file})")
        _log.info("postgres_started", pid=process.pid)

    def _survivor(self) -> ProcessId | None:
        """The postmaster of this directory that still runs, or None if there is provably none."""
        found = self._pid_file()
        if found is None:
            return None
        process = identify(found.pid)
        if process is None:
            return None
        try:
            same = Path(f"/proc/{found.pid}/cwd").samefile(self._data_dir)
            program = Path(os.readlink(f"/proc/{found.pid}/exe")).name  # noqa: PTH115 - "(deleted)" must stay text
        except (FileNotFoundError, ProcessLookupError):
            return None
        except PermissionError:
            # Not ours to look at. The directory is ours with mode 0700, so a postmaster in it would be too.
            return None if is_private(self._data_dir) else self._refuse_unknown(found.pid)
        return process if same and program.removesuffix(" (deleted)") == "postgres" and is_alive(process) else None

    def _refuse_unknown(self, pid: int) -> None:
        raise DatabaseRefused(
            f"cannot tell whether process {pid} is the PostgreSQL of {self._data_dir}: look at it first"
        )

    def _adopt(self, survivor: ProcessId, deadline: Deadline) -> bool:
        """Whether the survivor answers where we expect it. One that does not is ended: it is ours, and of no use."""
        self._postmaster = survivor  # provably ours: whoever stops us now ends it too
        found = self._pid_file()
        expected = found is not None and found.socket_dir in ("", str(self._socket_dir))
        if expected and self._wait_for(lambda: self._settled(survivor), deadline):
            self.adopted = True
            _log.info("postgres_adopted", pid=survivor.pid)
            return True
        _log.warning("postgres_survivor_ended", pid=survivor.pid, at_expected_socket=expected)
        self._end(survivor)
        self._postmaster = None
        return False

    def _settled(self, process: ProcessId) -> bool | None:
        """True: it answers. False: it is gone. None: not yet."""
        if self._child is not None:
            self._child.poll()
        if not is_alive(process):
            return False
        return True if self.answers(process) else None

    def _ensure_data_directory(self, installation: Installation, lock_fd: int) -> None:
        version = self._data_dir / "PG_VERSION"
        if version.is_file():
            major = version.read_text(encoding="ascii").strip()
            if major != str(pginstall.MAJOR):
                raise DatabaseRefused(f"{self._data_dir} is of PostgreSQL {major}; this release runs {pginstall.MAJOR}")
            return
        if self._data_dir.exists() and any(self._data_dir.iterdir()):
            raise DatabaseRefused(
                f"{self._data_dir} holds something that is no PostgreSQL data directory: move it away"
            )
        # Made beside its place and moved there when it is whole. What lies here was never ready, and nobody works in it:
        # initdb too would hold the lock that we have.
        half_made = self._data_dir.with_name(f".{self._data_dir.name}.initdb")
        shutil.rmtree(half_made, ignore_errors=True)
        pginstall.initdb(installation, half_made, self._log_file, lock_fd)
        half_made.rename(self._data_dir)
        fsync_directory(self._data_dir.parent)
        _log.info("postgres_data_directory_made", path=str(self._data_dir))

    def _launch(self, installation: Installation, lock_fd: int) -> ProcessId | None:
        settings = {**self._settings, "unix_socket_directories": str(self._socket_dir), "port": str(PORT)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log_file.open("ab") as log:
            self._child = subprocess.Popen(
                installation.command("postgres", "-D", str(self._data_dir), *arguments),
                cwd="/",
                env=pginstall.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock_fd,),
            )
        self.adopted = False
        # `unshare` execs, so the child's pid is the postmaster's. None: it ended at once.
        return identify(self._child.pid)

    def answers(self, expected: ProcessId) -> bool:
        """Whether exactly this process is the one that serves on our socket."""
        found = self._greet("postgres")
        return isinstance(found, Served) and found.pid == expected.pid and is_alive(expected)

    def _greet(self, database: str) -> Served | NotServed | None:
        return greet(self._socket_dir / _SOCKET_NAME, user=DATABASE_USER, database=database, timeout_s=_ANSWER_S)

    def _create_database(self, installation: Installation) -> None:
        found = self._greet(DATABASE)
        if isinstance(found, NotServed) and found.sqlstate == NO_SUCH_DATABASE:
            pginstall.createdb(installation, self._socket_dir, PORT, DATABASE)
            found = self._greet(DATABASE)
        if not isinstance(found, Served):
            why = f"SQLSTATE {found.sqlstate}" if found is not None else "no answer"
            raise DatabaseUnavailable(f"the embedded PostgreSQL does not serve its database {DATABASE}: {why}")

    # ------------------------------------------------------------------------------------------------------------------ end

    def _end(self, process: ProcessId) -> None:
        """Fast shutdown; after the bound an immediate one, which the next start recovers from."""
        kill(process, signal.SIGCONT)  # a stopped process hears of nothing but SIGKILL
        for sig, bound_s in ((signal.SIGINT, self._stop_timeout_s), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            kill(process, sig)
            if wait_gone(process, bound_s):
                if self._child is not None and self._child.pid == process.pid:
                    self._child.wait()
                return
            _log.warning("postgres_stop_slow", pid=process.pid, signal=sig.name, waited_s=bound_s)
        raise DatabaseUnavailable(f"the embedded PostgreSQL (process {process.pid}) cannot be ended")

    # -------------------------------------------------------------------------------------------------------------- small parts

    def _pid_file(self) -> _PidFile | None:
        try:
            text = (self._data_dir / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            return None
        lines = text.splitlines()
        if not lines or not lines[0].strip().isdecimal():
            return None
        return _PidFile(int(lines[0]), lines[4] if len(lines) > 4 else "")

    def _last_log_line(self, start: int) -> str:
        with self._log_file.open("rb") as log:
            log.seek(start)
            lines = log.read(65536).decode("utf-8", "replace").splitlines()
        telling = [
            line for line in lines if "FATAL" in line or "PANIC" in line or "could not" in line or "unshare" in line
        ]
        return telling[-1] if telling else ""

    def _wait_for(self, look: Callable[[], T | None], deadline: Deadline) -> T | None:
        """Call `look` until it returns something other than None, at most until the deadline (then None)."""
        while (found := look()) is None and not deadline.passed:
            self._clock.wait(self._stop_asked, _POLL_S)
            self._refuse_if_stopped()
        return found

    def _refuse_if_stopped(self) -> None:
        if self._stop_asked.is_set():
            raise DatabaseUnavailable("the embedded PostgreSQL was stopped while it started")


def _recovers(process: ProcessId) -> bool:
    """Whether it is the process by which a server recovers from a crash: its title says so."""
    with contextlib.suppress(OSError):
        return b"startup" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return False
