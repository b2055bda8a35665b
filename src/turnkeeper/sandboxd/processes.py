"""Keepers seen from their manager: starting them, reaping, and killing what is below them until nothing is left.

Why a process cannot escape: whatever an agent starts is below its keeper, because orphans below a subreaper become the
subreaper's children. When a keeper itself is killed, what was below it becomes a child of this process; such a child that
is no keeper belongs to nobody and is killed when seen. Killing is stop-rescan-kill: a stopped process cannot fork, so
that a look which finds no new one has found all.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnkeeper.kit import procs
from turnkeeper.kit.procs import ProcessId
from turnkeeper.kit.stop import Deadline

KEEPER_PROGRAM: Final = str(Path(__file__).with_name("keeper.py"))
_STATUS_FD: Final = 3
_DEATH_WAIT_S: Final = 0.05
_REAP_WAIT_S: Final = 0.001
_STRAYS_S: Final = 5.0


def kill_all(look: Callable[[], list[ProcessId]], deadline: Deadline) -> bool:
    """Kill what `look` finds until it finds none. False if the deadline passed first.

    Blocks; needs nothing of the event loop, so that the dead-man's switch can call it while the loop is stuck.
    """
    while victims := _stopped(look, deadline):
        for victim in victims:
            procs.kill(victim, signal.SIGKILL)
        for victim in victims:
            procs.wait_gone(victim, min(_DEATH_WAIT_S, deadline.remaining()))
        if deadline.passed:
            return not look()
    return True


def _stopped(look: Callable[[], list[ProcessId]], deadline: Deadline) -> list[ProcessId]:
    """Stop what is found until a look finds nothing new; returns all that the last look found."""
    stopped: set[ProcessId] = set()
    while True:
        found = look()
        fresh = [process for process in found if process not in stopped]
        if not fresh or deadline.passed:
            return found
        for process in fresh:
            procs.kill(process, signal.SIGSTOP)
            stopped.add(process)


def kill_below(root: ProcessId, deadline: Deadline, *, spare: ProcessId | None = None) -> bool:
    """Kill every descendant of `root`, but `spare` and what is below it. False if the deadline passed first."""
    skipped = frozenset({spare.pid} if spare else ())
    return kill_all(lambda: _walk(root.pid, skipped) or _below(root, spare), deadline)


def _below(root: ProcessId, spare: ProcessId | None) -> list[ProcessId]:
    """By a look at all of /proc: whoever is there throughout the look is found."""
    found = procs.descendants(root.pid)
    if spare is None or not found:
        return found
    spared = {spare, *procs.descendants(spare.pid)}
    return [process for process in found if process not in spared]


def _walk(root: int, skipped: frozenset[int]) -> list[ProcessId]:
    """The live descendants by the kernel's lists of children, at a cost that does not grow with the machine's processes.

    Such a list may miss somebody while it changes, and not every kernel has it, so that what it finds is quick to be
    stopped and what it does not find proves nothing.
    """
    found: list[ProcessId] = []
    level = [root]
    while level:
        level = [pid for parent in level for pid in _children(parent) if pid not in skipped]
        stats = [stat for pid in level if (stat := procs.read_stat(pid)) is not None]
        found += [ProcessId(stat.pid, stat.start_ticks) for stat in stats if not stat.dead]
    return found


def _children(pid: int) -> list[int]:
    lists: list[bytes] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - hot in kill loops
            fd = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while part := os.read(fd, 65536):
                    lists.append(part)
            finally:
                os.close(fd)
            lists.append(b" ")
    except OSError:  # gone, or a kernel without these lists: the look at all of /proc decides
        return []
    return [int(word) for word in b"".join(lists).split()]


class Reaper:
    """Starts the children of this process, reaps them and everybody who is orphaned to it, and kills strays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a child that is being started must not be taken for a stray
        self._keepers: dict[int, ProcessId] = {}
        self._stray_deaths = 0
        self._has_children = threading.Event()
        self._orphaned = threading.Event()
        self._pause = threading.Event()  # never set

    def start(self) -> None:
        """Begin to reap, and to kill strays: two threads, because zombies that wait for a kill would hide the living."""
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()
        threading.Thread(target=self._watch_strays, name="strays", daemon=True).start()

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], fds: Mapping[int, int]) -> ProcessId:
        """Start a child with `fds` (its number: ours) and no other descriptor, in a session of its own."""
        actions = [(os.POSIX_SPAWN_DUP2, ours, number) for number, ours in fds.items()]
        with self._lock:
            pid = os.posix_spawn(
                argv[0],
                list(argv),
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),  # a keeper that blocks SIGTERM would outlive its manager
                setsigdef=procs.ALL_SIGNALS,
            )
            stat = procs.read_stat(pid)  # not reaped before the lock is free, so it is there
            if stat is None:
                raise ChildProcessError(f"child {pid} was reaped by somebody else")
            identity = ProcessId(pid, stat.start_ticks)
            self._keepers[pid] = identity
        self._has_children.set()
        return identity

    def _reap(self) -> None:
        while True:
            self._has_children.clear()
            try:
                while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None:
                    with self._lock:
                        os.waitpid(found.si_pid, 0)
                        if self._keepers.pop(found.si_pid, None) is None:
                            self._stray_deaths += 1
                    self._orphaned.set()  # a keeper that was killed leaves orphans, and so does a stray
            except ChildProcessError:  # one that was started since the clear has set the flag again
                self._has_children.wait()

    def _watch_strays(self) -> None:
        while True:
            self._orphaned.wait()
            self._orphaned.clear()
            self.kill_strays(Deadline.after(_STRAYS_S))

    def kill_strays(self, deadline: Deadline) -> bool:
        """Kill children of this process that are no keepers, and what is below them. True: none is left.

        A chain of processes that fork and exit could slip from one look to the next. Each link that exits is reaped here,
        so a look counts only if it found none, not even a zombie, and none was reaped meanwhile.
        """
        while True:
            if not self.has_strays():
                return True
            if not kill_all(self._look_for_strays, deadline) or deadline.passed:
                return False
            self._pause.wait(_REAP_WAIT_S)  # for the reaper: a zombie counts as a stray until it is reaped

    def has_strays(self) -> bool:
        """Whether somebody is here who belongs to nobody; by one look, with the same proof. Well below 1 ms."""
        before = self._stray_deaths
        return bool(self._strays()) or before != self._stray_deaths

    def _strays(self) -> list[procs.ProcessStat]:
        """Children that are no keepers, zombies included."""
        return self._strays_among(procs.processes)

    def _strays_among(self, look: Callable[[], list[procs.ProcessStat]]) -> list[procs.ProcessStat]:
        me = os.getpid()
        with self._lock:
            return [stat for stat in look() if stat.parent_pid == me and stat.pid not in self._keepers]

    def _look_for_strays(self) -> list[ProcessId]:
        with self._lock:
            quick = _walk(os.getpid(), frozenset(self._keepers))
        return quick or self._strays_and_below()

    def _strays_and_below(self) -> list[ProcessId]:
        """The live ones among them and what is below any, by one look."""
        seen: list[procs.ProcessStat] = []

        def look() -> list[procs.ProcessStat]:
            seen.extend(procs.processes())
            return seen

        level = self._strays_among(look)
        found: list[procs.ProcessStat] = []
        while level:
            found += level
            pids = {stat.pid for stat in level}
            level = [stat for stat in seen if stat.parent_pid in pids]
        return [ProcessId(stat.pid, stat.start_ticks) for stat in found if not stat.dead]


