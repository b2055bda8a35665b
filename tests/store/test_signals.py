"""Signals: hints by NOTIFY, and what happens when they are lost."""

import asyncio

import pytest

from harness.postgres import RawSession, Sessions
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.store.pool import open_database
from turnkeeper.store.signals import (
    CHANNEL,
    READY,
    READY_TOPIC,
    Kind,
    Signal,
    SignalBus,
    Signaller,
    Topic,
    events_signal,
    events_topic,
    parse,
    run_signal,
    run_topic,
)
from turnkeeper.store.tx import Database, Tx

WAIT_S = 10.0


@pytest.mark.parametrize(
    "signal", [READY, events_signal("01980000-0000-7000-8000-00000000000a", 2**40), run_signal("r")]
)
def test_payloads_round_trip(signal: Signal) -> None:
    """What is sent is what is read."""
    assert parse(signal.payload()) == signal


@pytest.mark.parametrize(
    "payload", ["", "ready", "ready  x", "ready  0 0", "cancel r 0", "events t -1", "events t ²", "\x00"]
)
def test_foreign_payloads_are_ignored(payload: str) -> None:
    """Anybody with the database may write on the channel."""
    assert parse(payload) is None


async def _signal(database: Database, *signals: Signal) -> None:
    async def work(tx: Tx) -> None:
        for signal in signals:
            tx.notify(signal)

    await database.run("signal", work)


async def _listening(dsn: str) -> SignalBus:
    bus = SignalBus(dsn)
    await bus.start()
    assert await bus.wait_listening(WAIT_S)
    return bus


async def test_a_signal_wakes_whoever_waits_for_its_topic(database: Database, dsn: str) -> None:
    """And nobody else."""
    bus = await _listening(dsn)
    thread, run = new_id(), new_id()
    try:
        with (
            bus.subscribe(events_topic(thread)) as events,
            bus.subscribe(run_topic(run), READY_TOPIC) as several,
            bus.subscribe(events_topic(new_id())) as other,
        ):
            await _signal(database, events_signal(thread, 1))
            assert await events.wait(WAIT_S)
            assert not await several.wait(0)
            await _signal(database, run_signal(run))
            assert await several.wait(WAIT_S)
            await _signal(database, READY)
            assert await several.wait(WAIT_S)
            assert not await events.wait(0)
            assert not await other.wait(0)
    finally:
        await bus.stop()


async def test_nothing_falls_between_looking_and_waiting(database: Database, dsn: str) -> None:
    """A signal that came while the subscriber looked is still there when it waits."""
    bus = await _listening(dsn)
    try:
        with bus.subscribe(READY_TOPIC) as first, bus.subscribe(READY_TOPIC) as later:
            await _signal(database, READY)
            assert await first.wait(WAIT_S)  # so it has arrived
            assert await later.wait(0.001)
    finally:
        await bus.stop()


async def test_a_wait_is_bounded(dsn: str) -> None:
    """Without any signal it ends by itself, also on a bus that never got a connection."""
    bus = SignalBus("host=/nonexistent dbname=x")
    await bus.start()
    try:
        assert not await bus.wait(READY_TOPIC, 0.05)
        assert not bus.listening
    finally:
        await bus.stop()
    assert not await SignalBus(dsn).wait(Topic(Kind.READY), 0.01)


async def test_a_cut_connection_comes_back_and_wakes_everybody(
    database: Database, dsn: str, sessions: Sessions
) -> None:
    """Case: F04. What was signalled in the gap is lost; the reconnect wakes every waiter, who then reads the database."""
    bus = await _listening(dsn)
    killer = await sessions.open(autocommit=True)
    try:
        with bus.subscribe(events_topic(new_id())) as first, bus.subscribe(run_topic(new_id())) as second:
            started = system_clock.monotonic()
            await killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'turnkeeper signals' AND datname = current_database()"
            )
            assert await first.wait(WAIT_S)
            assert await second.wait(WAIT_S)
            assert system_clock.monotonic() - started < 5
        assert bus.listening
        with bus.subscribe(READY_TOPIC) as again:
            await _signal(database, READY)
            assert await again.wait(WAIT_S)
    finally:
        await bus.stop()


