"""Starting a launcher: spawned with exactly its descriptors, recorded, and only then given its orders."""

import contextlib
import fcntl
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from turnkeeper.kit.procs import ALL_SIGNALS, ProcessId, identify
from turnkeeper.provisioner.backends.local import launcher

LISTEN_FD: Final = 3
SECCOMP_FD: Final = 4
START_FD: Final = 5
PLAN_FD: Final = 6
"""A drill's plan of failures (`kit.failpoint`); there is none otherwise."""
_ABOVE: Final = 64  # where copies wait that are put into their places in the child, so that none overwrites another


@dataclass(frozen=True)
class SpawnedLauncher:
    """A launcher that waits for its orders. Dropping `orders_fd` ends it."""

    process: ProcessId
    orders_fd: int

    def order(self, orders: dict[str, Any]) -> None:
        """Hand over the orders; the launcher acts when it has read the end."""
        data = json.dumps(orders).encode()
        with open(self.orders_fd, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(data)

    def dismiss(self) -> None:
        """Let it end without having done anything."""
        with contextlib.suppress(OSError):
            os.close(self.orders_fd)


def spawn(log: Path, listener: int, seccomp: int, start: int, plan: int | None = None) -> SpawnedLauncher:
    """Start a launcher, a session leader that is no descendant's parent but its sandbox's. `OSError` where it cannot start.

    Without site packages: it needs none, and it is there in 15 ms.
    """
    orders_read, orders_write = os.pipe2(os.O_CLOEXEC)
    with contextlib.ExitStack() as held:
        held.callback(os.close, orders_read)
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        held.callback(os.close, log_fd)
        wanted = {0: orders_read, 1: log_fd, 2: log_fd, LISTEN_FD: listener, SECCOMP_FD: seccomp, START_FD: start}
        if plan is not None:
            wanted[PLAN_FD] = plan
        actions: list[tuple[int, int, int]] = []
        for place, fd in wanted.items():
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
            held.callback(os.close, copy)
            actions.append((os.POSIX_SPAWN_DUP2, copy, place))
        argv = [sys.executable, "-I", "-S", launcher.__file__]
        try:
            pid = os.posix_spawn(
                sys.executable, argv, {}, file_actions=actions, setsid=True, setsigmask=(), setsigdef=ALL_SIGNALS
            )
        except OSError:
            os.close(orders_write)
            raise
    process = identify(pid)
    if process is None:
        os.close(orders_write)
        reap({pid})
        raise OSError(f"launcher {pid} ended at once")
    return SpawnedLauncher(process, orders_write)


def memory_file(name: str, data: bytes) -> int:
    """A sealed file in memory that holds `data`, open at its beginning. The caller closes it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def reap(pids: set[int]) -> None:
    """Collect those of our launchers that have ended; `pids` loses them."""
    for pid in tuple(pids):
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            ended = True
        if ended:
            pids.discard(pid)
