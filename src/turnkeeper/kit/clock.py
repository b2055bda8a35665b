"""Time as a thing that is handed over.

Deadlines are read from `CLOCK_BOOTTIME`, which keeps counting while the machine is suspended (L-08); the wall clock is
only for showing and never for deciding. asyncio is imported by the first sleep: keepers and launchers have no loop, and
start in half the time without it. `ManualClock` stands in for the system's in tests: it moves when it is told to.
"""

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

# The kernel's waits count CLOCK_MONOTONIC, which stands still during a suspend. So no single wait is longer than this:
# after a resume a waiter looks at the real deadline within one slice.
_WAIT_SLICE_S = 0.5
_SLEEP_SLICE_S = 1.0


class Clock(Protocol):
    """What the product needs of time. Durations and readings are seconds unless the name says otherwise."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and counts suspended time."""
        ...

    def boottime_ms(self) -> int:
        """The same clock in whole milliseconds."""
        ...

    def utcnow(self) -> datetime:
        """The wall clock, aware, UTC. For showing only."""
        ...

    async def sleep(self, s: float) -> None:
        """Wait `s` seconds in the event loop."""
        ...

    def wait(self, event: threading.Event, s: float) -> bool:
        """Wait in a thread until `event` is set (True) or `s` seconds have passed (False)."""
        ...


_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(_CLOCK_ID) // 1_000_000

    def utcnow(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, s: float) -> None:
        import asyncio

        end = self.monotonic() + s
        while (left := end - self.monotonic()) > 0:  # noqa: ASYNC110 - slices of one sleep, not a poll
            await asyncio.sleep(min(left, _SLEEP_SLICE_S))
        if s <= 0:
            await asyncio.sleep(0)

    def wait(self, event: threading.Event, s: float) -> bool:
        end = self.monotonic() + s
        while (left := end - self.monotonic()) > 0:
            if event.wait(min(left, _WAIT_SLICE_S)):
                return True
        return event.is_set()


system_clock = SystemClock()


@dataclass(order=True)
class _Waiter:
    at: float
    number: int
    wake: Callable[[], None] = field(compare=False)
    left: threading.Event | None = field(compare=False, default=None)  # set by a thread when it has left its wait


class ManualClock:
    """A clock that stands still until `advance` moves it; threads and event loops may wait on it at once.

    `advance` goes from deadline to deadline, sets the time to each and wakes its waiters in that order. It cannot know
    when woken code has finished, so a test that needs the next step first asks `wait_for_waiters`.
    """

    # An event that another thread sets cannot wake our condition, so a waiting thread looks at it this often.
    _POLL_S = 0.002
    # How long `advance` gives a woken thread to leave its wait before it goes on.
    _HANDOFF_S = 5.0

    def __init__(self, start: float = 1000.0, wall: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._start = start
        self._wall = wall
        self._changed = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._numbers = 0

    def monotonic(self) -> float:
        with self._changed:
            return self._now

    def boottime_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def utcnow(self) -> datetime:
        with self._changed:
            return self._wall + timedelta(seconds=self._now - self._start)

    def set_wall(self, wall: datetime) -> None:
        """Set the wall clock alone, forwards or backwards."""
        with self._changed:
            self._wall = wall - timedelta(seconds=self._now - self._start)

    @property
    def waiting(self) -> int:
        """How many threads and tasks wait for this clock."""
        with self._changed:
            return len(self._waiters)

    def next_deadline(self) -> float | None:
        """The earliest moment that somebody waits for."""
        with self._changed:
            return self._waiters[0].at if self._waiters else None

    def wait_for_waiters(self, n: int = 1, timeout_s: float = 10.0) -> None:
        """Block, in real time, until at least `n` threads or tasks wait for this clock."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiters) >= n, timeout_s):
                raise TimeoutError(f"{len(self._waiters)} of {n} waiters after {timeout_s:g} s")

    def advance(self, s: float) -> None:
        """Move time by `s` seconds, waking whoever waits for a moment up to there, in order."""
        self.advance_to(self.monotonic() + s)

    def advance_to(self, moment: float) -> None:
        """Move time to `moment`; a moment in the past is a mistake."""
        if moment < self.monotonic():
            raise ValueError(f"time goes forward only: {moment:g} is before {self.monotonic():g}")
        while (waiter := self._pop_due(moment)) is not None:
            waiter.wake()
            if waiter.left is not None:
                waiter.left.wait(self._HANDOFF_S)

    async def advance_async(self, s: float, rounds: int = 20) -> None:
        """As `advance`, from inside an event loop: after each deadline the loop's tasks get `rounds` turns to go on."""
        target = self.monotonic() + s
        await _let_others_run(rounds)
        while (at := self.next_deadline()) is not None and at <= target:
            self.advance_to(max(at, self.monotonic()))
            await _let_others_run(rounds)
        self.advance_to(target)
        await _let_others_run(rounds)

    def _pop_due(self, moment: float) -> _Waiter | None:
        with self._changed:
            if not self._waiters or self._waiters[0].at > moment:
                self._now = max(self._now, moment)
                return None
            waiter = heapq.heappop(self._waiters)
            self._now = max(self._now, waiter.at)
            self._changed.notify_all()
            return waiter

    def _push(self, s: float, wake: Callable[[], None], left: threading.Event | None) -> _Waiter:
        with self._changed:
            self._numbers += 1
            waiter = _Waiter(self._now + s, self._numbers, wake, left)
            heapq.heappush(self._waiters, waiter)
            self._changed.notify_all()
            return waiter

    def _remove(self, waiter: _Waiter) -> None:
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                heapq.heapify(self._waiters)
            self._changed.notify_all()

    async def sleep(self, s: float) -> None:
        import asyncio

        if s <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        waiter = self._push(s, wake, None)
        try:
            await woken
        finally:
            self._remove(waiter)

    def wait(self, event: threading.Event, s: float) -> bool:
        if s <= 0:
            return event.is_set()
        due, left = threading.Event(), threading.Event()
        waiter = self._push(s, due.set, left)
        try:
            while not event.is_set() and not due.wait(self._POLL_S):
                pass
            return event.is_set()
        finally:
            self._remove(waiter)
            left.set()


async def _let_others_run(rounds: int) -> None:
    import asyncio

    for _ in range(rounds):
        await asyncio.sleep(0)
