"""Hints that something in the database changed. They own no fact.

A signal is sent by NOTIFY right after the commit that it speaks of (T-01), from a connection of its own. Not within the
transaction: PostgreSQL lets only one transaction that has notified commit at a time, and holds the others for as long as
that one waits for the disk; with 16 writers that cost more than half of the throughput. Sent apart, what many commits
had to say while one NOTIFY was on its way goes out together, once each.

A process also wakes its own waiters, right after the commit and without the way through PostgreSQL (`Signaller.attach`); the
NOTIFY is for the others, and its echo is passed over.

Any signal may be lost: the sender may die in between, the listening connection may be cut, a process may start later. So
everybody who waits has a bound on the wait and reads the database after it; and whenever the listening connection comes
back, every waiter is woken (F04).
"""

import asyncio
import contextlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg

from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import jitter
from turnkeeper.kit.log import get_logger
from turnkeeper.store.errors import place

CHANNEL: Final = "turnkeeper"
_PROBE_INTERVAL_S: Final = 15.0
_PROBE_TIMEOUT_S: Final = 5.0
_BACKOFF_S: Final = 0.05
_BACKOFF_S_MAX: Final = 2.0
_CLOSE_S: Final = 2.0
_OUTBOX_MAX: Final = 10_000

_log = get_logger("store.signals")


class Kind(StrEnum):
    """What a signal may be about."""

    READY = "ready"
    EVENTS = "events"
    RUN = "run"


_KINDS: Final = {kind.value: kind for kind in Kind}


@dataclass(frozen=True)
class Topic:
    """What a waiter waits for. `id` is the conversation of `events`, the run of `run`, empty for `ready`."""

    kind: Kind
    id: str = ""


@dataclass(frozen=True)
class Signal:
    """A topic and, for `events`, the newest sequence number of the conversation."""

    topic: Topic
    seq: int = 0

    def payload(self) -> str:
        """The text that NOTIFY carries."""
        return f"{self.topic.kind.value} {self.topic.id} {self.seq}"


READY_TOPIC: Final = Topic(Kind.READY)
# Some run became claimable.
READY: Final = Signal(READY_TOPIC)


def events_topic(thread_id: str) -> Topic:
    """New events in a conversation."""
    return Topic(Kind.EVENTS, thread_id)


def run_topic(run_id: str) -> Topic:
    """A run's cancel was requested, or it ended."""
    return Topic(Kind.RUN, run_id)


def events_signal(thread_id: str, seq: int) -> Signal:
    """Events of a conversation up to `seq` are readable."""
    return Signal(events_topic(thread_id), seq)


def run_signal(run_id: str) -> Signal:
    """Look at the run again."""
    return Signal(run_topic(run_id))


def parse(payload: str) -> Signal | None:
    """The signal of a NOTIFY payload; None for anything that we did not write."""
    parts = payload.split(" ")
    if len(parts) != 3 or not parts[2].isdecimal() or parts[0] not in _KINDS:
        return None
    return Signal(Topic(_KINDS[parts[0]], parts[1]), int(parts[2]))


