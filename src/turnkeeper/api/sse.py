"""Event streams over HTTP: Server-Sent Events as the HTML standard says them.

    id: 42                      the event's sequence number in its conversation
    event: text                 its kind (`wire.turn.EventKind`)
    data: {"text": "…", "run_id": "…", "created_at": "…"}

The first frame is always `snapshot`: the state that the events continue from, and `after`, the sequence that they follow.
A reader resumes by `Last-Event-ID` (which a browser sends by itself) or by `?after=`; the header wins, being newer.
An id that cannot be ours (garbage, or greater than anything stored) starts the stream again from the beginning with
`restart: true`, because a browser would repeat a refused id for ever; a garbage `?after=` was written by a program and is
refused. Events that are no longer stored are told by `gap`. Within 10 s of silence a comment shows that the stream lives.
A run's stream closes after its `end`, also for one who connects after it. (F09)
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnkeeper.api.feeds import PAGE_EVENTS, Feed, Feeds, Frame, ReadPage, encode, encode_event
from turnkeeper.api.guard import is_outage
from turnkeeper.api.metrics import Metrics
from turnkeeper.api.paging import limit_of
from turnkeeper.api.problems import ProblemRaised, shown
from turnkeeper.api.settings import ApiSettings
from turnkeeper.api.waits import to_its_end
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.log import get_logger
from turnkeeper.services.context import Services
from turnkeeper.services.openings import Opening, run_page
from turnkeeper.services.stream import thread_page
from turnkeeper.wire.turn import Event, EventKind

SEQ_MAX = 2**63 - 1
SEND_TIMEOUT_S = 60.0
"""A reader whose socket takes nothing for this long is gone, whatever TCP says."""

FIRST_PAGE_EVENTS = 50
"""Pages grow from here: a reader that is cut again and again, or that has little to catch up with, costs little."""

_CHUNK_BYTES = 64 * 1024

StillAllowed = Callable[[], Awaitable[bool]]

_log = get_logger("api.sse")


@dataclass(frozen=True)
class Position:
    """Where a reader wants to go on. `after` None: it says nothing. `unusable`: it says something that is not ours."""

    after: int | None
    unusable: bool = False


@dataclass(frozen=True)
class Pace:
    """In seconds: a comment in silence, and a look whether the reader's key or session still opens anything."""

    heartbeat_s: float
    recheck_s: float


def position_of(request: Request) -> Position:
    """From `Last-Event-ID`, else from `?after=`. `ProblemRaised` (400) for a garbage `?after=`."""
    header = request.headers.get("last-event-id")
    asked = request.query_params.get("after")
    if asked is not None and _sequence(asked) is None:
        raise ProblemRaised(
            ProblemCode.BAD_REQUEST, f"after is {shown(asked)}: a sequence number from 0 on is expected", field="after"
        )
    if header is not None:
        after = _sequence(header)
        return Position(after, unusable=after is None)
    return Position(None if asked is None else _sequence(asked))


def wants_stream(request: Request) -> bool:
    """A stream, unless JSON is asked for and a stream is not."""
    accept = request.headers.get("accept", "")
    return "application/json" not in accept or "text/event-stream" in accept


def event_page(request: Request) -> tuple[int, int]:
    """`after` and `limit` of a page of events; `next` of the page before may come as `cursor` too."""
    cursor = request.query_params.get("cursor")
    after = position_of(request).after if cursor is None else _sequence(cursor)
    if cursor is not None and after is None:
        raise ProblemRaised(
            ProblemCode.BAD_REQUEST, f"cursor is {shown(cursor)}: give the `next` of the page before", field="cursor"
        )
    return after or 0, limit_of(request.query_params.get("limit"))


def _sequence(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 400):
        return None
    return min(int(text), SEQ_MAX)


class StreamSource:
    """The reads behind one stream. Each takes a connection for one read and gives it back (F03)."""

    def __init__(self, services: Services, thread_id: str, run_id: str | None) -> None:
        self._services = services
        self._thread_id = thread_id
        self._run_id = run_id

    async def read(self, after: int, limit: int) -> list[Event]:
        """Stored events of this stream (of the run, or of the whole conversation) after `after`, in order."""
        if self._run_id is None:
            return await self.read_thread(after, limit)
        return await run_page(self._services, self._run_id, after=after, limit=limit)

    async def read_thread(self, after: int, limit: int) -> list[Event]:
        """Stored events of the whole conversation, for the shared feed."""
        return await thread_page(self._services, self._thread_id, after=after, limit=limit)