async def test_stopping_wakes_everybody_and_is_idempotent(dsn: str, sessions: Sessions) -> None:
    """No waiter outlives the bus by its whole bound, and the connection is closed."""
    bus = await _listening(dsn)
    with bus.subscribe(READY_TOPIC) as waiting:
        waiter = asyncio.create_task(waiting.wait(WAIT_S))
        await asyncio.sleep(0)
        await bus.stop()
        await bus.stop()
        assert await waiter
    session = await sessions.open(autocommit=True)
    left = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'turnkeeper signals' AND datname = current_database()"
    )
    async with asyncio.timeout(WAIT_S):
        while await (await session.execute(left)).fetchall():
            await session.execute("SELECT pg_sleep(0.005)")


async def _payloads(listener: RawSession, count: int) -> list[str]:
    return [notification.payload async for notification in listener.notifies(timeout=WAIT_S, stop_after=count)]


async def test_closing_sends_what_is_left(dsn: str, sessions: Sessions) -> None:
    """A process that ends in order loses no signal of its last commits."""
    listener = await sessions.open(autocommit=True)
    await listener.execute(f"LISTEN {CHANNEL}")
    async with open_database(dsn, min_size=1) as database:
        await _signal(database, READY, run_signal("a"))
    assert await _payloads(listener, 2) == [READY.payload(), run_signal("a").payload()]


async def test_a_cut_sender_sends_after_it_is_back(database: Database, sessions: Sessions) -> None:
    """Case: F04. Nothing of what was published meanwhile is lost as long as the process lives, and equal ones are one."""
    listener = await sessions.open(autocommit=True)
    await listener.execute(f"LISTEN {CHANNEL}")
    await _signal(database, READY)
    assert await _payloads(listener, 1) == [READY.payload()]
    await listener.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'turnkeeper signaller' AND datname = current_database()"
    )
    for name in ("a", "b", "a"):
        await _signal(database, run_signal(name))
    assert set(await _payloads(listener, 2)) == {run_signal("a").payload(), run_signal("b").payload()}


async def test_a_sender_without_a_server_stops_in_bounded_time() -> None:
    """It never fails its callers, and its end does not wait for a server that is gone."""
    signaller = Signaller("host=/nonexistent dbname=x")
    signaller.publish([READY])
    async with asyncio.timeout(WAIT_S):
        await signaller.close()
        await signaller.close()


async def test_own_waiters_are_woken_by_the_commit_itself(database: Database, dsn: str, sessions: Sessions) -> None:
    """At once, also while nobody listens; and once: the NOTIFY, which others hear, is passed over when it comes back."""
    listener = await sessions.open(autocommit=True)
    await listener.execute(f"LISTEN {CHANNEL}")
    bus = SignalBus(dsn)
    database.attach(bus)
    with bus.subscribe(READY_TOPIC) as ready, bus.subscribe(run_topic("x")) as foreign:
        await _signal(database, READY)
        assert await ready.wait(0)
        await bus.start()
        try:
            assert await bus.wait_listening(WAIT_S)
            assert await ready.wait(WAIT_S)  # whoever waits is woken when listening begins
            assert await foreign.wait(WAIT_S)
            await _signal(database, READY)
            assert await ready.wait(0)
            assert await _payloads(listener, 2) == [READY.payload()] * 2
            async with open_database(dsn, min_size=1) as other:
                await _signal(other, run_signal("x"))
                assert await foreign.wait(WAIT_S)
            assert not await ready.wait(0)  # notifications keep their order: the echo came before the other's signal
        finally:
            await bus.stop()
