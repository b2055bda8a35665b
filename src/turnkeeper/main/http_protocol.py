"""What one client may cost before anybody knows who it is: uvicorn's HTTP protocol with bounds on bytes, time and number.

httptools bounds neither the size of a request's head, of its trailers and chunk extensions, nor the time that they take, and
it becomes slower with the length of a header that has not ended: one client without a token could hold up the event loop
for seconds, until running turns lost their leases.

Bytes are counted from the start of a request, those of a body without what carries them. What has not come to its end yet
is counted by what was received, in pieces, so that it is refused at twice its bound at the latest. A client has `head_s` to
send a whole head, from its connection or from the first byte of the next request, and must go on with a body within
`body_s`, unless we are the ones who do not read. Nothing is timed while an answer is on its way, but that it is read.

Where all room is taken, whoever has owed a request for longest makes place: clients whose requests are being
answered, such as workers and readers of streams, are never closed for a newcomer.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from turnkeeper.domain.errors import Language, ProblemCode, problem_title
from turnkeeper.kit.log import get_logger
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem

PIECE_BYTES: Final = 64 * 1024
# A chunk may cost this much beside its bytes: its length and line ends, and a short extension.
_CHUNK_BYTES: Final = 16
_HEADER_BYTES: Final = 4
_LAST_LOOK_S: Final = 0.1
_LINGER_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = 408
_CODES: Final = {400: ProblemCode.BAD_REQUEST, _TIMEOUT: ProblemCode.TIMEOUT, 431: ProblemCode.TOO_LARGE}
_BODY_WAITING: Final = "the rest of the body did not come within {:g} s"
_HEAD_WAITING: Final = "no whole request came within {:g} s"

log = get_logger("http")


@dataclass(frozen=True)
class HttpBounds:
    """Bytes, numbers and seconds. `connections_max` is of one process."""

    head_bytes_max: int = 64 * 1024
    headers_max: int = 128
    pipelined_max: int = 16
    head_s: float = 10.0
    body_s: float = 60.0
    body_step_bytes: int = 1024
    """So many bytes of a body are going on; fewer within `body_s` are not."""
    unread_s: float = 300.0
    """How long a client may leave an answer unread that fills all buffers: longer than any lease."""
    linger_s: float = 1.0
    """How long a client that was refused may go on sending, so that it reads the answer before the connection's end."""
    connections_max: int = 4096


@dataclass
class _Room:
    """The connections of one server. `owing`: those that owe a request or the rest of one, in the order of their waiting."""

    count: int = 0
    owing: "dict[BoundedHttp, None]" = field(default_factory=dict["BoundedHttp", None])


class _RefusedError(Exception):
    """Raised within the parser's callbacks, so that it stops at once."""


def bounded_http(bounds: HttpBounds) -> type["BoundedHttp"]:
    """The protocol class of one server."""
    return type("BoundedHttp", (BoundedHttp,), {"bounds": bounds, "room": _Room()})