@dataclass(frozen=True)
class Stdio:
    """Our numbers of the three descriptors that a command is to have; whoever made them closes them after the start."""

    stdin: int
    stdout: int
    stderr: int


class StartError(Exception):
    """A command could not be started; the text says why, for an owner of an agent definition."""


class Keeper:
    """One keeper with its command. Everything but `kill_now` belongs to the event loop."""

    def __init__(self, reaper: Reaper, loop: asyncio.AbstractEventLoop) -> None:
        self._reaper = reaper
        self._loop = loop
        self._status_fd = -1
        self._buffer = b""
        self.identity: ProcessId | None = None
        self.leader: ProcessId | None = None
        self.exit_status: int | None = None
        """Exit code of the command, or minus the signal's number; None while it runs and where nobody could say."""
        self.empty = False
        """The kernel's word that nothing is left below."""
        self._started: asyncio.Future[ProcessId] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        """Done when the command ended, or the keeper that would have said so."""
        self._closed: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def start(
        cls,
        reaper: Reaper,
        command: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdio: Stdio,
        on_spawned: "Callable[[Keeper], None]",
    ) -> "Keeper":
        """Start `command` below a new keeper; `StartError` where that is impossible. On return it runs.

        `on_spawned` is called in the same step of the loop that starts the keeper, so that whoever ends turns has never
        a process that it does not know.
        """
        keeper = cls(reaper, asyncio.get_running_loop())
        keeper._spawn(command, cwd, env, stdio)
        on_spawned(keeper)
        try:
            keeper.leader = await asyncio.shield(keeper._started)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else "it was ended before it had started"
            raise StartError(f"{command[0]!r} cannot be started in {cwd!r}: {why}") from None
        except BaseException:
            keeper.kill_now(Deadline.after(1.0))
            raise
        return keeper

    def _spawn(self, command: Sequence[str], cwd: str, env: Mapping[str, str], stdio: Stdio) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        argv = [sys.executable, "-I", "-S", KEEPER_PROGRAM, str(_STATUS_FD), cwd, *command]
        try:
            self.identity = self._reaper.spawn(
                argv, env, {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr, _STATUS_FD: write_fd}
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._status_fd = read_fd
        self._loop.add_reader(read_fd, self.poll)

    @property
    def alive(self) -> bool:
        """Whether something may still run below."""
        return not self._closed.done()

    def poll(self) -> None:
        """Read what the keeper has said so far."""
        while self._status_fd >= 0:
            try:
                data = os.read(self._status_fd, 4096)
            except BlockingIOError:
                return
            if not data:
                self._close()
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._say(line.split())

    def _say(self, words: list[bytes]) -> None:
        kind, numbers = words[0], [int(word) for word in words[1:]]
        if kind == b"pid" and not self._started.done():
            self._started.set_result(ProcessId(numbers[0], numbers[1]))
        elif kind == b"error" and not self._started.done():
            self._started.set_exception(OSError(numbers[0], ""))
            self.empty = True
        elif kind == b"exit":
            self.exit_status = os.waitstatus_to_exitcode(numbers[0])
            self._set(self.exited)
        elif kind == b"empty":
            self.empty = True

    def _close(self) -> None:
        self._loop.remove_reader(self._status_fd)
        os.close(self._status_fd)
        self._status_fd = -1
        if not self._started.done():
            self._started.set_exception(OSError(0, ""))
        self._set(self.exited)
        self._set(self._closed)

    @staticmethod
    def _set(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    def kill_now(self, deadline: Deadline) -> bool:
        """Kill all that is below, and with it the keeper, which then has no more to keep. Blocks; for any thread.

        An agent may have stopped its keeper, which then could not reap, or killed it, which makes its tree strays.
        """
        if self.identity is None:
            return True
        while procs.is_alive(self.identity):
            procs.kill(self.identity, signal.SIGCONT)
            if not kill_below(self.identity, deadline) or deadline.passed:
                return False
            procs.wait_gone(self.identity, min(_DEATH_WAIT_S, deadline.remaining()))
        return self._reaper.kill_strays(deadline)

    async def kill(self, deadline: Deadline) -> bool:
        """As `kill_now`, beside the event loop. True: proven dead, by the keeper's last word or by there being no strays."""
        if not self.alive:
            return True
        dead = await asyncio.to_thread(self.kill_now, deadline)
        if dead:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._closed), max(0.2, deadline.remaining()))
        return dead and not self.alive

    async def kill_leftovers(self, deadline: Deadline) -> bool:
        """Kill what has left the command's own tree; the command and its descendants stay."""
        if self.identity is None or self.leader is None or not self.has_leftovers():
            return True
        for _ in range(2):  # a second look, because a process may slip past one of them
            if not await asyncio.to_thread(kill_below, self.identity, deadline, spare=self.leader):
                return False
        return True

    def has_leftovers(self) -> bool:
        """Whether something is below that is not of the command's own tree; two looks, for the same reason. About 1 ms."""
        return self.identity is not None and any(_below(self.identity, self.leader) for _ in range(2))

    async def wait_exited(self, timeout_s: float) -> None:
        """Wait for the command's wait status, in bounded time: its keeper may be stopped, and is then woken."""
        if self.identity is not None and not self.exited.done():
            procs.kill(self.identity, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.exited), timeout_s)


def take_over_orphans() -> None:
    """Become the process that orphans come to: pid 1 is that already, another has to ask for it."""
    if os.getpid() != 1:
        procs.set_child_subreaper()
