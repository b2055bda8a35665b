"""The launcher: the parent of one local sandbox. Standard library only; it waits for almost all of its life.

It is a session leader and reads its orders (one JSON object) from stdin *to the end*. The provisioner writes them only
after it has durably recorded this process by pid and start time. So a launcher whose provisioner died in between reads no
whole order and ends: there is never a sandbox that nobody has on record (F06).

Then it starts bubblewrap, from its main thread, because the parent-death signal follows the thread. The sandbox stays
blocked until `instance.json` names its pid 1, so that whoever deletes can prove it dead, and with it its pid namespace
empty. The block is a pipe opened for reading and writing at once: it has no end of file, so a sandbox whose launcher
dies at that very moment never runs anything.

Afterwards it keeps the sandbox's stderr in `launcher.log` (two files of bounded size), and at the end writes `exit.json`.
It has no handler for any signal: what ends it ends the sandbox. And it ends by itself when its record is no longer there (the
data directory was removed): nobody could ever find or end this sandbox again.
"""

# ruff: noqa: PTH105, PTH116, PTH118, PTH123 - pathlib would be a tenth of a process that only waits
import json
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Orders(TypedDict):
        """`argv[0]` is bubblewrap where `isolated`, else the manager itself. `keep_fds` go to it, numbers unchanged."""

        directory: str
        argv: list[str]
        env: dict[str, str]
        isolated: bool
        keep_fds: list[int]
        look_interval_s: float


LOG_BYTES_MAX = 1 << 20
ORDERS_BYTES_MAX = 1 << 20
NO_ORDERS = 3
NO_RECORD = 4
# An agent must inherit none ignored, neither Python's (SIGPIPE, SIGXFSZ) nor what the provisioner was started with.
ALL_SIGNALS = (*range(1, 32), *range(34, 65))  # 32 and 33 are the C library's own


def main() -> int:
    """Carry out the orders; returns the launcher's exit status."""
    orders = read_orders()
    if orders is None:
        return NO_ORDERS
    close_others(orders["keep_fds"])
    os.chdir("/")  # whatever the provisioner's was is not held in use
    os.umask(0o022)
    directory = orders["directory"]
    log = BoundedLog(os.path.join(directory, "launcher.log"))
    log_read, log_write = os.pipe2(os.O_CLOEXEC)
    try:
        child = start_isolated(orders, log_write) if orders["isolated"] else start_plain(orders, log_write)
    except OSError as error:
        log.write(f"launcher: {orders['argv'][0]}: {error.strerror}\n".encode())
        write_json(directory, "exit.json", {"status": None})
        return 1
    os.close(log_write)
    if not pump(log_read, child, log, Record(directory), orders["look_interval_s"]):
        return NO_RECORD
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write_json(directory, "exit.json", {"status": status})
    return 0


def read_orders() -> "Orders | None":
    """The orders, or None where they are not whole: the provisioner is gone, and nothing may be started."""
    data = b""
    while part := os.read(0, 65536):
        data += part
        if len(data) > ORDERS_BYTES_MAX:
            return None
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    try:
        return json.loads(data)
    except ValueError:
        return None


