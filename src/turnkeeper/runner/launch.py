"""One child of the host: started, spoken to over its descriptor, and seen to end (H-01 to H-04, F15)."""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import turnkeeper
from turnkeeper.kit import failpoint
from turnkeeper.kit.clock import Clock
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.procs import ProcessId, identify, open_pidfd
from turnkeeper.runner.handover import ACCEPTED, READY, HandedTurn
from turnkeeper.runner.hostend import HostEnd, new_descriptor
from turnkeeper.runner.settings import ChildSettings

_INHERITED: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_DESCRIPTOR_END_S: Final = 5.0


@dataclass(frozen=True)
class Accepted:
    """The child has the turn; from here on it belongs to the lease (H-04)."""


@dataclass(frozen=True)
class NotTaken:
    """The child provably never took the turn (H-02): the data did not reach it, or it closed without accepting."""

    delivered: bool
    detail: str


@dataclass(frozen=True)
class Unproven:
    """Nothing was said and no end was seen: no proof, so no release (H-03)."""


HandedOver = Accepted | NotTaken | Unproven


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child inherits: never a secret, and nothing that changes how Python works."""
    return {name: value for name, value in environment.items() if name in _INHERITED or name.startswith("LC_")}


def fingerprint() -> str:
    """Changes when the installed product or the environment for children does; a spare child of another one is retired."""
    status = Path(turnkeeper.__file__).stat()
    what = repr((status.st_mtime_ns, status.st_size, sys.executable, sorted(child_environment(os.environ).items())))
    return hashlib.sha256(what.encode()).hexdigest()


class Child:
    """A running child. Made by `start_child`, in the event loop that watches it."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", process: ProcessId, pidfd: int, end: HostEnd, at: float
    ) -> None:
        self.process = process
        self.waiting_since = at
        self.fingerprint = fingerprint()
        self._popen = popen
        self._end = end
        self._said = b""
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._listening = loop.create_task(end.read_to_end(self._hear))
        loop.add_reader(pidfd, self._reap, pidfd)

    @property
    def ready(self) -> bool:
        """Whether it has imported everything and waits for a turn."""
        return READY in self._said and not self._exited.done() and not self._listening.done()

    @property
    def ready_was_said(self) -> bool:
        """Whether it ever was ready."""
        return READY in self._said

    @property
    def exit_status(self) -> int | None:
        """Exit code, minus a signal's number, or None while it runs."""
        return self._exited.result() if self._exited.done() else None

    async def greet(self, settings: ChildSettings) -> None:
        """Tell it what it needs before a turn. That it does not listen shows when it ends."""
        await self._end.send(settings)

    async def wait_ready(self, timeout_s: float) -> bool:
        """False: it ended, or said nothing in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.ready_was_said and not self._exited.done():
                    self._news.clear()
                    await self._news.wait()
        return self.ready_was_said

    async def hand_over(self, turn: HandedTurn) -> HandedOver:
        """Give it the turn, and read its descriptor to the end. A silent child is waited for as long as it lives (H-03)."""
        failpoint.before(Point.EFFECT_HAND_OVER)
        failure = await self._end.send(turn)
        failpoint.after(Point.EFFECT_HAND_OVER)
        await asyncio.wait({self._listening, self._exited}, return_when=asyncio.FIRST_COMPLETED)
        # A dead process has closed its end; what it said before may still be on its way to us.
        await asyncio.wait({self._listening}, timeout=None if not self._exited.done() else _DESCRIPTOR_END_S)
        if ACCEPTED in self._said:
            return Accepted()
        if not self._listening.done() or not self._listening.result():
            return Unproven()
        if failure is not None:
            return NotTaken(delivered=False, detail=type(failure).__name__)
        status = self.exit_status
        return NotTaken(delivered=True, detail="closed" if status is None else f"ended with {status}")

    async def wait_exit(self) -> int:
        """Its exit code, or minus a signal's number."""
        return await asyncio.shield(self._exited)

    def dismiss(self) -> None:
        """End a spare child: it sees its descriptor end.

        The descriptor is closed when nothing reads it any more. Closed at once, its number could be the next child's pidfd
        before the loop forgets the old reader, and would be forgotten with it: that child's end was then never seen.
        """
        self._listening.add_done_callback(lambda _: self._end.close())
        self._listening.cancel()

    def kill(self) -> None:
        """End a child that never got a turn and does not end by itself."""
        if not self._exited.done():
            self._popen.kill()

    def _hear(self, said: bytes) -> None:
        self._said += said
        self._news.set()

    def _reap(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = self._popen.wait()  # at once: the pidfd says that it has ended
        if not self._exited.done():
            self._exited.set_result(status)
        self._news.set()


def start_child(clock: Clock, log: Path | None) -> Child:
    """Start one child, in a session of its own, with stdio and its own descriptor and nothing else (F15). `OSError`.

    Spawned, never forked to go on: between the fork and the exec no code of ours runs, and every other descriptor is
    closed by the exec.
    """
    failpoint.before(Point.EFFECT_SPAWN)
    end, theirs = new_descriptor()
    try:
        popen = _spawn(theirs, log)
    except BaseException:
        end.close()
        raise
    finally:
        theirs.close()  # from here on the child alone holds it: its end of file is proof
    process = identify(popen.pid)
    pidfd = None if process is None else open_pidfd(process)
    if process is None or pidfd is None:  # it has ended already; nobody has reaped it, so the pid is still its own
        status = popen.wait()
        end.close()
        raise ChildProcessError(f"the child ended at once, with {status}")
    failpoint.after(Point.EFFECT_SPAWN)
    return Child(popen, process, pidfd, end, clock.monotonic())


def _spawn(theirs: socket.socket, log: Path | None) -> "subprocess.Popen[bytes]":
    fd = theirs.fileno()
    options = failpoint.interpreter_options()
    command = [sys.executable, *options, "-I", "-m", "turnkeeper.runner.child", "--fd", str(fd)]
    output = 2 if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(fd,),
            start_new_session=True,
            cwd="/",
            env=child_environment(os.environ),
        )
    finally:
        if output != 2:
            os.close(output)
