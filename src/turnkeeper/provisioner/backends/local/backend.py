"""The local backend: one bubblewrap sandbox for each runtime scope, each below a launcher of its own.

A launcher outlives this process. Its sandbox is known by what `records` holds; after a restart it is adopted if record and
launcher (pid and start time) agree, and the service asks its manager for the generation.
"""

import asyncio
import compileall
import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.domain.sandbox import Absent, ExitCause, Exited, Unknown
from turnkeeper.kit import failpoint, text
from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.files import read_bounded, write_atomic
from turnkeeper.kit.ids import new_secret
from turnkeeper.kit.procs import boot_id, is_alive
from turnkeeper.kit.sockets import bind_unix
from turnkeeper.provisioner.backends.base import (
    CreateFailedError,
    Ended,
    EndResult,
    Instance,
    Lookup,
    Manager,
    Order,
    OtherGeneration,
    Row,
)
from turnkeeper.provisioner.backends.local import bubblewrap, commands, seccomp
from turnkeeper.provisioner.backends.local.ending import end_processes, has_ended
from turnkeeper.provisioner.backends.local.records import (
    BadRecordError,
    Places,
    Record,
    read_exit,
    read_processes,
    read_record,
    sandbox_names,
    write_record,
)
from turnkeeper.provisioner.backends.local.starting import (
    LISTEN_FD,
    PLAN_FD,
    SECCOMP_FD,
    START_FD,
    SpawnedLauncher,
    memory_file,
    reap,
    spawn,
)
from turnkeeper.wire.sandbox_start import SandboxLimits, SandboxStart

_SIGKILLED: Final = (-9, 128 + 9)
_TAIL_BYTES: Final = 4096
_PROBE_S: Final = 30
_SECRET_PREFIX: Final = "tks_"  # noqa: S105 - a prefix
MANAGER_COMMAND: Final = (sys.executable, "-I", "-m", "turnkeeper.sandboxd")


@dataclass(frozen=True)
class LocalSettings:
    """`directory` is the data directory, which no sandbox may see. `manager_command` gets the descriptors' numbers appended;
    `manager_programs` are paths that it needs besides system and product."""

    directory: Path
    public_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    isolated: bool = True
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    manager_command: tuple[str, ...] = MANAGER_COMMAND
    manager_programs: tuple[str, ...] = ()
    end_timeout_s: float = 30.0
    look_interval_s: float = 30.0
    """How often a launcher looks whether its record is still there."""


