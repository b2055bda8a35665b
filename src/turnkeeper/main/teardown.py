"""Ends what outlives `up` on purpose: sandboxes where somebody asked for it, and workers where nobody waits for their turns.

Both only once the processes of `up` have ended: nobody starts another one meanwhile.
"""

import shutil
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.kit.procs import ProcessId, boot_id, kill, wait_gone
from turnkeeper.kit.stop import Deadline
from turnkeeper.main.paths import DataDirectory
from turnkeeper.provisioner.backends.local.ending import end_processes, has_ended
from turnkeeper.provisioner.backends.local.records import (
    BadRecordError,
    Places,
    read_processes,
    read_record,
    sandbox_names,
)
from turnkeeper.runner.records import ChildRecords

SANDBOX_ENDS_WITHIN_S = 15.0
WORKERS_END_WITHIN_S = 10.0


@dataclass(frozen=True)
class EndedSandboxes:
    """`count` lived and were ended; `complaints` has a line for each that could not be shown to be gone, or not removed."""

    count: int
    complaints: tuple[str, ...]


@dataclass(frozen=True)
class EndedWorkers:
    """`turns` were cut off; `complaints` has a line for each worker that does not end."""

    turns: int
    complaints: tuple[str, ...]


def end_sandboxes(data: DataDirectory) -> EndedSandboxes:
    """End every sandbox of a data directory whose `up` has stopped, and remove what the directory knows of it, as a delete
    does. What could not be ended keeps its record: the next start finds it."""
    if not data.sandboxes.is_dir():
        return EndedSandboxes(0, ())
    count, complaints = 0, list[str]()
    for name in sandbox_names(data.sandboxes):
        try:
            count += _end_sandbox(Places(data.sandboxes / name))
        except (BadRecordError, _NotEndedError) as error:
            complaints.append(f"sandbox {name}: {error}")
        except OSError as error:
            complaints.append(f"sandbox {name}: it has ended, and its directory stays ({error.strerror})")
    return EndedSandboxes(count, tuple(complaints))


def end_workers(host_state: Path, others: Iterable[ProcessId] = ()) -> EndedWorkers:
    """Kill whoever still carries out a turn for the host with this state directory, which has ended, and `others` of its
    children. Each is known by pid and start time.

    A turn is recorded before it is handed over, so a worker without a record has none. The records stay: the next start of
    the host reports these workers gone.
    """
    turns = [record for record in ChildRecords(host_state).read_all() if record.alive]
    deadline = Deadline.after(WORKERS_END_WITHIN_S)
    workers = {record.process for record in turns} | set(others)
    for process in workers:
        kill(process, signal.SIGKILL)
    left = [process for process in sorted(workers) if not wait_gone(process, deadline.remaining())]
    return EndedWorkers(len(turns), tuple(f"worker {process.pid} does not end" for process in left))


class _NotEndedError(Exception):
    """What could not be shown."""


def _end_sandbox(places: Places) -> bool:
    """Whether it lived. Raises `_NotEndedError`, `BadRecordError`, and `OSError` where only its files are left."""
    record = read_record(places)
    lived = False
    if record is not None:
        here = record.kernel_boot == boot_id()  # the pids of another boot are other processes'
        lived = here and not has_ended(places, record)
        # What has ended without a name for its pid 1 ran nothing, but may have left a process that waits for ever.
        left = lived or (here and read_processes(places) is None)
        if left and (why := end_processes(places, record, SANDBOX_ENDS_WITHIN_S)) is not None:
            raise _NotEndedError(why)
        places.record.unlink(missing_ok=True)  # first: what remains without it is nothing
    shutil.rmtree(places.directory)
    return lived
