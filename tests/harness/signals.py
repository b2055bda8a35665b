"""Starting processes as a shell does that ignores signals for them, and looking at what arrived."""

import contextlib
import signal
from collections.abc import Collection, Generator
from pathlib import Path

# What `nohup … &` in a script leaves ignored: its own SIGHUP, and the shell's two for a job in the background.
NOHUP = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
# Of these the C library's posix_spawn makes itself ignored; they are its own, and no program can send or use them.
_OF_LIBC = frozenset({32, 33})


@contextlib.contextmanager
def starting_with(ignored: Collection[int] = (), blocked: Collection[int] = ()) -> Generator[None]:
    """What is started within the block begins with these signals ignored and blocked, however the tests were started.

    Main thread only. SIGHUP, SIGINT and SIGQUIT are at their default where they are not named.
    """
    before = {
        number: signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        for number in {*NOHUP, *ignored}
    }
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def ignored_by(pid: int) -> set[int]:
    """The signals that this process ignores; none once it is gone."""
    return _numbers(pid, "SigIgn") - _OF_LIBC


def blocked_by(pid: int) -> set[int]:
    """The signals that its main thread blocks; none once it is gone."""
    return _numbers(pid, "SigBlk")


def _numbers(pid: int, field: str) -> set[int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    mask = int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{field}:")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}
