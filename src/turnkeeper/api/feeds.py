"""The live end of a conversation's events, shared by all its readers in this process.

One feed exists per watched conversation. A signal (or, where signals are lost, the repair interval: F04) makes it read
what is new, once, encode it once and keep it in a bounded window; readers take from the window at their own pace and hold
neither a connection nor a transaction (F03). A reader that falls behind the window goes on from the database, page by
page, until it is inside the window again. So a slow reader costs nothing but its own place.

Sequence numbers of a conversation are gap-free (architecture.md, section 3). A hole therefore means that events were
dropped, and is told as `gap`.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from turnkeeper.api.metrics import Metrics
from turnkeeper.kit.log import get_logger
from turnkeeper.wire.turn import Event, EventKind

PAGE_EVENTS = 500
WINDOW_EVENTS_MAX = 1000
WINDOW_BYTES_MAX = 512 * 1024
REPAIR_S = 4.0
"""A lost signal is made good within this and one read: below the 5 s of F04."""

_log = get_logger("api.feeds")

ReadPage = Callable[[int, int], Awaitable[Sequence[Event]]]
"""`(after, limit)`: stored events with a greater sequence, in order, at most `limit`."""


class Subscription(Protocol):
    """Woken when something may have been appended; remembers a wake-up that came while nobody waited."""

    async def wait(self, timeout_s: float) -> bool:
        """Until woken (True) or the time has passed (False)."""
        ...

    def wake(self) -> None:
        """End the wait, or the next one."""
        ...


Subscribe = Callable[[str], AbstractContextManager[Subscription]]
"""A subscription to the events of a conversation, by its thread id."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One stored event, encoded for the wire."""

    seq: int
    run_id: str | None
    kind: EventKind
    data: bytes


def encode(name: str, data: Mapping[str, object], seq: int | None = None) -> bytes:
    """One SSE frame: `event:` is the kind, `id:` the sequence, `data:` one line of JSON, which has no line breaks."""
    head = "" if seq is None else f"id: {seq}\n"
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"{head}event: {name}\ndata: {text}\n\n".encode()


def encode_event(event: Event) -> Frame:
    """A stored event as the frame that every reader gets: its data, its run, its time, and its size before a cut."""
    data: dict[str, object] = {**event.data, "run_id": event.run_id, "created_at": event.created_at.isoformat()}
    if event.original_bytes is not None:
        data["original_bytes"] = event.original_bytes
    return Frame(event.seq, event.run_id, event.kind, encode(event.kind.value, data, event.seq))


class Feed:
    """The events of one conversation after `floor`, as far as they are in the window."""

    def __init__(self, thread_id: str, last_seq: int, read: ReadPage, subscribe: Subscribe, metrics: Metrics) -> None:
        self.thread_id = thread_id
        self.floor = last_seq
        """The window holds every stored event with a greater sequence up to `last`."""
        self.last = last_seq
        self.readers = 0
        self.failed = False
        self._window: deque[Frame] = deque()
        self._bytes = 0
        self._read = read
        self._subscribe = subscribe
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin to follow the conversation."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"feed {self.thread_id}")

    def stop(self) -> None:
        """End following, and wake the readers that still wait. A read that is on its way is not cut off: a cancelled
        statement costs its connection. It ends by itself, and nobody waits for it."""
        self._stopping = True
        if self._subscription is not None:
            self._subscription.wake()
        self._wake()

    async def stopped(self) -> None:
        """Wait until the task has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def since(self, seq: int) -> list[Frame]:
        """What the window holds after `seq`, which must not lie below `floor`."""
        if seq >= self.last:
            return []
        found: list[Frame] = []
        for frame in reversed(self._window):
            if frame.seq <= seq:
                break
            found.append(frame)
        found.reverse()
        return found

    async def wait_changed(self, timeout_s: float) -> bool:
        """Until something was added (True) or the time has passed (False)."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        # Subscribed before the first read: what is appended after that read's snapshot wakes the subscription.
        with self._subscribe(self.thread_id) as subscription:
            self._subscription = subscription
            while not self._stopping:
                await self._read_new()
                if not self._stopping:
                    await subscription.wait(REPAIR_S)

    async def _read_new(self) -> None:
        try:
            more = True
            while more:
                self._metrics.stream_reads.labels("signal").inc()
                page = await self._read(self.last, PAGE_EVENTS)
                if page:
                    self._add([encode_event(event) for event in page])
                more = len(page) == PAGE_EVENTS
            self.failed = False
        except Exception as failure:  # the database may be away for a while: the next wake-up reads again
            if not self.failed:
                _log.warning("event_feed_read_failed", thread_id=self.thread_id, exception=type(failure).__name__)
            self.failed = True

    def _add(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._window.append(frame)
            self._bytes += len(frame.data)
        self.last = frames[-1].seq
        while len(self._window) > WINDOW_EVENTS_MAX or self._bytes > WINDOW_BYTES_MAX:
            oldest = self._window.popleft()
            self._bytes -= len(oldest.data)
            self.floor = oldest.seq
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Feeds:
    """The feeds of this process. `close` ends all streams, so that a stopping server need not wait for readers."""

    def __init__(self, subscribe: Subscribe, metrics: Metrics, readers_max: int) -> None:
        self._subscribe = subscribe
        self._metrics = metrics
        self._readers_max = readers_max
        self._feeds: dict[str, Feed] = {}
        self._readers = 0
        self.closing = False

    @property
    def full(self) -> bool:
        """Whether no further reader may come."""
        return self._readers >= self._readers_max

    @property
    def watched(self) -> int:
        """How many conversations are watched."""
        return len(self._feeds)

    @contextlib.contextmanager
    def follow(self, thread_id: str, last_seq: int, read: ReadPage) -> Generator[Feed]:
        """The conversation's feed while the caller reads. `last_seq` and `read` serve the first reader's feed."""
        feed = self._feeds.get(thread_id)
        if feed is None:
            feed = Feed(thread_id, last_seq, read, self._subscribe, self._metrics)
            self._feeds[thread_id] = feed
            self._metrics.stream_feeds.set(len(self._feeds))
            feed.start()
        feed.readers += 1
        self._readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            self._readers -= 1
            if feed.readers == 0:
                # Nothing is awaited in between: the next reader gets a feed of its own.
                del self._feeds[thread_id]
                self._metrics.stream_feeds.set(len(self._feeds))
                feed.stop()

    async def close(self) -> None:
        """End every stream, and wait until none reads the database any more."""
        self.closing = True
        feeds = list(self._feeds.values())
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            await feed.stopped()
