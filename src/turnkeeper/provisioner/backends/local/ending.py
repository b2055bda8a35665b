"""Ending a local sandbox, and the proof that nothing of it can act any more.

SIGKILL of the launcher ends bubblewrap and the sandbox's pid 1 by their parent-death signals. The kernel lets the pid 1 of a
namespace become a zombie only after it has killed and reaped every other process in it. So "pid 1, by pid and start time,
is dead" proves the namespace empty. (The namespace's number would prove nothing: a later namespace may have it.)
"""

import os
import signal
from pathlib import Path

from turnkeeper.kit.procs import ProcessId, descendants, is_alive, kill, processes, wait_gone
from turnkeeper.kit.stop import Deadline
from turnkeeper.provisioner.backends.local import launcher
from turnkeeper.provisioner.backends.local.records import Places, Record, read_processes

_STEP_S = 5.0
_ROUNDS_MAX = 200


def end_processes(places: Places, record: Record, timeout_s: float) -> str | None:
    """End every process of the instance within `timeout_s`. None: proven. Otherwise what could not be shown."""
    deadline = Deadline.after(timeout_s)
    if not record.isolated and is_alive(record.launcher):
        _kill_tree(record.launcher.pid)
    kill(record.launcher, signal.SIGKILL)
    if not wait_gone(record.launcher, deadline.sooner(_STEP_S).remaining()):
        return f"launcher {record.launcher.pid} does not end"
    known = read_processes(places)  # only now: a living launcher could still write it
    if known is None:
        return _end_unrecorded(record, deadline)
    if not record.isolated and is_alive(known.init):
        _kill_tree(known.init.pid)
    for process in (known.init, known.outer):
        if not wait_gone(process, deadline.sooner(_STEP_S).remaining()):
            kill(process, signal.SIGKILL)
            if not wait_gone(process, deadline.sooner(_STEP_S).remaining()):
                return f"process {process.pid} of the sandbox does not end"
    return None


def has_ended(places: Places, record: Record) -> bool:
    """Whether launcher and sandbox are dead. Without an `instance.json` the sandbox has never run anything."""
    if is_alive(record.launcher):
        return False
    known = read_processes(places)
    return known is None or not (is_alive(known.init) or is_alive(known.outer))


def _end_unrecorded(record: Record, deadline: Deadline) -> str | None:
    """The launcher died before it named pid 1: what there is of the sandbox is blocked inside bubblewrap, whose command
    line names the generation, or is on the way to it."""
    for _ in range(_ROUNDS_MAX):
        marked = _marked(record)
        found = [process for one in marked for process in (one, *descendants(one.pid)) if is_alive(process)]
        if not found:
            return None
        for process in found:
            kill(process, signal.SIGKILL)
        for process in found:
            if not wait_gone(process, deadline.sooner(_STEP_S).remaining()):
                return f"process {process.pid} of a sandbox that never started does not end"
    return "processes of a sandbox that never started keep appearing"


def _marked(record: Record) -> list[ProcessId]:
    generation, program = record.generation.encode("ascii"), os.fsencode(launcher.__file__)
    found: list[ProcessId] = []
    for stat in processes():
        try:
            words = Path(f"/proc/{stat.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        # Spawned and not yet bubblewrap: still its parent's image (or, for a moment, none), in its parent's session. It
        # would not hear of the death that came before, and would wait for ever.
        on_its_way = stat.session == record.launcher.pid and (program in words or words == [b""])
        if not stat.dead and (generation in words or on_its_way):
            found.append(ProcessId(stat.pid, stat.start_ticks))
    return found


def _kill_tree(root: int) -> None:
    """Without a namespace: stop all below `root` until nothing new appears, then kill. What had left the tree is not found."""
    stopped: set[ProcessId] = set()
    for _ in range(_ROUNDS_MAX):
        found = set(descendants(root)) - stopped
        if not found:
            break
        for process in found:
            kill(process, signal.SIGSTOP)
        stopped |= found
    for process in stopped:
        kill(process, signal.SIGKILL)
