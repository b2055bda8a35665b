"""Deadlines that no HTTP call can block (L-07).

A thread of its own waits for the next moment and calls back. What it calls sets a flag or shuts a socket down, and
never blocks. Moments are readings of `Clock.monotonic`, which counts suspended time (L-08).
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Final

from turnkeeper.kit.clock import Clock

_LONG_S: Final = 3600.0


class Alarm:
    """One moment and what happens then; `cancel` may come too late, which the action has to bear."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self.rang = False

    def cancel(self) -> None:
        """Do nothing at that moment."""
        self._action = None

    def ring(self) -> None:
        """Called by the watchdog."""
        action, self._action = self._action, None
        if action is not None:
            self.rang = True
            action()


class Watchdog:
    """Start it once; it is a daemon thread and needs no end, but `stop` ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; alarms that have not rung do not ring any more."""
        self._stopping = True
        self._changed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    @property
    def alarms(self) -> int:
        """How many moments are waited for."""
        with self._lock:
            return len(self._alarms)

    def at(self, moment: float, action: Callable[[], None]) -> Alarm:
        """Call `action` at `moment`, or at once where that has passed. `action` must not block."""
        alarm = Alarm(action)
        with self._lock:
            heapq.heappush(self._alarms, (moment, next(self._numbers), alarm))
        self._changed.set()
        return alarm

    def _run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            due, wait_s = self._due()
            for alarm in due:
                alarm.ring()
            if not due:
                self._clock.wait(self._changed, wait_s)

    def _due(self) -> tuple[list[Alarm], float]:
        due: list[Alarm] = []
        with self._lock:
            now = self._clock.monotonic()
            while self._alarms and self._alarms[0][0] <= now:
                due.append(heapq.heappop(self._alarms)[2])
            return due, (self._alarms[0][0] - now if self._alarms else _LONG_S)
