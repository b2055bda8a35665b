"""Processes, known by pid *and* start time.

A pid alone is reused; the pair of pid and start time (field 22 of `/proc/<pid>/stat`, in clock ticks since boot) is not,
within one boot. A zombie counts as dead: nothing of it can act any more.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from turnkeeper.kit.clock import system_clock

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_DESCRIPTORS: Final = 65_536
_DEAD_STATES: Final = frozenset("ZXx")

# For `setsigdef` of os.posix_spawn; 32 and 33 are the C library's own.
ALL_SIGNALS: Final = (*range(1, 32), *range(34, 65))
# Those that Python ignores, and puts right for whatever `subprocess` starts; and those that would come again and again if
# something were done on them, because the kernel repeats the call.
_LEFT_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU)


@dataclass(frozen=True, order=True)
class ProcessId:
    """One process of this boot: `pid` and `start_ticks`, its start in clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ProcessStat:
    """What `/proc/<pid>/stat` says: state letter, parent, session, start."""

    pid: int
    state: str
    parent_pid: int
    session: int
    start_ticks: int

    @property
    def dead(self) -> bool:
        """A zombie, or on its way out of the table."""
        return self.state in _DEAD_STATES


def parse_stat(raw: bytes) -> ProcessStat:
    """Parse a `stat` line. The command name may hold spaces, parentheses and newlines, so it ends at the *last* `)`."""
    opening, closing = raw.index(b"("), raw.rindex(b")")
    fields = raw[closing + 1 :].split()
    return ProcessStat(
        pid=int(raw[:opening]),
        state=fields[0].decode("ascii"),
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def read_stat(pid: int) -> ProcessStat | None:
    """The stat of `pid`, or None if there is no such process."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int) -> ProcessId | None:
    """The identity of the live process `pid`; None if there is none, or only its zombie."""
    if pid <= 0:
        return None
    stat = read_stat(pid)
    return None if stat is None or stat.dead else ProcessId(pid, stat.start_ticks)


def own_identity() -> ProcessId:
    """The identity of this process."""
    me = identify(os.getpid())
    if me is None:
        raise RuntimeError("/proc does not show this process; it must be mounted")
    return me


def is_alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def kill(process: ProcessId, sig: signal.Signals) -> bool:
    """Send `sig` to exactly this process; False if it is gone.

    The descriptor pins whatever has the pid now; only then is the identity checked, so that a process that takes over
    the pid in between is never hit.
    """
    with _pinned(process) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, sig)
        except ProcessLookupError:
            return False
        return True


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Wait until this process is dead (a zombie is), at most `timeout_s`. False if it still runs."""
    end = system_clock.monotonic() + timeout_s
    with _pinned(process) as pidfd:
        if pidfd is None:
            return True
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while (left := end - system_clock.monotonic()) > 0:
            if poll.poll(min(left, 0.5) * 1000):
                return True
    return not is_alive(process)


def open_pidfd(process: ProcessId) -> int | None:
    """A pidfd for exactly this process (the caller closes it), readable when it is dead; None if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (ProcessLookupError, ValueError):
        return None
    except OSError as error:
        # The number now belongs to a thread; kernels differ in the word for it.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
    if is_alive(process):
        return pidfd
    os.close(pidfd)
    return None


@contextlib.contextmanager
def _pinned(process: ProcessId) -> Generator[int | None]:
    pidfd = open_pidfd(process)
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


def processes() -> list[ProcessStat]:
    """Every process that `/proc` shows, the dead ones included. One that appears meanwhile may be missing."""
    names = os.listdir("/proc")  # noqa: PTH208 - hot in kill loops
    return [stat for name in names if name.isdigit() and (stat := read_stat(int(name))) is not None]


def descendants(pid: int) -> list[ProcessId]:
    """The live processes below `pid`, parents before children. One look: a tree that grows needs another."""
    below: dict[int, list[ProcessStat]] = {}
    for stat in processes():
        below.setdefault(stat.parent_pid, []).append(stat)
    found: list[ProcessId] = []
    level = [pid]
    while level:
        children = [stat for parent in level for stat in below.pop(parent, [])]
        found += [ProcessId(stat.pid, stat.start_ticks) for stat in children if not stat.dead]
        level = [stat.pid for stat in children]
    return found


def set_parent_death_signal(sig: signal.Signals, expected_parent_pid: int) -> bool:
    """Have the kernel send `sig` to this process when its parent ends. False: the parent is already gone.

    The kernel watches the parent *thread* that created this process. A parent that died before the call would never be
    noticed, hence the look afterwards; a caller that gets False ends.
    """
    _prctl(_PR_SET_PDEATHSIG, int(sig))
    return os.getppid() == expected_parent_pid


def keep_signals_to_oneself() -> None:
    """What the starter of this process had it ignore or block (`nohup`, `&` in a script) does not reach its own children.

    To be called first thing, by the main thread. An ignored signal stays ignored over an exec and one with a handler does
    not, so each gets a handler that does nothing: this process still does not hear it. Without this an agent, many
    processes further down, could not be told to stop.
    """
    for number in ALL_SIGNALS:
        if number not in _LEFT_IGNORED and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, which unlike SIG_IGN ends at an exec."""


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may, up to 65,536. The limit that holds now.

    The usual soft limit, 1,024, is for programs that use `select`. More is never needed here, and some programs, whom this
    limit reaches, close every descriptor that there may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def set_child_subreaper() -> None:
    """Orphans below this process become its children instead of pid 1's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_non_dumpable() -> None:
    """Nobody of the same uid may trace this process or read its memory, environment and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def boot_id() -> str:
    """The kernel's random id of this boot: pid and start time say nothing across boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed: {os.strerror(number)}")