class LocalBackend:
    """See the module, and `backends.base` for the contract."""

    name: str = "local"

    def __init__(self, settings: LocalSettings, clock: Clock = system_clock) -> None:
        self._settings = settings
        self._clock = clock
        self._root = settings.directory / "sandboxes"
        self._etc = settings.directory / "sandboxes" / "etc"
        self._bwrap = ""
        self._filter = b""
        self._kernel_boot = boot_id()
        self._children: set[int] = set()
        self._creating: dict[str, asyncio.Task[Instance]] = {}

    def check(self) -> tuple[str, ...]:
        """As in the contract. Refusals are `SettingRefused`."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._etc.mkdir(mode=0o700, exist_ok=True)
        bubblewrap.write_etc(self._etc)
        package = Path(bubblewrap.__file__).parents[3]
        compileall.compile_dir(package, quiet=2)  # a sandbox cannot: there it is read-only
        if not self._settings.isolated:
            return (
                "agents run without a sandbox (--unsafe-no-isolation): they can read and change whatever this user can",
            )
        try:
            self._bwrap = bubblewrap.find_bubblewrap()
            bubblewrap.check_private(self._settings.directory)
            self._filter = seccomp.program(platform.machine())
            self._probe()
        except (bubblewrap.IsolationUnavailableError, seccomp.UnsupportedMachineError) as error:
            raise SettingRefused(str(error)) from error
        self._end_unisolated()
        lines = ["processes and memory of a sandbox are not limited"]
        if os.getuid() == 0:
            lines.append("sandboxes run as root with every capability dropped")
        return tuple(lines)

    async def create(self, order: Order) -> Instance:
        """As in the contract. Given up by its caller it goes on; `end` and `lookup` wait for it."""
        task = asyncio.create_task(asyncio.to_thread(self._create, order))
        self._creating[order.sandbox_id] = task
        task.add_done_callback(lambda done: self._created(order.sandbox_id, done))
        return await asyncio.shield(task)

    async def lookup(self, sandbox_id: str) -> Lookup:
        """As in the contract."""
        reap(self._children)
        if sandbox_id in self._creating:
            return Unknown("it is still being created")
        return self._lookup(sandbox_id)

    async def end(self, sandbox_id: str, generation: str) -> EndResult:
        """As in the contract."""
        if (task := self._creating.get(sandbox_id)) is not None:
            await asyncio.wait({task}, timeout=self._settings.end_timeout_s)
            if not task.done():
                return Unknown("it is still being created")
        result = await asyncio.to_thread(self._end, sandbox_id, generation)
        reap(self._children)
        return result

    async def inventory(self) -> tuple[Row, ...]:
        """As in the contract."""
        reap(self._children)
        return tuple(self._row(name) for name in await asyncio.to_thread(sandbox_names, self._root))

    async def leftovers(self) -> tuple[tuple[str, str], ...]:
        """None: a directory holds one instance, and a launcher without a record never acts."""
        return ()

    async def tail(self, sandbox_id: str) -> str:
        """As in the contract."""
        path = self._places(sandbox_id).log
        try:
            return text.tail(await asyncio.to_thread(read_bounded, path, 2 << 20), _TAIL_BYTES)
        except OSError:
            return ""

    def missing(self, command: str, programs: Sequence[str]) -> str | None:
        """As in the contract."""
        return commands.missing(command, programs, isolated=self._settings.isolated)

    async def close(self) -> None:
        """As in the contract."""
        if self._creating:
            await asyncio.wait(set(self._creating.values()), timeout=self._settings.end_timeout_s)
        reap(self._children)

    def _probe(self) -> None:
        """Make one sandbox like any other, which does nothing, so that what does not work here is said now."""
        layout = bubblewrap.Layout(self._etc, self._etc, self._etc, (), host_network=False, generation="probe")
        filter_fd = memory_file("seccomp", self._filter)
        try:
            done = subprocess.run(
                [self._bwrap, *bubblewrap.arguments(layout, filter_fd), "--", "/usr/bin/env", "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=(filter_fd,),
                timeout=_PROBE_S,
                check=False,
            )
        finally:
            os.close(filter_fd)
        if done.returncode != 0:
            reason = text.tail(done.stderr, 300).strip().replace("\n", "; ") or f"status {done.returncode}"
            raise bubblewrap.IsolationUnavailableError(
                f"bubblewrap does not work here: {reason}. Allow unprivileged user namespaces, "
                "or start with --unsafe-no-isolation to run agents without a sandbox"
            )

    def _end_unisolated(self) -> None:
        """Whoever starts with isolation gets it: a process tree of an earlier start without it is ended, not adopted."""
        for name in sandbox_names(self._root):
            with contextlib.suppress(BadRecordError):
                record = read_record(self._places(name))
                if record is not None and not record.isolated:
                    self._end(name, record.generation)

    def _places(self, sandbox_id: str) -> Places:
        return Places(self._root / sandbox_id)

    def _created(self, sandbox_id: str, task: "asyncio.Task[Instance]") -> None:
        if self._creating.get(sandbox_id) is task:
            del self._creating[sandbox_id]
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits any more

    def _create(self, order: Order) -> Instance:
        places = self._places(order.sandbox_id)
        try:
            if self._settings.isolated:
                bubblewrap.check_programs(order.shape.programs, self._settings.directory.resolve())
            places.directory.mkdir(mode=0o700)
        except bubblewrap.ProgramRefusedError as error:
            raise CreateFailedError(str(error), refused=True) from error
        except OSError as error:
            raise CreateFailedError(f"no directory for sandbox {order.sandbox_id}: {error.strerror}") from error
        try:
            return self._start(order, places)
        except OSError as error:
            shutil.rmtree(places.directory, ignore_errors=True)
            raise CreateFailedError(f"sandbox {order.sandbox_id} could not be started: {error.strerror}") from error

    def _start(self, order: Order, places: Places) -> Instance:
        secret = new_secret(_SECRET_PREFIX)
        workspace = bubblewrap.WORKSPACE if self._settings.isolated else str(order.mounts.workspace)
        start = SandboxStart(
            secret=secret,
            generation=order.generation,
            public_keys=dict(self._settings.public_keys),
            workspace=workspace,
            limits=self._settings.limits,
            log_level=self._settings.log_level,
        )
        with contextlib.ExitStack() as held:
            listener = held.enter_context(bind_unix(places.socket))
            filter_fd = memory_file("seccomp", self._filter)
            held.callback(os.close, filter_fd)
            start_fd = memory_file("start", start.to_json())
            held.callback(os.close, start_fd)
            plan = failpoint.plan()
            plan_fd = None if plan is None else plan.fd
            launcher = spawn(places.log, listener.fileno(), filter_fd, start_fd, plan_fd)
        self._children.add(launcher.process.pid)
        try:
            write_atomic(places.secret, secret.encode())
            record = Record(
                sandbox_id=order.sandbox_id,
                generation=order.generation,
                shape=order.shape,
                created_at=self._clock.utcnow(),
                kernel_boot=self._kernel_boot,
                launcher=launcher.process,
                isolated=self._settings.isolated,
                workspace=workspace,
            )
            write_record(places, record)
        except BaseException:
            launcher.dismiss()
            raise
        failpoint.before(Point.EFFECT_LAUNCH)
        self._order(launcher, order, places)
        failpoint.after(Point.EFFECT_LAUNCH)
        return _instance(record, places, secret)

    def _order(self, launcher: SpawnedLauncher, order: Order, places: Places) -> None:
        python, *words = self._settings.manager_command
        drill = failpoint.interpreter_options(PLAN_FD)
        command = [python, *drill, *words, "--listen-fd", str(LISTEN_FD), "--config-fd", str(START_FD)]
        keep = [LISTEN_FD, START_FD, *([PLAN_FD] if drill else [])]
        if self._settings.isolated:
            layout = bubblewrap.Layout(
                workspace=order.mounts.workspace,
                skills=order.mounts.skills,
                etc=self._etc,
                programs=(*self._settings.manager_programs, *order.shape.programs),
                host_network=order.shape.network == "host",
                generation=order.generation,
            )
            command = [self._bwrap, *bubblewrap.arguments(layout, SECCOMP_FD), "--", *command]
        environment = bubblewrap.environment(order.generation)
        launcher.order(
            {
                "directory": str(places.directory),
                "argv": command,
                "env": environment,
                "isolated": self._settings.isolated,
                "look_interval_s": self._settings.look_interval_s,
                "keep_fds": [*keep, SECCOMP_FD] if self._settings.isolated else keep,
            }
        )

    def _lookup(self, sandbox_id: str) -> Lookup:
        places = self._places(sandbox_id)
        try:
            record = read_record(places)
            if record is None:
                return Absent()
            if record.kernel_boot != self._kernel_boot:
                return Exited(record.generation, ExitCause.UNKNOWN)  # the machine has started anew since
            if is_alive(record.launcher):
                secret = read_bounded(places.secret, 1024).decode("ascii")
                return _instance(record, places, secret)
            if not has_ended(places, record):
                return Unknown("its launcher is gone and its processes are still ending")
        except BadRecordError as error:
            return Unknown(str(error))
        except (OSError, UnicodeDecodeError) as error:
            return Unknown(f"its state cannot be read: {type(error).__name__}")
        status = read_exit(places)
        if status is None or status in _SIGKILLED:
            return Exited(record.generation, ExitCause.KILLED)
        return Exited(record.generation, ExitCause.EXITED)

    def _row(self, sandbox_id: str) -> Row:
        with contextlib.suppress(BadRecordError):
            record = read_record(self._places(sandbox_id))
            if record is not None:
                return Row(sandbox_id, self._lookup(sandbox_id), record.shape, record.created_at)
        return Row(sandbox_id, self._lookup(sandbox_id))

    def _end(self, sandbox_id: str, generation: str) -> EndResult:
        places = self._places(sandbox_id)
        try:
            record = read_record(places)
            if record is None:
                shutil.rmtree(places.directory, ignore_errors=True)
                return Absent()
            if record.generation != generation:
                return OtherGeneration(record.generation)
            here = record.kernel_boot == self._kernel_boot
            already = not here or has_ended(places, record)
            # What has ended without a name for its pid 1 ran nothing, but may have left a process that waits for ever.
            left = not already or (here and read_processes(places) is None)
            if left and (why := end_processes(places, record, self._settings.end_timeout_s)) is not None:
                return Unknown(why)
            places.record.unlink(missing_ok=True)  # first: what remains without it is nothing
            shutil.rmtree(places.directory)
        except BadRecordError as error:
            return Unknown(str(error))
        except OSError as error:
            return Unknown(f"its state cannot be changed: {type(error).__name__}")
        return Absent() if already else Ended()


def _instance(record: Record, places: Places, secret: str) -> Instance:
    return Instance(
        sandbox_id=record.sandbox_id,
        generation=record.generation,
        shape=record.shape,
        manager=Manager(f"unix:{places.socket}", secret),
        workspace=record.workspace,
        created_at=record.created_at,
    )
