"""Clocks: the machine's, and the one that tests move."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from turnkeeper.kit.clock import Clock, ManualClock, SystemClock, system_clock


def test_deadlines_count_suspended_time() -> None:
    """Proves: L-08. The reading is CLOCK_BOOTTIME's, in seconds and in whole milliseconds."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    reading, reading_ms = system_clock.monotonic(), system_clock.boottime_ms()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= reading <= after
    assert before * 1000 - 1 <= reading_ms <= after * 1000
    assert isinstance(reading_ms, int)


def test_the_wall_clock_is_aware_and_utc() -> None:
    """Case: F12. Every time shown carries its offset."""
    now = system_clock.utcnow()
    assert now.utcoffset() == timedelta(0)
    assert abs((now - datetime.now(UTC)).total_seconds()) < 5


def test_wait_returns_at_once_when_the_event_is_set() -> None:
    """An event that another thread sets ends a long wait."""
    event = threading.Event()
    thread = threading.Thread(target=lambda: (system_clock.wait(threading.Event(), 0.05), event.set()))
    thread.start()
    start = system_clock.monotonic()
    assert system_clock.wait(event, 30)
    assert system_clock.monotonic() - start < 10
    thread.join(5)


def test_wait_is_bounded_and_looks_at_the_real_deadline() -> None:
    """Proves: L-08. A wait is cut in slices: after a suspend (here: a clock that jumps) it ends within one slice."""
    assert not system_clock.wait(threading.Event(), 0.01)
    assert not system_clock.wait(threading.Event(), 0)

    class Jumping(SystemClock):
        readings = iter((0.0, 0.0))

        def monotonic(self) -> float:
            return next(self.readings, 3600.0)

    start = system_clock.monotonic()
    assert not Jumping().wait(threading.Event(), 1800)
    assert system_clock.monotonic() - start < 30


async def test_system_sleep() -> None:
    """A sleep lasts at least its time; zero only yields."""
    start = system_clock.monotonic()
    await system_clock.sleep(0.02)
    assert system_clock.monotonic() - start >= 0.02
    await system_clock.sleep(0)


def test_both_are_clocks() -> None:
    """The protocol is what both offer (checked by the type checker as well)."""
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(clock.boottime_ms() == pytest.approx(clock.monotonic() * 1000, abs=1000) for clock in clocks)


def test_threads_wake_in_the_order_of_their_deadlines() -> None:
    """Whoever waits for an earlier moment wakes first, and reads exactly that moment."""
    clock, seen, lock = ManualClock(), list[tuple[int, float]](), threading.Lock()

    def wait(number: int) -> None:
        assert not clock.wait(threading.Event(), number)
        with lock:
            seen.append((number, clock.monotonic()))

    threads = [threading.Thread(target=wait, args=(number,)) for number in (5, 1, 4, 2, 3)]
    for thread in threads:
        thread.start()
    clock.wait_for_waiters(5)
    for _ in range(5):
        at, count = clock.next_deadline(), len(seen)
        assert at is not None
        clock.advance_to(at)
        while len(seen) == count:
            time.sleep(0.001)
    for thread in threads:
        thread.join(5)
    assert seen == [(number, 1000.0 + number) for number in (1, 2, 3, 4, 5)]
    assert clock.waiting == 0


def test_one_advance_over_several_deadlines() -> None:
    """The time at the end is the one asked for, and everybody due has left the wait."""
    clock = ManualClock(start=0)
    done = [threading.Event() for _ in range(3)]

    def wait(number: int) -> None:
        clock.wait(threading.Event(), number + 1)
        done[number].set()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    clock.wait_for_waiters(3)
    clock.advance(2.5)
    assert clock.monotonic() == 2.5
    assert done[0].wait(5)
    assert done[1].wait(5)
    assert not done[2].is_set()
    assert clock.waiting == 1
    clock.advance(0.5)
    assert done[2].wait(5)
    for thread in threads:
        thread.join(5)


def test_an_event_ends_a_manual_wait() -> None:
    """Without any advance: the stop of a heartbeat thread must not wait for time."""
    clock, event, answers = ManualClock(), threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, 3600)))
    thread.start()
    clock.wait_for_waiters(1)
    event.set()
    thread.join(5)
    assert answers == [True]
    assert clock.waiting == 0
    assert not clock.wait(threading.Event(), 0)


def test_a_cadence_is_driven_step_by_step() -> None:
    """How a heartbeat test uses it: wait for the waiter, advance, repeat; no sleep decides anything."""
    clock, stop, beats = ManualClock(start=0), threading.Event(), list[float]()

    def beat() -> None:
        while not clock.wait(stop, 30):
            beats.append(clock.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    for _ in range(12):
        clock.wait_for_waiters(1)
        clock.advance(30)
    clock.wait_for_waiters(1)
    stop.set()
    thread.join(5)
    assert beats == [30.0 * n for n in range(1, 13)]


async def test_tasks_wake_in_order_and_may_sleep_again() -> None:
    """`advance_async` goes from deadline to deadline and lets the tasks go on in between."""
    clock, seen = ManualClock(start=0), list[tuple[str, float]]()

    async def tick(name: str, every: float) -> None:
        while True:
            await clock.sleep(every)
            seen.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(tick("two", 2)), asyncio.create_task(tick("three", 3))]
    await clock.advance_async(7)
    assert seen == [("two", 2.0), ("three", 3.0), ("two", 4.0), ("three", 6.0), ("two", 6.0)]
    assert clock.monotonic() == 7
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert clock.waiting == 0, "a cancelled sleeper is forgotten"


async def test_a_thread_may_advance_for_a_loop() -> None:
    """Heartbeat thread and event loop share one clock."""
    clock = ManualClock(start=0)
    sleeper = asyncio.create_task(clock.sleep(10))

    def drive() -> None:
        clock.wait_for_waiters(1)
        clock.advance(10)

    await asyncio.to_thread(drive)
    await asyncio.wait_for(sleeper, 5)


def test_time_goes_forward_only() -> None:
    """A test that turns it back is wrong; the wall clock alone may be set."""
    clock = ManualClock(start=10, wall=datetime(2026, 3, 29, tzinfo=UTC))
    clock.advance(5)
    with pytest.raises(ValueError, match="forward only"):
        clock.advance_to(12)
    assert clock.utcnow() == datetime(2026, 3, 29, 0, 0, 5, tzinfo=UTC)
    clock.set_wall(datetime(2020, 1, 1, tzinfo=UTC))
    clock.advance(60)
    assert clock.utcnow() == datetime(2020, 1, 1, 0, 1, tzinfo=UTC)
    assert clock.monotonic() == 75


def test_waiting_for_waiters_is_bounded() -> None:
    """A test that waits for nobody fails, and says how many came."""
    with pytest.raises(TimeoutError, match="0 of 1 waiters"):
        ManualClock().wait_for_waiters(1, timeout_s=0.01)
