"""Everything on one machine: the supervisor behind `turnkeeper up`.

It holds the listening sockets, so that a restarted control plane finds its clients waiting instead of refused. What needs
a web framework or the schema runs in processes of its own. After a SIGKILL of
`up` the next one finds PostgreSQL, sandboxes and turns as they live, and adopts them.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from turnkeeper.client.http import AsyncHttpClient, CallError, ClientError
from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit import log as logs
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import ProcessId, descendants, keep_signals_to_oneself
from turnkeeper.kit.stop import StopSignal
from turnkeeper.main import leaving
from turnkeeper.main.environment import Environment, ListenAddress
from turnkeeper.main.hints import command
from turnkeeper.main.paths import DataDirectory, default_data_directory
from turnkeeper.main.preflight import require_settings
from turnkeeper.main.processes import ManagedProcess, last_said
from turnkeeper.main.reach import allowed_hosts, is_loopback, own_url
from turnkeeper.main.sockets import KeptListener, bind
from turnkeeper.main.starting import Starting
from turnkeeper.main.teardown import end_sandboxes, end_workers
from turnkeeper.provisioner.backends.local.bubblewrap import IsolationUnavailableError, check_private
from turnkeeper.store.embedded import EmbeddedPostgres
from turnkeeper.store.errors import DatabaseError

READY_WITHIN_S = 120.0
BOOTSTRAP_WITHIN_S = 120.0
HOST_STOP_S = 75.0
HOST_NAME = "local"
LINK_PATH = "/login"
DATABASE_PAUSE_S = 2.0
SOCKET_LOOK_S = 2.0
# A process that has ended so often before all were ready will not become well by a further start.
GIVEN_UP_AFTER = 3
# Settings of the control plane that somebody may give to `up`.
OF_CONTROL = ("TURNKEEPER_TREES_PER_OWNER",)

log = get_logger("main.up")


@dataclass(frozen=True)
class UpSettings:
    """What `up` was asked for. `database_url` None: the embedded PostgreSQL."""

    data: Path
    address: str
    port: int
    capacity: int
    database_url: str | None
    unsafe_no_isolation: bool
    end_sandboxes: bool
    environment: Mapping[str, str]
    allowed_hosts: tuple[str, ...] = ()

    @classmethod
    def of_environment(
        cls,
        data: Path | None,
        *,
        address: str,
        port: int,
        capacity: int,
        unsafe_no_isolation: bool,
        end_sandboxes: bool,
        allowed_hosts: Sequence[str] = (),
    ) -> "UpSettings":
        """The command's options, completed from the environment."""
        environment = Environment.of_process()
        return cls(
            data=(data or default_data_directory()).absolute(),
            address=address,
            port=port,
            capacity=capacity,
            database_url=environment.optional("DATABASE_URL"),
            unsafe_no_isolation=unsafe_no_isolation,
            end_sandboxes=end_sandboxes,
            environment=environment.values,
            allowed_hosts=tuple(allowed_hosts),
        )


@dataclass(frozen=True)
class Running:
    """A product that answers. `link` opens the page once; `open_at` is where others reach it, None on loopback."""

    url: str
    link: str
    data: DataDirectory
    uid: str
    pids: Mapping[str, int | None]
    open_at: str | None = None


OnReady = Callable[[Running], Awaitable[None] | None]


def run_up(settings: UpSettings, *, on_ready: OnReady) -> int:
    """Run until SIGTERM or SIGINT, or until `on_ready` raised. The exit status."""
    keep_signals_to_oneself()
    require_settings(Environment(settings.environment))
    data = DataDirectory(settings.data)
    data.make()
    logs.configure("up", settings.environment.get("TURNKEEPER_LOG_LEVEL", "info"), path=data.logs / "up.log")
    stop = StopSignal()
    with stop.on_signals(), _only_one(data):
        try:
            return asyncio.run(_Up(settings, data, stop).run(on_ready))
        except DatabaseError as error:
            raise SettingRefused(str(error)) from error


def announce(running: Running, *, as_json: bool) -> None:
    """What a person needs once it runs."""
    if as_json:
        shown = {"url": running.url, "link": running.link, "data": str(running.data.root), "pids": dict(running.pids)}
        click.echo(json.dumps(shown))
        return
    click.echo(f"Turnkeeper runs at {running.url}")
    click.echo(f"  page   {running.link}   (opens once)")
    click.echo(f"  data   {running.data.root}")
    if running.open_at is not None:
        click.echo(f"  open   to other machines at {running.open_at}")
        click.echo(
            "warning: there is no TLS: keys and sessions cross the network in the clear, unless a proxy encrypts",
            err=True,
        )
    click.echo(f"  try    {command('chat hello', running.data, running.url)}")
    click.echo(f"  login  {command('login', running.data, running.url)}   (another link to the page)")
    click.echo("Ctrl-C stops it; what runs then is given time to end.")