class BoundedHttp(HttpToolsProtocol):
    """See the module. Made by `bounded_http`, never by itself."""

    bounds: HttpBounds
    room: _Room

    _in_head = False
    _in_message = False
    _refused = False
    _began = False
    _spent = 0
    _paid = 0
    _stepped = 0
    _deadline: float | None = None
    _last_look = False
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn has it
        """Take the client in, if need be in the place of one that owes its request."""
        super().connection_made(transport)
        room = self.room
        room.count += 1
        if room.count > self.bounds.connections_max:
            oldest = next(iter(room.owing), self)
            oldest.make_place()
            if oldest is self:
                return
        room.owing[self] = None
        self._due_in(self.bounds.head_s)

    def make_place(self) -> None:
        """End without an answer: somebody else needs the room."""
        self._refused = True
        self.room.owing.pop(self, None)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self.room.count -= 1
        self.room.owing.pop(self, None)
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """Parse in pieces, so that no read, however long, is more than a moment of the event loop."""
        if self._refused:
            self._spent += len(data)
            if self._spent > _LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if len(data) <= PIECE_BYTES:
            self._parse(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), PIECE_BYTES):
                if not self._parse(view[start : start + PIECE_BYTES]):
                    return
        if not self._refused:
            self._set_deadline()

    def _parse(self, piece: bytes | memoryview) -> bool:
        """False: what follows is not to be read."""
        try:
            self.parser.feed_data(piece)  # pyright: ignore[reportOptionalMemberAccess] - None only after the connection's end
        except httptools.HttpParserUpgrade:
            return False  # answered as if it had not been asked for; what follows is in no language of ours
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _RefusedError):
                self._refuse(431, str(error.__context__))
            else:
                self._refuse(400, "what was received is no HTTP/1.1 request")
            return False
        if self._began:
            self._began, self._spent = False, 0
        else:
            self._spent = max(0, self._spent + len(piece) - self._paid)
            if self._spent > self.bounds.head_bytes_max:
                self._refuse(431, self._too_long())
                return False
        self._paid = 0
        if self.headers and len(self.headers) > self.bounds.headers_max:
            self._refuse(431, self._too_many())
            return False
        return True

    # httptools

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if len(self.pipeline) >= self.bounds.pipelined_max:
            raise _RefusedError(f"more than {self.bounds.pipelined_max} requests wait for those before them")
        self._in_head = self._in_message = self._began = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head's end: somebody is at work for this client, though the body may still be owed."""
        self._check_head()
        super().on_headers_complete()
        self.headers = []  # what comes now are trailers, for which the request does not wait: they are dropped
        self._in_head, self._began = False, True
        self._deadline = None

    def on_body(self, body: bytes) -> None:
        """A part of the body pays for what comes with it."""
        self._paid += 3 * len(body) + _CHUNK_BYTES
        self._stepped += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._in_message = False
        self._deadline = None
        self.room.owing.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The client's turn again."""
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():
            self.room.owing[self] = None

    def send_400_response(self, msg: str) -> None:
        """As every refusal."""
        self._refuse(400, msg)

    # deadlines

    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _set_deadline(self) -> None:
        """After a read. The usual request has come as a whole by now, and nothing is set."""
        if self._in_message and not self._in_head:
            if self._deadline is None or self._stepped >= self.bounds.body_step_bytes:
                self._stepped = 0
                self._due_in(self.bounds.body_s)
                if self.room.owing.pop(self, self) is None:
                    self.room.owing[self] = None  # who goes on with a body is no longer the one who waited longest
        elif self._deadline is None and (self._in_head or not self._is_answering()):
            self._due_in(self.bounds.head_s)

    def _due_in(self, seconds: float) -> None:
        """At most one timer; one that comes too early looks again, so that an answered request need not cancel it."""
        self._deadline = due = self.loop.time() + seconds
        self._last_look = False
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self._refused:
            return
        left = self._deadline - self.loop.time()
        in_body = self._in_message and not self._in_head
        if left > 0.001:
            self._timer = self.loop.call_later(left, self._look)
        elif not self._last_look:
            # After a pause of this process (or of the machine) timers come before what was received meanwhile.
            self._last_look = True
            self._timer = self.loop.call_later(_LAST_LOOK_S, self._look)
        elif self.flow.read_paused:
            self._due_in(self.bounds.body_s if in_body else self.bounds.head_s)
        elif in_body:
            self._refuse(_TIMEOUT, _BODY_WAITING.format(self.bounds.body_s))
        else:
            self._refuse(_TIMEOUT, _HEAD_WAITING.format(self.bounds.head_s))

    # refusals

    def _check_head(self) -> None:
        if len(self.headers) > self.bounds.headers_max:
            raise _RefusedError(self._too_many())
        if self._began:
            return  # all of it is in this one piece
        size = len(self.url) + sum(len(name) + len(value) + _HEADER_BYTES for name, value in self.headers)
        if size > self.bounds.head_bytes_max:
            raise _RefusedError(self._too_long())

    def _too_many(self) -> str:
        return f"there are more than {self.bounds.headers_max} headers or trailers"

    def _too_long(self) -> str:
        return f"head, trailers or chunk extensions have more than {self.bounds.head_bytes_max} bytes"

    def _refuse(self, status: int, why: str) -> None:
        """Answer if that can be no other request's answer, and close. Whoever reads the body sees its client leave."""
        audible = self._may_answer(status)
        self._refused = True
        self._deadline = None
        self.room.owing.pop(self, None)
        log.debug("request_refused", status=status, why=why)
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        transport = self.transport
        if not audible or transport.is_closing():
            transport.close()
            return
        transport.write(self._answer(status, why))
        self.flow.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.bounds.linger_s, transport.abort)

    def _may_answer(self, status: int) -> bool:
        if self.pipeline:
            return False
        if self._in_message and not self._in_head:
            return self._is_answering() and not self.cycle.response_started
        # One that has sent nothing yet may be about to: it must not take this for the answer.
        return not self._is_answering() and (self._in_message or status != _TIMEOUT)

    def _answer(self, status: int, why: str) -> bytes:
        code = _CODES[status]
        problem = Problem(
            title=problem_title(code, Language.EN),
            status=status,
            code=code.value,
            detail=why,
            retryable=status == _TIMEOUT,
        )
        body = problem.model_dump_json().encode()
        lines = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        lines += [b"content-type: %b\r\n" % PROBLEM_MEDIA_TYPE.encode(), b"content-length: %d\r\n" % len(body)]
        return b"".join((STATUS_LINE[status], *lines, b"connection: close\r\n\r\n", body))
