"""The processes that `turnkeeper up` keeps running: started with what they need and nothing more, restarted when they end.

They die with their supervisor, also when that is killed (parent-death signal, set by the process itself at its start, see
`die_with_parent`): the next `up` then finds the port and the sockets free. Sandboxes, turns and PostgreSQL live on and are
adopted.
"""

import asyncio
import contextlib
import errno
import os
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.files import NotRegularError
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import set_parent_death_signal

PARENT_ENV = "TURNKEEPER_PARENT_PID"
RESTART_PAUSE_S = (0.2, 0.5, 1.0, 2.0, 5.0)
# A process that ran this long was well: its next end is counted from the beginning.
WELL_AFTER_S = 30.0
LOG_BYTES_MAX = 64 << 20

log = get_logger("turnkeeper.up")


def die_with_parent() -> None:
    """Called first by each process that `up` starts. Not SIGTERM: a drain without a supervisor would hold the port."""
    parent = os.environ.pop(PARENT_ENV, None)
    if parent is not None and not set_parent_death_signal(signal.SIGKILL, int(parent)):
        sys.exit(f"error: the process that started this one ({parent}) is gone")


def last_said(text: str) -> str | None:
    """The last line of `text` that is for people, without its `error: `. Events of the log, one JSON object a line, are not."""
    lines = [line.strip() for line in text.split("\n")]
    said = [line for line in lines if line and not line.startswith("{")]
    return said[-1].removeprefix("error: ") if said else None


@dataclass
class ManagedProcess:
    """One process of the product. `pass_fds` are listening sockets that stay open over its restarts."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log_file: Path
    pass_fds: Sequence[int] = ()
    stop_s: float = 15.0
    ended: int = field(default=0, init=False)
    """How often it has ended by itself, one end soon after the other."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Start it, and start it again whenever it ends, until `stop`."""
        while not self._stopping:
            started = system_clock.monotonic()
            status: int | str
            try:
                process = await self._start()
                status = await process.wait()
            except OSError as error:  # no descriptor, no process, no room on the disk: it may pass
                status = type(error).__name__
            if self._stopping:
                return
            self.ended = 0 if system_clock.monotonic() - started >= WELL_AFTER_S else self.ended + 1
            pause = RESTART_PAUSE_S[min(self.ended, len(RESTART_PAUSE_S) - 1)]
            log.warning("process_ended", name=self.name, status=status, restart_in_s=pause)
            await system_clock.sleep(pause)

    async def stop(self) -> None:
        """SIGTERM, and after `stop_s` SIGKILL. May be called twice; a second call does not wait."""
        hurry, self._stopping = self._stopping, True
        await self._end(signal.SIGKILL if hurry else signal.SIGTERM)

    async def restart(self) -> None:
        """End it, so that `run` starts it again."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(self.stop_s):
                await process.wait()
        except TimeoutError:
            log.warning("process_killed", name=self.name, after_s=self.stop_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def last_word(self) -> str:
        """What it said last in its log, for somebody who wonders why it does not start."""
        try:
            with self._opened_log(os.O_RDONLY) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                text = file.read().decode(errors="replace")
        except OSError:
            text = ""
        return last_said(text) or "it has said nothing"

    async def _start(self) -> asyncio.subprocess.Process:
        environment = {**self.environment, PARENT_ENV: str(os.getpid())}
        with self._open_log() as out:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *failpoint.interpreter_options(),
                "-m",
                "turnkeeper",
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                pass_fds=tuple(self.pass_fds),
                start_new_session=True,  # Ctrl-C in a terminal reaches `up` alone, which stops them in order
            )
        return process

    def _open_log(self) -> IO[bytes]:
        with contextlib.suppress(OSError):
            self.log_file.parent.mkdir(mode=0o700, exist_ok=True)
            if self.log_file.stat().st_size > LOG_BYTES_MAX:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return self._opened_log(os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _opened_log(self, flags: int) -> IO[bytes]:
        """Nobody waits for the other end of a FIFO that was put there. `NotRegularError` for it."""
        descriptor = os.open(self.log_file, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotRegularError(errno.EINVAL, f"{str(self.log_file)!r} is not a regular file")
        return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "ab")