@contextlib.contextmanager
def _only_one(data: DataDirectory):  # noqa: ANN202 - a generator that only brackets
    """Holds the data directory's lock: a second `up` of the same directory is refused, with the first one's pid."""
    descriptor = os.open(data.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise SettingRefused(
                f"data directory {data.root} is in use by a running `turnkeeper up` (pid {other})"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _require_isolation(data: Path) -> None:
    """Refuse now what the provisioner would refuse later (K-08, K-11)."""
    if shutil.which("bwrap") is None:
        raise SettingRefused(
            "bubblewrap (bwrap) is not installed, and agents run in its sandboxes: apt-get install bubblewrap "
            "(or --unsafe-no-isolation, which lets agents read and write all that this user can)"
        )
    try:
        check_private(data)
    except IsolationUnavailableError as error:
        raise SettingRefused(str(error)) from error


class _Up:
    def __init__(self, settings: UpSettings, data: DataDirectory, stop: StopSignal) -> None:
        self.settings = settings
        self.data = data
        self.stop = stop
        self._keeping: asyncio.Task[None] | None = None
        self._starting = Starting(data.root)
        self._hurried = False
        self._workers: list[ProcessId] = []  # of the host, as it had them when it was killed
        self._last_lines: list[str] = []

    async def run(self, on_ready: OnReady) -> int:
        self._starting.begin()
        try:
            return await self._run(on_ready)
        finally:
            self._starting.end()
            for line in self._last_lines:  # "stopped" is said when the database has, too
                click.echo(line, err=True)

    async def _run(self, on_ready: OnReady) -> int:
        if not self.settings.unsafe_no_isolation:
            _require_isolation(self.data.root)
        address = ListenAddress(host=self.settings.address, port=self.settings.port)
        with (
            bind(address, "--port", "--host") as control_socket,
            KeptListener(self.data.provisioner_socket, "provisioner.sock") as provisioner_socket,
        ):
            url = own_url(self.settings.address, control_socket.getsockname()[1])
            self._starting.waits_for = "the database"
            async with self._database() as dsn:
                self._starting.waits_for = "the database's schema"
                made = await self._bootstrap(dsn)
                processes = self._processes(dsn, url, control_socket, provisioner_socket)
                return await self._supervise(processes, url, made, on_ready, provisioner_socket)

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncGenerator[str]:
        if self.settings.database_url is not None:
            yield self.settings.database_url
            return
        postgres = EmbeddedPostgres(self.data.postgres, self.data.postgres_sockets, self.data.logs / "postgres.log")
        dsn = await postgres.start()
        self._keeping = keeping = asyncio.create_task(self._keep(postgres), name="postgres")
        try:
            yield dsn
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            await postgres.stop()

    async def _keep(self, postgres: EmbeddedPostgres) -> None:
        """Start the server again when it has ended; the others wait for it as they do for any database."""
        while True:
            try:
                await postgres.wait_ended()
                log.warning("process_ended", name="postgres")
                await postgres.start()
            except DatabaseError as error:
                log.warning("postgres_not_started", why=str(error))
                await system_clock.sleep(DATABASE_PAUSE_S)
            except OSError as error:  # no room on the disk, for one: it may pass
                log.warning("postgres_not_started", why=os.strerror(error.errno or 0))
                await system_clock.sleep(DATABASE_PAUSE_S)

    async def _keep_socket(self, listener: KeptListener, provisioner: ManagedProcess) -> None:
        """Where the provisioner's socket was removed or replaced nobody reaches it, and every turn fails: it is made again,
        and the provisioner started again with it. Sandboxes live on; calls that wait meanwhile are kept by the new socket."""
        why: str | None = None
        while True:
            await system_clock.sleep(SOCKET_LOOK_S)  # one stat(2) each time
            try:
                if listener.is_there():
                    why = None
                    continue
                self.data.make_run()
                listener.renew()
            except (SettingRefused, OSError) as error:
                if why is None:  # it is looked at again: once is enough
                    why = str(error)
                    log.warning("socket_not_made_again", path=str(listener.path), why=why)
                continue
            log.warning("socket_made_again", path=str(listener.path))
            await provisioner.restart()

    async def _bootstrap(self, dsn: str) -> dict[str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "turnkeeper.main.bootstrap",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.settings.environment, "DATABASE_URL": dsn, "TURNKEEPER_DATA": str(self.data.root)},
        )
        try:
            async with asyncio.timeout(BOOTSTRAP_WITHIN_S):
                out, err = await process.communicate()
        except TimeoutError as error:
            process.kill()
            raise SettingRefused(f"the database was not ready within {BOOTSTRAP_WITHIN_S:.0f} s") from error
        if process.returncode != 0:
            said = last_said(err.decode(errors="replace"))
            raise SettingRefused(said or f"preparing the database failed (status {process.returncode})")
        return json.loads(out)

    def _processes(
        self, dsn: str, url: str, control_socket: socket.socket, provisioner_socket: KeptListener
    ) -> list[ManagedProcess]:
        """Each process gets its own settings only: the database's address, for one, is the control plane's alone (K-11)."""
        data, given = self.data, self.settings
        ours = ("DATABASE_URL", "TURNKEEPER_")
        common = {name: value for name, value in given.environment.items() if not name.startswith(ours)}
        common["TURNKEEPER_LOG_LEVEL"] = given.environment.get("TURNKEEPER_LOG_LEVEL", "info")
        common["TURNKEEPER_DATA"] = str(data.root)
        provisioner_url = ListenAddress(socket_path=data.provisioner_socket).url
        control = ManagedProcess(
            "control",
            ("control", "--listen", f"fd:{control_socket.fileno()}"),
            {
                **common,
                "DATABASE_URL": dsn,
                "TURNKEEPER_SIGNING_KEY_FILE": str(data.signing_key),
                "TURNKEEPER_PROVISIONER_URL": provisioner_url,
                "TURNKEEPER_PROVISIONER_TOKEN_FILE": str(data.provisioner_token),
                "TURNKEEPER_EXPECT_HOSTS": "1",
                "TURNKEEPER_ALLOWED_HOSTS": allowed_hosts(
                    given.environment.get("TURNKEEPER_ALLOWED_HOSTS"), given.allowed_hosts, given.address
                ),
                **{name: given.environment[name] for name in OF_CONTROL if given.environment.get(name)},
            },
            data.logs / "control.log",
            (control_socket.fileno(),),
        )
        unsafe = ("--unsafe-no-isolation",) if given.unsafe_no_isolation else ()
        secrets = given.environment.get("TURNKEEPER_SECRETS_FILE")
        provisioner = ManagedProcess(
            "provisioner",
            ("provisioner", "--listen", f"fd:{provisioner_socket.descriptor}", *unsafe),
            {
                **common,
                "TURNKEEPER_PROVISIONER_TOKEN_FILE": str(data.provisioner_token),
                "TURNKEEPER_SIGNING_PUBLIC_KEYS": str(data.signing_public_keys),
                **({"TURNKEEPER_SECRETS_FILE": secrets} if secrets else {}),
            },
            data.logs / "provisioner.log",
            (provisioner_socket.descriptor,),
        )
        host = ManagedProcess(
            "host",
            ("host", "--capacity", str(given.capacity)),
            {
                **common,
                "TURNKEEPER_CONTROL_URL": url,
                "TURNKEEPER_PROVISIONER_URL": provisioner_url,
                "TURNKEEPER_HOST_NAME": HOST_NAME,
                "TURNKEEPER_HOST_TOKEN_FILE": str(data.host_token),
            },
            data.logs / "host.log",
            stop_s=HOST_STOP_S,
        )
        return [control, provisioner, host]

    async def _supervise(
        self,
        processes: list[ManagedProcess],
        url: str,
        made: dict[str, str],
        on_ready: OnReady,
        provisioner_socket: KeptListener,
    ) -> int:
        tasks = [asyncio.create_task(process.run(), name=process.name) for process in processes]
        of_socket = self._keep_socket(provisioner_socket, processes[1])
        tasks.append(asyncio.create_task(of_socket, name=provisioner_socket.path.name))
        keeping = tasks if self._keeping is None else [*tasks, self._keeping]
        try:
            await self._wait_ready(processes, url)
            self._starting.end()
            pids = {process.name: process.pid for process in processes}
            link = f"{url}{LINK_PATH}?token={made['link_secret']}"
            there = self.settings.address
            open_at = None if is_loopback(there) else ListenAddress(host=there, port=int(url.rpartition(":")[2])).url
            running = Running(url, link, self.data, made["uid"], pids, open_at)
            await self._until_stopped(on_ready(running), keeping)
            return 0
        finally:
            self._starting.end()
            if self.stop.is_set:
                click.echo(leaving.of_turns(await leaving.live_turns(url, self.data, HOST_NAME)), err=True)
            await self._stop_all(processes)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_what_is_left()

    async def _end_what_is_left(self) -> None:
        """Workers and sandboxes outlive the processes of `up`, unless somebody wants them to end."""
        if self._hurried or self.settings.end_sandboxes:
            workers = await asyncio.to_thread(end_workers, self.data.hosts / HOST_NAME, self._workers)
            for line in workers.complaints:
                log.warning("worker_not_ended", why=line)
                click.echo(f"error: {line}", err=True)
            if (line := leaving.of_cut_off(workers.turns)) is not None:
                click.echo(line, err=True)
        if self.settings.end_sandboxes:
            sandboxes = await asyncio.to_thread(end_sandboxes, self.data)
            for line in sandboxes.complaints:
                log.warning("sandbox_not_ended", why=line)
                click.echo(f"error: {line}", err=True)
            if self.stop.is_set:
                self._last_lines.append(leaving.of_ended_sandboxes(sandboxes.count))
        elif (living := leaving.living_sandboxes(self.data)) or self.stop.is_set:
            self._last_lines.append(leaving.of_sandboxes(living, self.data))

    async def _until_stopped(self, work: Awaitable[None] | None, keeping: "Sequence[asyncio.Task[None]]") -> None:
        """Until somebody asks to stop. What `work` or a task that keeps something running raises ends it too: a part that
        nobody would start again must not go unnoticed."""
        stopping = asyncio.create_task(self.stop.wait_async(), name="stop")
        working = set[asyncio.Future[None]]() if work is None else {asyncio.ensure_future(work)}
        waiting: set[asyncio.Future[Any]] = {stopping, *working, *keeping}
        try:
            while not stopping.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        finally:
            for task in (stopping, *working):
                task.cancel()

    async def _stop_all(self, processes: list[ManagedProcess]) -> None:
        """The host first: its turns still need the others to end well. Asked again (a second Ctrl-C), all at once."""
        loop = asyncio.get_running_loop()
        hurried: list[asyncio.Task[None]] = []
        host = processes[-1]

        def hurry() -> None:
            self._hurried = True
            # Not yet reaped, so the pid is the host's own. Killed, it cannot end its children any more.
            if host.pid is not None:
                self._workers += descendants(host.pid)
            hurried.extend(loop.create_task(process.stop()) for process in processes)

        def asked_again() -> None:
            with contextlib.suppress(RuntimeError):  # all have stopped, and the loop has ended
                loop.call_soon_threadsafe(hurry)

        self.stop.on_again(asked_again)
        for process in reversed(processes):
            await process.stop()
        await asyncio.gather(*hurried)

    async def _wait_ready(self, processes: list[ManagedProcess], url: str) -> None:
        """Until all of them answer: `/readyz` covers the database and the host, the provisioner is asked itself."""
        ends = system_clock.monotonic() + READY_WITHIN_S
        provisioner_url = ListenAddress(socket_path=self.data.provisioner_socket).url
        async with AsyncHttpClient(url) as control, AsyncHttpClient(provisioner_url) as provisioner:
            why, asked = "no answer", ""
            while system_clock.monotonic() < ends:
                try:
                    asked = "the provisioner"
                    await provisioner.request("GET", "/livez", timeout_s=5.0)
                    asked = "the control plane"
                    await control.request("GET", "/readyz", timeout_s=5.0)
                    if all(process.pid is not None for process in processes):
                        return
                except CallError as error:
                    why = str(error)
                    said = f" ({error.detail})" if isinstance(error, ClientError) and error.detail else ""
                    self._starting.waits_for = f"{asked}{said}"
                if self.stop.is_set:
                    raise SettingRefused("stopped before everything was ready")
                for process in processes:
                    if process.ended >= GIVEN_UP_AFTER:
                        raise SettingRefused(f"{process.name} does not start: {process.last_word} ({process.log_file})")
                await system_clock.sleep(0.05)
        shown = [f"{process.name}: {process.last_word}" for process in processes]
        raise SettingRefused(f"not ready within {READY_WITHIN_S:.0f} s ({why}); logs are in {self.data.logs}", *shown)
