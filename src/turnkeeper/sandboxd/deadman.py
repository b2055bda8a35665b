"""The dead-man's switch (L-12): what kills a turn when the confirmed renewals of its lease stop coming.

A switch is armed by `take` with a mark, a reading of this manager's own clock from before the renewal was sent, and the
lease's lifetime; it fires at mark + lifetime. Feeding it carries a newer mark. An older mark changes nothing, whatever
lifetime comes with it, so a delayed feed can only make the end earlier, never later. Before it fires a `session/cancel`
goes out, so that the session may reach a boundary.

The thread that fires needs nothing of the event loop: the processes that must die are published by the loop as one
immutable tuple, and are killed from here even while the loop is stuck.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from turnkeeper.kit.clock import Clock, system_clock
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.stop import Deadline
from turnkeeper.sandboxd.processes import Keeper

_log = get_logger("sandboxd.deadman")
_KILL_S: Final = 5.0
_IDLE_WAIT_S: Final = 3600.0


@dataclass
class Switch:
    """One activation's switch. `mark_ms` and the rest are guarded by the lock of `DeadMansSwitches`."""

    mark_ms: int
    lease_ttl_ms: int
    cancel_lead_ms: int
    on_cancel: Callable[[], None]
    on_fired: Callable[[], None]
    mortal: tuple[Keeper, ...] = ()
    """What dies when the switch fires; replaced as a whole by the event loop."""
    armed: bool = True
    cancel_sent: bool = False
    fired: bool = field(default=False)
    """Set before anything is killed: nothing may be started for this activation any more."""

    @property
    def kill_at_ms(self) -> int:
        """When it fires, on this manager's clock."""
        return self.mark_ms + self.lease_ttl_ms

    @property
    def next_ms(self) -> int:
        """When something is to be done next."""
        return self.kill_at_ms if self.cancel_sent else self.kill_at_ms - self.cancel_lead_ms


class DeadMansSwitches:
    """All switches and the thread that fires them. The callbacks run in that thread and must not block."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._armed: list[Switch] = []
        self._changed = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._run, name="dead-mans-switch", daemon=True).start()

    def arm(self, switch: Switch) -> None:
        """Watch it from now on."""
        with self._lock:
            self._armed.append(switch)
        self._changed.set()

    def feed(self, switch: Switch, mark_ms: int, lease_ttl_ms: int) -> None:
        """Take a newer mark; an older one, or one for a switch that has fired or is off, changes nothing."""
        with self._lock:
            if not switch.armed or mark_ms <= switch.mark_ms:
                return
            switch.mark_ms, switch.lease_ttl_ms = mark_ms, lease_ttl_ms
            # A cancel that went out is not taken back, and a later one would change nothing: the turn is ending.
        self._changed.set()

    def disarm(self, switch: Switch) -> None:
        """Its turn is over: what still runs may stay."""
        with self._lock:
            switch.armed = False
            if switch in self._armed:
                self._armed.remove(switch)

    def _run(self) -> None:
        while True:
            self._changed.clear()
            due, wait_s = self._look()
            for switch in due:
                self._act(switch)
            if not due:
                self._clock.wait(self._changed, wait_s) if wait_s < _IDLE_WAIT_S else self._changed.wait()

    def _look(self) -> tuple[list[Switch], float]:
        now = self._clock.boottime_ms()
        with self._lock:
            due = [switch for switch in self._armed if switch.next_ms <= now]
            for switch in due:
                if switch.kill_at_ms <= now:
                    switch.armed, switch.fired = False, True
                    self._armed.remove(switch)
                else:
                    switch.cancel_sent = True
            later = [switch.next_ms for switch in self._armed]
        return due, max(0.0, (min(later) - now) / 1000) if later else _IDLE_WAIT_S

    @staticmethod
    def _act(switch: Switch) -> None:
        if not switch.fired:
            switch.on_cancel()
            return
        _log.warning("lease_feed_lost", mark_ms=switch.mark_ms, lease_ttl_ms=switch.lease_ttl_ms)
        # Each on a thread of its own: one that is hard to kill must not keep the next switch from firing.
        for keeper in switch.mortal:
            threading.Thread(target=keeper.kill_now, args=(Deadline.after(_KILL_S),), daemon=True).start()
        switch.on_fired()
