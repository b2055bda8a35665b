"""The keeper: the subreaper below which everything that one agent or command starts stays findable.

A program of its own (`python -I -S keeper.py STATUS_FD CWD COMMAND…`) that imports nothing but the cheapest of the
standard library, so that it starts within milliseconds. Its stdio and environment are those of the command. It

* becomes a child subreaper, so that orphans of the tree become its children and never pid 1's;
* starts the command in a session of its own with its own stdio, then gives its copies up, so that the end of a pipe is
  the end of the agent's;
* reports on STATUS_FD, one line each: `pid PID START_TICKS`, or `error ERRNO`; `exit WAIT_STATUS` of the command; and
  `empty` as its last word before it ends, when nothing is left below it. That word comes from the kernel (ECHILD), so it
  is proof of death where a look at /proc is only a look.

It never decides to kill, with one exception: when its manager is gone without the pid namespace going with it, SIGTERM
(asked of the kernel as the parent-death signal) makes it kill what is below it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STDIO = (0, 1, 2)
ALL_SIGNALS = (*range(1, 32), *range(34, 65))  # 32 and 33 are the C library's own


def report(fd: int, *words: object) -> None:
    """One line to the manager; a manager that is gone is no failure."""
    try:
        os.write(fd, " ".join(map(str, words)).encode() + b"\n")
    except OSError:
        return


def prctl(option: int, value: int) -> None:
    """Neither of the two calls made can fail on a kernel that runs bubblewrap."""
    zero = ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), zero, zero, zero)


def start_ticks(pid: int) -> int:
    """Field 22 of the stat line; the command name before it may hold anything, hence the last parenthesis."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(fd)


def candidates(command: str) -> "list[str]":
    """The files that the command's first word may mean, by the command's own PATH."""
    if "/" in command:
        return [command]
    return [f"{folder or '.'}/{command}" for folder in os.environ.get("PATH", os.defpath).split(":")]


def start(command: "list[str]", cwd: str) -> int:
    """Start the command in a session of its own; OSError when it cannot be started."""
    os.chdir(cwd)
    failure = FileNotFoundError(2, "not found")
    for path in candidates(command[0]):
        try:
            return os.posix_spawn(path, command, os.environ, setsid=True, setsigmask=[], setsigdef=ALL_SIGNALS)
        except PermissionError as error:
            failure = error
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise failure


def children() -> "dict[int, list[int]]":
    """Pids by parent pid, from one look at /proc."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - importing pathlib would double the start
        if name.isdigit():
            try:
                fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
                parent = int(os.read(fd, 4096).rpartition(b")")[2].split()[1])
                os.close(fd)
            except OSError:
                continue
            below.setdefault(parent, []).append(int(name))
    return below


def kill_all(*_: object) -> None:
    """Stop, rescan, kill until nothing is below; then end. Runs only where the manager is gone."""
    stopped: set[int] = set()
    while True:
        below, level, found = children(), [os.getpid()], list[int]()
        while level:
            level = [pid for parent in level for pid in below.get(parent, [])]
            found += level
        fresh = [pid for pid in found if pid not in stopped]
        for pid in fresh or found:
            try:
                os.kill(pid, signal.SIGSTOP if fresh else signal.SIGKILL)
            except ProcessLookupError:
                continue
        stopped.update(fresh)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            os._exit(0)


def keep(status_fd: int, leader: int) -> None:
    """Reap; say when the command ended, and at last that nothing is left: then nothing can appear below any more."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            report(status_fd, "empty")
            return
        if pid == leader:
            report(status_fd, "exit", status)


def main(arguments: "list[str]") -> None:
    """Returns when nothing is left below, or where the command cannot be started."""
    status_fd, cwd, command = int(arguments[0]), arguments[1], arguments[2:]
    os.set_inheritable(status_fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, kill_all)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        leader = start(command, cwd)
    except OSError as error:
        report(status_fd, "error", error.errno)
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in STDIO:
        os.dup2(nowhere, fd)
    os.close(nowhere)
    report(status_fd, "pid", leader, start_ticks(leader))
    keep(status_fd, leader)


if __name__ == "__main__":
    main(sys.argv[1:])