class Cursor:
    """One reader's place: pages of the database until it is inside the feed's window, then the window."""

    def __init__(self, feed: Feed, read: ReadPage, opening: Opening, after: int) -> None:
        self._feed = feed
        self._read = read
        self._run = opening.run_id
        self._opening = opening
        self._behind = True
        self._page_events = FIRST_PAGE_EVENTS
        self.position = after
        self.ended = False

    async def next(self, timeout_s: float) -> list[bytes] | None:
        """The next frames. None: nothing came within `timeout_s`. Empty: look whether it has ended, and ask again."""
        if self._behind or self.position < self._feed.floor:
            return await self._next_page()
        frames = self._feed.since(self.position)
        if not frames:
            return [] if await self._feed.wait_changed(timeout_s) else None
        return self._take(frames)

    async def _next_page(self) -> list[bytes]:
        # Whatever is at or below this floor was committed before the read, so a short page has all of it.
        floor = self._feed.floor
        page = await to_its_end(self._read(self.position, self._page_events))
        out = self._take([encode_event(event) for event in page]) if page else []
        is_last = len(page) < self._page_events
        self._page_events = min(2 * self._page_events, PAGE_EVENTS)
        if is_last and not self.ended:
            self._behind = False
            if self._run is None and self.position < floor:
                out.append(_gap(self.position + 1, floor))
            self.position = max(self.position, floor)
            out += self._end_that_was_passed()
        return out

    def _end_that_was_passed(self) -> list[bytes]:
        """A run's end that lies before the reader's place, or is stored no more: told all the same, so that it arrives."""
        opening = self._opening
        if opening.end is not None:
            self.ended = True
            return [encode_event(opening.end).data]
        if opening.lost_end is not None:
            self.ended = True
            return [encode(EventKind.END.value, opening.lost_end)]
        return []

    def _take(self, frames: list[Frame]) -> list[bytes]:
        out: list[bytes] = []
        for frame in frames:
            if self._run is None and frame.seq > self.position + 1:
                out.append(_gap(self.position + 1, frame.seq - 1))
            self.position = frame.seq
            if self._run is not None and frame.run_id != self._run:
                continue
            out.append(frame.data)
            if self._run is not None and frame.kind is EventKind.END:
                self.ended = True
                break
        return out


def _gap(first: int, last: int) -> bytes:
    return encode(EventKind.GAP.value, {"from": first, "to": last}, last)


class EventStream(Response):
    """The answer that is a stream. It ends with a run's end, with the reader, or with the server."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: StreamSource,
        opening: Opening,
        place: Position,
        feeds: Feeds,
        metrics: Metrics,
        pace: Pace,
        still_allowed: StillAllowed,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._opening = opening
        self._feeds = feeds
        self._metrics = metrics
        self._pace = pace
        self._still_allowed = still_allowed
        self._restart = place.unusable or (place.after is not None and place.after > opening.last_seq)
        beginning = 0 if opening.run_id is None else opening.first
        if self._restart:
            self._after = beginning
        else:
            self._after = opening.first if place.after is None else place.after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Write until the run has ended, the reader has left or the server stops."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gauge = self._metrics.stream_readers.labels("conversation" if self._opening.run_id is None else "run")
        gauge.inc()
        loop = asyncio.get_running_loop()
        writing = loop.create_task(self._write(send))
        leaving = loop.create_task(_until_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gauge.dec()
            for task in (writing, leaving):
                task.cancel()
            results = await asyncio.gather(writing, leaving, return_exceptions=True)
        failure = results[0]
        if isinstance(failure, Exception) and not isinstance(failure, TimeoutError | OSError):
            # The status line is long gone. The reader comes back, and hears then what is wrong.
            _log.warning(
                "event_stream_failed",
                thread_id=self._opening.thread_id,
                exception=type(failure).__name__,
                exc_info=None if is_outage(failure) else failure,
            )

    async def _write(self, send: Send) -> None:
        opening = self._opening
        clock = asyncio.get_running_loop().time
        with self._feeds.follow(opening.thread_id, opening.last_seq, self._source.read_thread) as feed:
            cursor = Cursor(feed, self._source.read, opening, self._after)
            await self._send(send, self._first_frames())
            sent_at = checked_at = clock()
            while not (cursor.ended or self._feeds.closing):
                if clock() - checked_at >= self._pace.recheck_s:
                    if not await self._still_allowed():
                        break  # it comes back, and is told why it may not
                    checked_at = clock()
                frames = await cursor.next(max(0.0, sent_at + self._pace.heartbeat_s - clock()))
                if frames == []:
                    continue
                self._metrics.stream_frames.inc(len(frames or ()))
                await self._send(send, frames or [b": heartbeat\n\n"])
                sent_at = clock()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _first_frames(self) -> list[bytes]:
        opening = self._opening
        state = {"after": self._after, "restart": self._restart, **opening.state}
        # A cut after this frame is resumed from its id.
        frames = [b"retry: 1000\n", encode(EventKind.SNAPSHOT.value, state, self._after)]
        if opening.is_cut and self._after < opening.dropped:
            frames.append(_gap(self._after + 1, opening.dropped))
        return frames

    async def _send(self, send: Send, frames: list[bytes]) -> None:
        chunk: list[bytes] = []
        size = 0
        for frame in frames:
            chunk.append(frame)
            size += len(frame)
            if size >= _CHUNK_BYTES:
                await _send_chunk(send, chunk)
                chunk, size = [], 0
        if chunk:
            await _send_chunk(send, chunk)


async def _send_chunk(send: Send, chunk: list[bytes]) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": b"".join(chunk), "more_body": True})


async def _until_left(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


class Streams:
    """Opens the streams of one process."""

    def __init__(self, services: Services, settings: ApiSettings, feeds: Feeds, metrics: Metrics) -> None:
        self._services = services
        self._feeds = feeds
        self._metrics = metrics
        self._pace = Pace(services.timing.stream_heartbeat_s, settings.stream_recheck_s)

    def open(self, place: Position, opening: Opening, still_allowed: StillAllowed) -> EventStream:
        """The stream that begins there. `ProblemRaised` (429) where too many are open."""
        if self._feeds.full:
            raise ProblemRaised(
                ProblemCode.RATE_LIMITED, "too many event streams are open; close one or try again later"
            )
        source = StreamSource(self._services, opening.thread_id, opening.run_id)
        return EventStream(source, opening, place, self._feeds, self._metrics, self._pace, still_allowed)
