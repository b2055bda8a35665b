"""Who is seen of the agents in the sandboxes, from outside: by pid and start time of this machine's own `/proc`.

What it is for is the rule that no process of an older activation lives when a newer one's begins (D-03). All that is told
of a process is what was certainly so: it lived when it was seen last, and it began when the kernel says. One that lived and
died between two looks is not told of, and neither is one that received no prompt, of which nobody outside knows whose it
was. So a finding is a fault, and some faults are not found.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from turnkeeper.domain.history.facts import ProcessSeen
from turnkeeper.kit.procs import ProcessId
from turnkeeper.provisioner.backends.local.records import BadRecordError

LOOK_EVERY_S: Final = 0.1
CLOCKS_S: Final = 1.0
"""So far the agent's clock, which is the wall's, may be from the one of start times."""
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sighting:
    """An agent's process. `inner_pid` as it knows itself; times are seconds since the machine's start.

    `began_at` is not before its start and at most one tick later; it was alive at `alive_at`, and `gone` when it was looked
    for once more.
    """

    thread_id: str
    process: ProcessId
    inner_pid: int
    began_at: float
    alive_at: float
    gone: bool = False


@dataclass(frozen=True)
class Use:
    """A prompt that an agent received: for which activation, in whose sandbox, as which process, and when."""

    activation_id: str
    thread_id: str
    inner_pid: int
    at: float


class Watch:
    """Looks every tenth of a second at what `agents` finds (by conversation), and keeps what was ever seen."""

    def __init__(self, agents: Callable[[], Mapping[str, Iterable[ProcessId]]]) -> None:
        self._agents = agents
        self._seen: dict[tuple[str, ProcessId], Sighting] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End the looking."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> list[Sighting]:
        """Look now; everything that was ever seen, and whether it is still there."""
        with self._lock:
            before = now()  # whoever is found below was alive at that time, or began after it
            try:
                found = {(thread, process) for thread, some in self._agents().items() for process in some}
            except (OSError, BadRecordError):  # a sandbox is made or deleted at this moment: nothing was seen
                return list(self._seen.values())
            for thread, process in found:
                if (known := self._seen.get((thread, process))) is not None:
                    self._seen[thread, process] = replace(known, alive_at=max(known.alive_at, before), gone=False)
                elif (inner_pid := inner_pid_of(process.pid)) is not None:
                    began_at = (process.start_ticks + 1) * _TICK_S
                    new = Sighting(thread, process, inner_pid, began_at, max(began_at, before))
                    self._seen[thread, process] = new
            for key, known in self._seen.items():
                if key not in found:
                    self._seen[key] = replace(known, gone=True)
            return list(self._seen.values())

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self.look()


def now() -> float:
    """Seconds since the machine's start: the clock of start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def inner_pid_of(pid: int) -> int | None:
    """Its pid in the innermost namespace; None if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)


def processes_seen(sightings: Iterable[Sighting], uses: Iterable[Use]) -> list[ProcessSeen]:
    """As the rule reads them: each use of a process that was seen. Death is told of as no later than it can have been."""
    known = list(sightings)
    found: list[ProcessSeen] = []
    for use in uses:
        candidates = [one for one in known if _may_be(one, use)]
        # The next sandbox of a conversation begins its pids anew, and may begin within what the clocks differ: where more
        # than one process can be meant, none is told of.
        if len(candidates) != 1:
            continue
        one = candidates[0]
        dead_at = one.alive_at if one.gone else None
        found.append(
            ProcessSeen(use.activation_id, f"{one.process.pid}/{one.process.start_ticks}", one.began_at, dead_at)
        )
    return found


def _may_be(one: Sighting, use: Use) -> bool:
    """Whether it is the process that received the prompt: it had begun by then, and was not seen last long before."""
    if (one.thread_id, one.inner_pid) != (use.thread_id, use.inner_pid):
        return False
    lived_until = one.alive_at + LOOK_EVERY_S if one.gone else use.at
    return one.began_at <= use.at + CLOCKS_S and lived_until >= use.at - CLOCKS_S