def close_others(keep: list[int]) -> None:
    """Close every descriptor but stdio and `keep` (F15)."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    for number in numbers:
        if number > 2 and number not in keep:
            close(number)


def start_isolated(orders: "Orders", stderr: int) -> int:
    """Start bubblewrap, record the sandbox's pid 1, let it run. Returns bubblewrap's pid."""
    info_read, info_write = os.pipe2(os.O_CLOEXEC)
    block = endless_pipe()
    bwrap, *arguments = orders["argv"]
    argv = [bwrap, "--info-fd", str(info_write), "--block-fd", str(block), *arguments]
    child = spawn(argv, orders["env"], stderr, [*orders["keep_fds"], info_write, block])
    close(info_write)
    info = read_info(info_read)
    if info is not None:  # None: bubblewrap has ended, and said why on stderr
        write_instance(orders["directory"], info["child-pid"], child)
        os.write(block, b"g")
    close(block)
    return child


def start_plain(orders: "Orders", stderr: int) -> int:
    """Start the manager without a sandbox (`--unsafe-no-isolation`). Returns its pid.

    Without a pid namespace orphans would leave the launcher's tree, and whoever deletes would not find them any more. So
    they become its children.
    """
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    child = spawn(orders["argv"], orders["env"], stderr, orders["keep_fds"])
    write_instance(orders["directory"], child, child)
    return child


def spawn(argv: list[str], env: dict[str, str], stderr: int, keep: list[int]) -> int:
    """Start `argv` with stderr as its stdout and stderr too, and with the descriptors `keep`, of which our copies close."""
    for fd in keep:
        os.set_inheritable(fd, True)
    actions = [(os.POSIX_SPAWN_DUP2, stderr, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]
    child = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsigmask=(), setsigdef=ALL_SIGNALS)
    for fd in keep:
        os.set_inheritable(fd, False)
    return child


def endless_pipe() -> int:
    """One descriptor that is both ends of a pipe: whoever reads it waits for a byte, and never meets an end of file."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    both = os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_CLOEXEC)
    os.close(reading)
    os.close(writing)
    return both


def read_info(fd: int) -> "dict[str, int] | None":
    """What bubblewrap says of the sandbox that it has made: `child-pid` and the numbers of the namespaces."""
    data = b""
    while part := os.read(fd, 4096):
        data += part
    close(fd)
    try:
        return json.loads(data)
    except ValueError:
        return None


def write_instance(directory: str, init: int, outer: int) -> None:
    """Record pid 1 of the sandbox and its parent outside, as this machine numbers them."""
    processes = {"init": init, "outer": outer}
    value = {name: {"pid": pid, "start_ticks": start_ticks(pid)} for name, pid in processes.items()}
    write_json(directory, "instance.json", value)


def start_ticks(pid: int) -> int:
    """Field 22 of `/proc/<pid>/stat`: with the pid, the identity of a process."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def pump(log_read: int, child: int, log: "BoundedLog", record: "Record", look_interval_s: float) -> bool:
    """Keep what the sandbox writes until it has ended (True), or its record is gone (False).

    What an orphan may still hold open of the pipe is not waited for.
    """
    pidfd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(log_read, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    ended = False
    while True:
        ready = {fd for fd, _ in poll.poll(0 if ended else look_interval_s * 1000)}
        reap_orphans(child)
        if not ready and not ended and record.is_gone():
            return False
        if log_read in ready:
            data = os.read(log_read, 65536)
            if data:
                log.write(data)
            else:
                poll.unregister(log_read)
                if ended:
                    return True
        elif ended:
            return True
        if pidfd in ready:
            poll.unregister(pidfd)
            ended = True


class Record:
    """Whether the record is still there. Only its absence counts, twice in a row: other errors of a disk say nothing."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "record.json")
        self._absent = 0

    def is_gone(self) -> bool:
        """Look once."""
        try:
            os.stat(self._path)
        except FileNotFoundError:
            self._absent += 1
        except OSError:
            return False
        else:
            self._absent = 0
        return self._absent > 1


def reap_orphans(child: int) -> None:
    """Collect ended children that are not `child`: there are some only where there is no sandbox."""
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None or found.si_pid == child:
            return
        os.waitpid(found.si_pid, 0)


class BoundedLog:
    """A file that is moved aside when it has grown to its bound; a full disk loses lines and nothing else."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append `data`."""
        try:
            if self._size + len(data) > LOG_BYTES_MAX:
                os.replace(self._path, self._path + ".1")
                os.close(self._fd)
                self._fd = self._open()
                self._size = 0
            self._size += os.write(self._fd, data)
        except OSError:
            return

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_json(directory: str, name: str, value: object) -> None:
    """Replace a file. Not synced: it tells of processes, and what a power cut loses is what it ends."""
    temporary = os.path.join(directory, f".{name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(value).encode())
    finally:
        os.close(fd)
    os.replace(temporary, os.path.join(directory, name))


def close(fd: int) -> None:
    """Close `fd` if it is open."""
    try:
        os.close(fd)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