class Subscription:
    """Woken by signals on its topics. Subscribe first, then look, then wait: nothing falls in between."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Called by the bus."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a signal at most `timeout_s`. True: woken. In both cases read the database: a signal is a hint."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Signaller:
    """Sends signals, in the order in which they were published, each once while it waits to be sent. One event loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._outbox: dict[Signal, None] = {}
        self._wanted = asyncio.Event()
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._bus: SignalBus | None = None
        self.backend_pid: int | None = None

    def attach(self, bus: "SignalBus") -> None:
        """Wake the waiters of `bus`, which lives in this event loop, at once."""
        self._bus = bus
        bus.hear(self)

    def publish(self, signals: Iterable[Signal]) -> None:
        """Send these soon. Never waits and never fails."""
        signals = tuple(signals)
        if self._bus is not None:
            for signal in signals:
                self._bus.wake(signal.topic)
        self._outbox.update(dict.fromkeys(signals))
        if not self._outbox:
            return
        self._wanted.set()
        self._sent.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._main(), name="signaller")

    async def close(self) -> None:
        """Send what is left, in bounded time, and close the connection. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._sent.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _main(self) -> None:
        backoff_s = _BACKOFF_S
        while True:
            try:
                async with await _connect(self._dsn, "turnkeeper signaller") as connection:
                    self.backend_pid = connection.info.backend_pid
                    while True:
                        await self._wanted.wait()
                        await self._send(connection)
                        backoff_s = _BACKOFF_S
            except (psycopg.Error, OSError) as error:
                _log.warning(
                    "signals_not_sent", place=place(self._dsn), waiting=len(self._outbox), error=type(error).__name__
                )
            if len(self._outbox) > _OUTBOX_MAX:
                self._outbox.clear()  # hints: everybody who waits looks by itself
            await system_clock.sleep(jitter(backoff_s / 2, backoff_s))
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    async def _send(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # Taken out before it is sent: one that is published again meanwhile speaks of a later commit, and is sent again.
        batch, self._outbox = self._outbox, {}
        payloads = [signal.payload() for signal in batch]
        try:
            await connection.execute("SELECT pg_notify(%s, p) FROM unnest(%s::text[]) AS p", (CHANNEL, payloads))
        except BaseException:
            self._outbox = batch | self._outbox
            raise
        if not self._outbox:
            self._wanted.clear()
            self._sent.set()


async def _connect(dsn: str, name: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True, connect_timeout=5, application_name=name)


class SignalBus:
    """One direct LISTEN connection of this process, and whoever waits for it. One event loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._subscriptions: dict[Topic, set[Subscription]] = {}
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._own: Signaller | None = None

    def hear(self, own: Signaller) -> None:
        """`own` wakes our waiters by itself: what it notifies comes back as an echo, which is passed over."""
        self._own = own

    async def start(self) -> None:
        """Start listening. Does not wait for the connection: without it everything still works, by the bounds of waits."""
        if self._task is None:
            self._task = asyncio.create_task(self._main(), name="signals")

    async def stop(self) -> None:
        """Stop listening and wake every waiter. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._wake_all()

    @property
    def listening(self) -> bool:
        """Whether the LISTEN connection stands."""
        return self._listening.is_set()

    async def wait_listening(self, timeout_s: float) -> bool:
        """Wait until the LISTEN connection stands."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._listening.wait()
        except TimeoutError:
            return False
        return True

    @contextlib.contextmanager
    def subscribe(self, *topics: Topic) -> Generator[Subscription]:
        """Within the block signals on any of `topics` wake the subscription."""
        subscription = Subscription()
        for topic in topics:
            self._subscriptions.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            for topic in topics:
                waiters = self._subscriptions[topic]
                waiters.discard(subscription)
                if not waiters:
                    del self._subscriptions[topic]

    async def wait(self, topic: Topic, timeout_s: float) -> bool:
        """Wait for one signal, for callers that have looked already and bear a lost one until `timeout_s`."""
        with self.subscribe(topic) as subscription:
            return await subscription.wait(timeout_s)

    def wake(self, topic: Topic) -> None:
        """Wake whoever waits for `topic` in this process."""
        for subscription in self._subscriptions.get(topic, ()):
            subscription.wake()

    def _wake_all(self) -> None:
        for waiters in self._subscriptions.values():
            for subscription in waiters:
                subscription.wake()

    async def _main(self) -> None:
        backoff_s = _BACKOFF_S
        while True:
            try:
                async with await _connect(self._dsn, "turnkeeper signals") as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._listening.set()
                    backoff_s = _BACKOFF_S
                    self._wake_all()  # what was signalled while nobody listened is lost
                    await self._listen(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                _log.warning("signal_connection_lost", place=place(self._dsn), error=type(error).__name__)
            finally:
                self._listening.clear()
            await system_clock.sleep(jitter(backoff_s / 2, backoff_s))
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notification in connection.notifies(timeout=_PROBE_INTERVAL_S):
                if self._own is not None and notification.pid == self._own.backend_pid:
                    continue
                signal = parse(notification.payload)
                if signal is not None:
                    self.wake(signal.topic)
            # A connection that is dead without a word looks like a quiet one: ask.
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await connection.execute("SELECT 1")
